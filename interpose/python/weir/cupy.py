# SPDX-License-Identifier: Apache-2.0
"""CuPy on weir's memory.

    import weir.cupy
    weir.cupy.install()

Each array's memory comes from the pool that all frameworks of the process share, for the stream that is current when it is
made, and goes back in the order of that stream. Where other streams use it: weir.cupy.use(array, stream).
"""

from __future__ import annotations

import ctypes
from typing import Any, Callable, NoReturn

from . import _adapters, _streams
from ._adapters import stats
from ._lib import check, lib, python_lib

__all__ = ["Pool", "install", "stats", "uninstall", "use"]

_installed: tuple[Pool, Any] | None = None


class Pool:
    """Has the methods of cupy.cuda.MemoryPool, over the process's shared pool; numbers are of all frameworks together,
    on the current device."""

    def __init__(self) -> None:
        import cupy

        current = _function_of("cupy_backends.cuda.stream", "get_current_stream_ptr", b"intptr_t (void)")
        functions = (
            _adapters.address_of(python_lib, "weir_cupy_guarded_malloc"),
            _adapters.address_of(lib, "weir_cupy_free"),
        )
        plain = cupy.cuda.memory.CFunctionAllocator(current, *functions, lib).malloc
        self.malloc: Callable[[int], Any] = _adapters.allocator(plain, self._fail)
        """malloc(size): a MemoryPointer. cupy.cuda.memory.OutOfMemoryError."""
        self._device = cupy.cuda.runtime.getDevice
        self._error = cupy.cuda.memory.OutOfMemoryError

    def _fail(self, size: int) -> NoReturn:
        found = self._stats()
        text = lib.weir_error_text().decode(errors="replace")
        raise self._error(size, found["live_bytes"], found["limit_bytes"]) from MemoryError(text)

    def _stats(self) -> dict[str, int]:
        return stats(self._device())

    def free_all_blocks(self, stream: Any = None) -> None:
        """Gives idle memory back to the driver, as far as the GPU is done with it; never waits."""
        check(lib.weir_trim(_adapters.shared_pool(self._device()), 0, None))

    def n_free_blocks(self) -> int:
        """Blocks that were freed and wait for a stream: free memory is not kept in blocks."""
        return self._stats()["pending_blocks"]

    def used_bytes(self) -> int:
        return self._stats()["live_bytes"]

    def free_bytes(self) -> int:
        found = self._stats()
        return found["reserved_bytes"] - found["live_bytes"]

    def total_bytes(self) -> int:
        return self._stats()["reserved_bytes"]

    def get_limit(self) -> int:
        return self._stats()["limit_bytes"]

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """As weir.limit; `fraction`: of the device's memory."""
        check(lib.weir_shared_limit(self._device(), size or 0, fraction or 0.0))


def install() -> bool:
    """Makes weir CuPy's allocator, and its pool what cupy.get_default_memory_pool() returns. Arrays that exist keep
    their memory. True: it serves; False: CuPy keeps its own, for the reason that a warning gives."""
    global _installed
    import cupy

    if _installed is not None:
        return True
    if cupy.cuda.runtime.is_hip:
        return _adapters.decline("CuPy", "it is built for ROCm")
    if not _is_plain(cupy):
        return _adapters.decline("CuPy", "it has another allocator already")
    try:
        pool = Pool()
    except (AttributeError, ImportError, KeyError, ValueError) as error:
        return _adapters.decline("CuPy", f"version {cupy.__version__} has another interface: {error}")
    _installed = (pool, cupy._default_memory_pool)
    cupy._default_memory_pool = pool
    cupy.cuda.set_allocator(pool.malloc)
    return True


def uninstall() -> None:
    """New arrays get their memory from CuPy's own pool again."""
    global _installed
    if _installed is not None:
        import cupy

        (_, cupy._default_memory_pool), _installed = _installed, None
        cupy.cuda.set_allocator(cupy._default_memory_pool.malloc)


def use(array: Any, stream: Any) -> None:
    """What is queued on `stream` until the array's memory is freed uses it, too."""
    memory = array.data.mem
    check(lib.weir_shared_use(memory.device_id, memory.ptr, _streams.handle(stream)))


def _is_plain(cupy: Any) -> bool:
    """Nobody has set an allocator but CuPy itself."""
    return cupy.cuda.get_allocator() == cupy._default_memory_pool.malloc


def _function_of(module: str, name: str, signature: bytes) -> int:
    """The address of a C function that a module of CuPy has for others. ValueError: of another signature."""
    capsule = __import__(module, fromlist=["__pyx_capi__"]).__pyx_capi__[name]
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, signature)
