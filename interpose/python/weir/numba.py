# SPDX-License-Identifier: Apache-2.0
"""Numba on weir's memory, by its External Memory Management interface.

    import weir.numba
    weir.numba.install()            # before numba.cuda is used; or NUMBA_CUDA_MEMORY_MANAGER=weir.numba

Numba names no stream, neither when it allocates nor when it frees, and any of its streams may be at work on an array that
is dropped. So memory serves again once all that was queued by then has passed: on Numba's own streams, and on all others
but non-blocking ones, which don't wait for the legacy default stream.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from typing import Any, Iterator

from numba import cuda

from . import _adapters, _streams
from ._adapters import stats
from ._lib import check, lib
from ._pins import Pins

__all__ = ["MemoryManager", "install", "stats"]


class MemoryManager(cuda.HostOnlyCUDAMemoryManager):
    """The plug-in; one for each context."""

    def initialize(self) -> None:
        if not hasattr(self, "_home"):
            self._home = self.context.create_stream()  # nothing ever runs there

    def memalloc(self, size: int) -> Any:
        """Errors: weir.OutOfMemory and its kind."""
        self.initialize()
        device, block = self.context.device.id, ctypes.c_uint64()
        home = int(getattr(self._home.handle, "value", self._home.handle))
        check(lib.weir_shared_alloc(device, size, home, _adapters.PATIENCE_NS, ctypes.byref(block)))
        free, pool, address = lib.weir_free, _adapters.shared_pool(device), block.value

        def give_back() -> None:
            free(pool, address, _streams.LEGACY)

        return cuda.MemoryPointer(self.context, ctypes.c_void_p(address), size, finalizer=give_back)

    def mempin(self, owner: Any, pointer: Any, size: int, mapped: bool = False) -> Any:
        """Arrays that share pages can be pinned side by side, and what can't be pinned stays pageable. Mapped memory,
        which has an address of its own on the device, as Numba does it."""
        if mapped:
            return super().mempin(owner, pointer, size, mapped)
        unpin = _pins().pin(int(getattr(pointer, "value", pointer)), size)
        return cuda.PinnedMemory(weakref.proxy(self.context), pointer, size, owner=owner, finalizer=unpin)

    def get_memory_info(self) -> Any:
        found = stats(self.context.device.id)
        return cuda.MemoryInfo(free=found["limit_bytes"] - found["live_bytes"], total=found["limit_bytes"])

    def get_ipc_handle(self, memory: Any) -> Any:
        raise NotImplementedError("virtual memory has no CUDA IPC handle: weir_export shares a block")

    @contextlib.contextmanager
    def defer_cleanup(self) -> Iterator[None]:
        """Frees never wait, so nothing of weir's is put off."""
        with super().defer_cleanup():
            yield

    @property
    def interface_version(self) -> int:
        return 1


_the_pins: Pins | None = None


def _pins() -> Pins:
    """The process's: pages are locked for all devices."""
    global _the_pins
    if _the_pins is None:
        driver, portable = ctypes.CDLL("libcuda.so.1"), 1
        driver.cuMemHostRegister_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
        driver.cuMemHostUnregister.argtypes = [ctypes.c_void_p]

        def lock(address: int, nbytes: int) -> bool:
            return driver.cuMemHostRegister_v2(address, nbytes, portable) == 0

        def unlock(address: int) -> None:
            driver.cuMemHostUnregister(address)  # an error: the device is gone, and the lock with it

        _the_pins = Pins(lock, unlock)
    return _the_pins


_numba_memory_manager = MemoryManager  # what NUMBA_CUDA_MEMORY_MANAGER looks for


def install() -> bool:
    """Makes weir Numba's memory manager. True: it serves; False: Numba keeps its own, for the reason that a warning
    gives."""
    from numba.cuda.cudadrv import driver

    if driver._memory_manager is MemoryManager:
        return True
    if driver._memory_manager is not None:
        return _adapters.decline("Numba", "its memory manager is set, or in use, already")
    cuda.set_memory_manager(MemoryManager)
    return True
