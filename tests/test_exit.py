# SPDX-License-Identifier: Apache-2.0
"""A Python process that uses the library ends with exit code 0 and soon, whatever of it is still alive.

    python3 tests/test_exit.py LIBRARY            each case in a process of its own
    python3 tests/test_exit.py LIBRARY CASE       the case itself
"""
import atexit
import ctypes
import os
import subprocess
import sys
import threading
import time

CLOSED, AFTER_FORK = "WEIR_CLOSED", "WEIR_AFTER_FORK"


class PoolOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("device", ctypes.c_int),
        ("device_kind", ctypes.c_char_p),
        ("limit_bytes", ctypes.c_size_t),
        ("grow_bytes", ctypes.c_size_t),
    ]


class QueueOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("item_bytes", ctypes.c_size_t),
        ("items", ctypes.c_uint),
        ("device_bytes", ctypes.c_size_t),
        ("pinned_bytes", ctypes.c_size_t),
    ]


class Process:
    """A pool with a live block."""

    def __init__(self, library):
        self.weir = ctypes.CDLL(library)
        self.weir.weir_status_name.restype = ctypes.c_char_p
        self.pool = ctypes.c_void_p()
        options = PoolOptions(ctypes.sizeof(PoolOptions), 0, b"sim", 0, 0)
        assert self.weir.weir_pool_open(ctypes.byref(options), ctypes.byref(self.pool)) == 0
        assert self.alloc() == "WEIR_OK"

    def alloc(self):
        block = ctypes.c_uint64()
        status = self.weir.weir_alloc(self.pool, ctypes.c_size_t(1 << 20), None, ctypes.byref(block))
        return self.weir.weir_status_name(status).decode()


def live_pool(library):
    Process(library)


def blocked_consumer(library):
    p = Process(library)
    queue, item = ctypes.c_void_p(), (ctypes.c_char * 64)()
    options = QueueOptions(ctypes.sizeof(QueueOptions), 4096, 0, 0, 0)
    assert p.weir.weir_queue_open(p.pool, ctypes.byref(options), ctypes.byref(queue)) == 0
    acquire = lambda: p.weir.weir_queue_acquire(queue, None, ctypes.c_int64(-1), item)
    threading.Thread(target=acquire, daemon=True).start()
    time.sleep(0.05)


def thread_inside_alloc(library):
    p = Process(library)

    def run():
        while True:
            p.alloc()

    threading.Thread(target=run, daemon=True).start()
    time.sleep(0.05)


def unloaded(library):
    p = Process(library)
    import _ctypes

    _ctypes.dlclose(p.weir._handle)


def late_call(library):
    """Python's own atexit runs before the C library's: there all still works."""
    p = Process(library)
    atexit.register(lambda: p.alloc() == "WEIR_OK" or os._exit(3))


def forked(library):
    p = Process(library)
    child = os.fork()
    if child == 0:
        sys.exit(0 if p.alloc() == AFTER_FORK else 4)
    assert os.waitpid(child, 0)[1] == 0
    assert p.alloc() == "WEIR_OK"


CASES = [live_pool, blocked_consumer, thread_inside_alloc, unloaded, late_call, forked]


def main():
    library = sys.argv[1]
    if len(sys.argv) > 2:
        next(c for c in CASES if c.__name__ == sys.argv[2])(library)
        return
    for case in CASES:
        code = subprocess.run([sys.executable, __file__, library, case.__name__], timeout=20).returncode
        if code != 0:
            sys.exit(f"{case.__name__}: exit code {code}")
    print("all", len(CASES), "processes ended well")


main()
