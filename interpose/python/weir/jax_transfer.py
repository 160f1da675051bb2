# SPDX-License-Identifier: Apache-2.0
"""weir.jax.transfer: many host arrays to a device as few packed copies."""

from __future__ import annotations

from typing import Any

from . import _arrays
from ._device import DeviceArray
from ._jax_leaves import fill_in, movable, pool_for, put_others, to_jax
from .copier import TO_DEVICE
from .errors import OutOfMemory
from .pool import Pool

_ALIGNMENT = 256


def transfer(tree: Any, device: Any = None) -> Any:
    """jax.device_put for a tree of many numpy arrays: one block of memory, and as few copies as the transfer engine
    makes of them, without the GIL. The arrays may be overwritten when it returns. The block is given back with the last
    of its arrays, so keep what belongs together together. Other leaves, other targets than one device, and a pool
    without room: jax.device_put."""
    import jax

    leaves, structure = jax.tree.flatten(tree)
    target, pool = pool_for(device)
    moved = [movable(leaf) for leaf in leaves] if pool else [None] * len(leaves)
    hosts = [_arrays.of(array) for array in moved if array is not None]
    try:
        arrived = _move(pool, hosts, target) if hosts else []
    except OutOfMemory:
        arrived, moved = [], [None] * len(leaves)
    return jax.tree.unflatten(structure, fill_in(put_others(leaves, moved, device), arrived))


def _offsets(hosts: list[_arrays.HostArray]) -> tuple[list[int], int]:
    """Where each lies in the block, and the block's size."""
    offsets, end = [], 0
    for host in hosts:
        offsets.append(end)
        end += host.form.nbytes + -host.form.nbytes % _ALIGNMENT
    return offsets, end


def _move(pool: Pool, hosts: list[_arrays.HostArray], device: Any) -> list[Any]:
    """The arrays as JAX's, in a block of their own. Each import makes its stream wait for the copy."""
    offsets, nbytes = _offsets(hosts)
    block = pool.alloc(nbytes, pool.copier.stream)
    pieces = [(block.address + at, host.address, host.form.nbytes) for at, host in zip(offsets, hosts)]
    ticket = pool.copier.copy(TO_DEVICE, pieces)
    try:
        return [
            to_jax(DeviceArray(block._lease, block.address + at, host.form, ticket), device)
            for at, host in zip(offsets, hosts)
        ]
    except BaseException:
        pool.copier.wait(ticket)  # no stream may be joined to it, behind which the block could go back
        raise
