# SPDX-License-Identifier: Apache-2.0
"""Page-locked host memory as numpy arrays."""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import Any

from ._lib import check, lib
from .pool import Pool
from .pool import pool as pool_of

_NO_STREAM = ctypes.c_void_p(-1)


def empty_pinned(shape: int | tuple[int, ...], dtype: Any = "float32", *, pool: Pool | None = None) -> Any:
    """A numpy array in pinned memory, which a queue that borrows it reads in place. 64-byte aligned.

    The memory is freed with the last array that refers to it; by then no stream may read it. A queue keeps what it
    has borrowed itself.
    """
    import numpy

    kind = numpy.dtype(dtype)
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    nbytes = math.prod(shape) * kind.itemsize
    if nbytes == 0:
        return numpy.empty(shape, kind)
    owner = pool or pool_of()
    address = ctypes.c_void_p()
    check(lib.weir_host_alloc(owner.handle, nbytes, ctypes.byref(address)))
    memory = (ctypes.c_ubyte * nbytes).from_address(address.value)
    # Every array made from it refers to `memory`. At exit the process takes it back.
    weakref.finalize(memory, lib.weir_host_free, owner.handle, address.value, _NO_STREAM).atexit = False
    return numpy.frombuffer(memory, kind).reshape(shape)
