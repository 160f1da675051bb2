# SPDX-License-Identifier: Apache-2.0
"""cuda.core on weir's memory.

    from weir.cuda_core import MemoryResource
    device.memory_resource = MemoryResource(device)
"""

from __future__ import annotations

import ctypes
from typing import Any

import cuda.core

from . import _adapters, _streams
from ._adapters import stats
from ._lib import check, lib

__all__ = ["MemoryResource", "stats"]


class MemoryResource(cuda.core.MemoryResource):
    """Buffers of the pool that all frameworks of the process share, on one device, in the order of their streams."""

    def __init__(self, device: Any = 0):
        """`device`: a cuda.core.Device, or an ordinal."""
        self._device = int(getattr(device, "device_id", device))
        _adapters.shared_pool(self._device)

    def allocate(self, size: int, *, stream: Any) -> cuda.core.Buffer:
        """Errors: weir.OutOfMemory and its kind."""
        block = ctypes.c_uint64()
        home = _handle_of(stream)
        check(lib.weir_shared_alloc(self._device, size, home, _adapters.PATIENCE_NS, ctypes.byref(block)))
        return cuda.core.Buffer.from_handle(block.value, size, mr=self, stream=stream)

    def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
        """`stream`: on which the last use is queued."""
        check(lib.weir_free(_adapters.shared_pool(self._device), int(ptr), _handle_of(stream)))

    @property
    def is_device_accessible(self) -> bool:
        return True

    @property
    def is_host_accessible(self) -> bool:
        return False

    @property
    def is_managed(self) -> bool:
        return False

    @property
    def device_id(self) -> int:
        return self._device


def _handle_of(stream: Any) -> int:
    return _streams.handle(getattr(stream, "stream", stream))  # a GraphBuilder has one
