# SPDX-License-Identifier: Apache-2.0
"""weir: GPU memory and transfers that do not wait for compute.

    weir.pool(device)      the process's pool of device memory; weir.limit(device, nbytes)
    weir.Queue             a bounded prefetch queue into device memory, its items readable by DLPack
    weir.empty_pinned      page-locked host memory as a numpy array
    weir.jax               JAX's own transfers, and prefetching for it

Importing needs no GPU and no framework: those come with the submodule that is asked for.
"""

from ._device import DeviceArray
from ._lib import lib as _library
from ._streams import LEGACY, PER_THREAD
from .copier import Copier
from .errors import (
    Capturing,
    Closed,
    DeviceError,
    InvalidArgument,
    NotYet,
    OutOfMemory,
    Poisoned,
    Stale,
    Timeout,
    TooLarge,
    WeirError,
    WouldBlock,
)
from .pinned import empty_pinned
from .pool import Block, Pool, limit, pool
from .queue import Item, Queue

__version__: str = _library.weir_version().decode()

__all__ = [
    "Block", "Capturing", "Closed", "Copier", "DeviceArray", "DeviceError", "InvalidArgument", "Item", "LEGACY",
    "NotYet", "OutOfMemory", "PER_THREAD", "Poisoned", "Pool", "Queue", "Stale", "Timeout", "TooLarge", "WeirError",
    "WouldBlock", "empty_pinned", "limit", "pool",
]  # fmt: skip
