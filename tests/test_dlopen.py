# SPDX-License-Identifier: Apache-2.0
"""The shared library loads into a running Python process, works there, and leaves the process's malloc alone.

    python3 tests/test_dlopen.py LIBRARY
"""
import ctypes
import sys

NAMES = ["malloc", "free", "calloc", "realloc", "posix_memalign", "aligned_alloc", "mallctl", "mallocx"]


class PoolOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("device", ctypes.c_int),
        ("device_kind", ctypes.c_char_p),
        ("limit_bytes", ctypes.c_size_t),
        ("grow_bytes", ctypes.c_size_t),
    ]


def address_of(library, name):
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except AttributeError:
        return None


def allocation_functions():
    process = ctypes.CDLL(None)
    return {name: address_of(process, name) for name in NAMES}


def check(status, weir):
    if status != 0:
        weir.weir_error_text.restype = ctypes.c_char_p
        sys.exit(f"status {status}: {weir.weir_error_text().decode()}")


def use(weir):
    """A block of pinned memory, so that the private jemalloc inside really ran."""
    options = PoolOptions(ctypes.sizeof(PoolOptions), 0, b"sim", 0, 0)
    pool, host = ctypes.c_void_p(), ctypes.c_void_p()
    check(weir.weir_pool_open(ctypes.byref(options), ctypes.byref(pool)), weir)
    check(weir.weir_host_alloc(pool, ctypes.c_size_t(1000), ctypes.byref(host)), weir)
    ctypes.memset(host, 1, 1000)
    check(weir.weir_host_free(pool, host, ctypes.c_void_p(-1)), weir)
    check(weir.weir_pool_close(pool), weir)


def main():
    before = allocation_functions()
    weir = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
    use(weir)
    after = allocation_functions()
    if before != after:
        sys.exit(f"loading the library changed the process's functions:\n{before}\n{after}")
    leaked = [n for n in ("wr_je_malloc", "wr_je_mallocx", "je_malloc", "wr_fail") if address_of(weir, n) is not None]
    if leaked:
        sys.exit(f"the library exports {leaked}")
    print("loaded; malloc is", hex(before["malloc"]), "as before")


main()
