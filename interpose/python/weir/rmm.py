# SPDX-License-Identifier: Apache-2.0
"""RMM on weir's memory, from Python. From C++: weir_rmm.hpp.

    import weir.rmm
    rmm.mr.set_current_device_resource(weir.rmm.resource())
"""

from __future__ import annotations

import ctypes
from typing import Any

from . import _adapters, _streams
from ._adapters import stats
from ._lib import check, lib

__all__ = ["resource", "stats"]


def resource(device: int = 0) -> Any:
    """A memory resource over the pool that all frameworks of the process share, in the order of streams. RMM reports want
    of memory as MemoryError."""
    import rmm

    pool = _adapters.shared_pool(device)

    def allocate(nbytes: int, stream: Any) -> int:
        block = ctypes.c_uint64()
        home = _streams.handle(stream)
        check(lib.weir_shared_alloc(device, nbytes, home, _adapters.PATIENCE_NS, ctypes.byref(block)))
        return block.value

    def deallocate(address: int, nbytes: int, stream: Any) -> None:
        lib.weir_free(pool, address, _streams.handle(stream))

    return rmm.mr.CallbackMemoryResource(allocate, deallocate)
