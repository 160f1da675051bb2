# SPDX-License-Identifier: Apache-2.0
"""What prefetch and transfer share: which leaves of a tree weir moves, where to, and how they become JAX arrays."""

from __future__ import annotations

import functools
import os
from typing import Any, Sequence

from . import _arrays
from ._device import DeviceArray
from .pool import Pool
from .pool import pool as pool_of

# From here on a buffer's owner hears of its end after the last kernel that reads it, and not when that is enqueued.
_FIRST_SAFE = (0, 11, 2)


def pool_for(target: Any) -> tuple[Any, Pool | None]:
    """The one device that a Device, Sharding or None (the default) means, and its pool. (None, None): forward."""
    import jax

    if target is None:
        device = jax.config.jax_default_device or jax.local_devices()[0]
    elif isinstance(target, jax.sharding.Sharding):
        if len(target.device_set) != 1 or target.memory_kind not in (None, "device"):
            return None, None
        (device,) = target.device_set
    else:
        device = target
    platform = getattr(device, "platform", None)
    if platform == "cpu" and os.environ.get("WEIR_DEVICE", "").startswith("sim"):
        return device, pool_of(0)
    if platform != "gpu" or jax.__version_info__ < _FIRST_SAFE or device.process_index != jax.process_index():
        return None, None
    return device, pool_of(device.local_hardware_id)


def movable(leaves: Sequence[Any]) -> list[Any | None]:
    """Each dense numpy array as JAX would have it on a device (64 bits only if those are enabled), None: forward."""
    import jax
    import numpy

    wide = jax.config.jax_enable_x64
    moved = []
    for leaf in leaves:
        kind = _kind_of(leaf.dtype, wide) if type(leaf) is numpy.ndarray and leaf.size else None
        if kind is not None and not (leaf.dtype == kind and leaf.flags.c_contiguous):
            moved.append(numpy.ascontiguousarray(leaf, kind).reshape(leaf.shape))
        else:
            moved.append(None if kind is None else leaf)
    return moved


@functools.lru_cache(maxsize=256)
def _kind_of(dtype: Any, wide: bool) -> Any | None:
    """The type that JAX would have of it; None: one that JAX or DLPack does not know."""
    import jax

    if dtype.hasobject:
        return None
    try:
        kind = jax.dtypes.canonicalize_dtype(dtype)
        dlpack_type(kind)
    except (BufferError, TypeError):
        return None
    return kind


@functools.lru_cache(maxsize=256)
def dlpack_type(dtype: Any) -> int:
    """DLPack's code << 8 | bits. BufferError: there is none."""
    form = _arrays.Form((), dtype.str, dtype.name, dtype.itemsize)
    return form.dlpack_code() << 8 | 8 * form.itemsize


def to_jax(array: DeviceArray, device: Any) -> Any:
    """The same memory as a JAX array, on whose stream the values are awaited."""
    import jax

    imported = jax.dlpack.from_dlpack(array)
    return imported if device in imported.devices() else jax.device_put(imported, device)


def put_others(leaves: Sequence[Any], moved: Sequence[Any], target: Any) -> list[Any]:
    """Leaves that are not moved, on the device by JAX in one call; None in place of the others. device_put reads
    numpy arrays after it has returned, or for ever, so it gets copies: nobody is told to leave them alone."""
    import jax
    import numpy

    others = [leaf for leaf, array in zip(leaves, moved) if array is None]
    copies = [leaf.copy() if isinstance(leaf, numpy.ndarray) else leaf for leaf in others]
    put = iter(jax.device_put(copies, target) if copies else [])
    return [next(put) if array is None else None for array in moved]


def fill_in(put: Sequence[Any], arrived: Sequence[Any]) -> list[Any]:
    """Those that were moved, in the places that put_others has left."""
    rest = iter(arrived)
    return [next(rest) if leaf is None else leaf for leaf in put]
