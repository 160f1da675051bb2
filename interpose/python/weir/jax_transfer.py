# SPDX-License-Identifier: Apache-2.0
"""weir.jax.transfer: many host arrays to a device as few packed copies."""

from __future__ import annotations

from typing import Any

from ._jax_batch import Batch, land, reads_numpy
from ._jax_leaves import fill_in, movable, pool_for, put_others
from .errors import WeirError
from .pool import Pool


def transfer(tree: Any, device: Any = None) -> Any:
    """jax.device_put for a tree of many numpy arrays: one block of memory, and as few copies as the transfer engine
    makes of them, without the GIL, which other threads get after every few arrays. The arrays may be overwritten
    when it returns. The block is given back with the last of its arrays, so keep what belongs together together.
    Other leaves, other targets than one device, and whatever weir fails at, such as a pool without room: jax.device_put."""
    import jax

    leaves, structure = jax.tree.flatten(tree)
    target, pool = pool_for(device)
    moved = movable(leaves) if pool and reads_numpy() else [None] * len(leaves)
    arrays = [array for array in moved if array is not None]
    try:
        arrived = _move(pool, arrays, target) if arrays else []
    except (WeirError, jax.errors.JaxRuntimeError):
        arrived, moved = [], [None] * len(leaves)
    return jax.tree.unflatten(structure, fill_in(put_others(leaves, moved, device), arrived))


def _move(pool: Pool, arrays: list[Any], device: Any) -> list[Any]:
    """The arrays as JAX's, in a block of their own."""
    import jax

    batch = Batch(arrays)
    block = pool.alloc(batch.nbytes, pool.copier.stream)
    arrived = land(batch, pool, block, device)
    # A simulated device's memory is that of JAX's first CPU device.
    return arrived if device in arrived[0].devices() else jax.device_put(arrived, device)
