# SPDX-License-Identifier: Apache-2.0
"""Many numpy arrays to a device as JAX arrays, the GIL held for a few of them at a time."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Sequence

from . import _abi, _jax_leaves
from ._device import _destroy_capsule, _new_capsule
from ._lib import check, lib, need_memory, python_lib
from .copier import Copier
from .pool import Block, Pool

# After so many arrays others get the GIL, while the next are copied. JAX takes some 10 us to make each its own.
_AT_A_TIME = 16
_HEAD_BYTES = object.__basicsize__  # of every Python object, before numpy's own fields
_CPU, _CUDA = 1, 2  # DLPack's device types


class Batch:
    """Dense numpy arrays, looked at in C: where they are, their shapes, and their places in a block."""

    def __init__(self, arrays: Sequence[Any]):
        self._arrays = arrays  # keeps them
        objects = (ctypes.c_void_p * len(arrays))(*map(id, arrays))
        types = (ctypes.c_uint16 * len(arrays))(*[_jax_leaves.dlpack_type(array.dtype) for array in arrays])
        self._handle = need_memory(python_lib.weir_batch_new(objects, types, len(arrays), _HEAD_BYTES))
        self._delete = python_lib.weir_batch_delete  # there still while the interpreter ends
        self.nbytes: int = python_lib.weir_batch_bytes(self._handle)

    def __len__(self) -> int:
        return len(self._arrays)

    def form(self, i: int) -> _abi.Form:
        return python_lib.weir_batch_form(self._handle, i)

    def send(self, first: int, copier: Copier, target: _abi.BatchTarget, ticket: _abi.Ticket) -> list[Any]:
        """Copies the next few arrays, and sets the ticket of that. A capsule of each array's tensor."""
        n = min(_AT_A_TIME, len(self) - first)
        tensors = (ctypes.c_void_p * n)()
        check(python_lib.weir_batch_send(self._handle, first, n, copier.handle, target, ticket, tensors))
        return [_new_capsule(tensor, b"dltensor", _destroy_capsule) for tensor in tensors]

    def __del__(self) -> None:
        if hasattr(self, "_delete"):
            self._delete(self._handle)


class _Importer:
    """Makes arrays of JAX's from capsules, on a device of JAX's where the pool's memory is."""

    def __init__(self, pool: Pool, device: Any):
        import jax

        self.kind = _CPU if pool.simulated else _CUDA
        self.home = jax.local_devices(backend="cpu")[0] if pool.simulated else device
        self.stream = None if pool.simulated else self.home.get_stream_for_external_ready_events()
        """Where the values are to be there, or to come. None: on the host, at once."""
        self._direct = _find_direct()

    def __call__(self, capsule: Any) -> Any:
        import jax

        if self._direct:
            try:
                return self._direct(capsule, self.home, self.stream, None, self.kind)
            except TypeError:  # a version of JAX with other parameters
                self._direct = None
        return jax.dlpack.from_dlpack(_Carrier(capsule, (self.kind, self.home.local_hardware_id or 0)))


class _Carrier:
    """A capsule as jax.dlpack.from_dlpack wants it. Its stream waits already, by `land`."""

    def __init__(self, capsule: Any, device: tuple[int, int]):
        self._capsule, self._device = capsule, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule


def _find_direct() -> Any | None:
    """What from_dlpack ends in, after 100 us of questions whose answers are the same for a whole batch."""
    try:
        from jax._src.lib import _jax

        return _jax.dlpack_managed_tensor_to_buffer
    except (ImportError, AttributeError):
        return None


def land(batch: Batch, pool: Pool, block: Block, device: Any) -> list[Any]:
    """The arrays as JAX's, in that block. Their stream waits for the copies; so does the host in the end, for arrays in
    pinned memory are still being read until then. Neither waits for compute."""
    bring = _Importer(pool, device)
    if bring.stream is not None:
        block.use_on(bring.stream)
    ordinal = 0 if pool.simulated else pool.device
    target = _abi.BatchTarget(block.handle, block.address, bring.kind, ordinal)
    arrived: list[Any] = []
    tickets: list[_abi.Ticket] = []
    while len(arrived) < len(batch):
        tickets.append(ticket := _abi.Ticket())
        try:
            capsules = batch.send(len(arrived), pool.copier, target, ticket)
            if bring.stream is None:
                pool.copier.wait(ticket)
            else:
                pool.copier.join(ticket, bring.stream)
            arrived += map(bring, capsules)
        except BaseException:
            pool.copier.wait(ticket)  # Ctrl-C comes anywhere: perhaps no stream that the block knows is joined
            raise
    for ticket in tickets:
        pool.copier.wait(ticket)
    return arrived


@functools.lru_cache(maxsize=None)
def reads_numpy() -> bool:
    """Does the C library see numpy's arrays as numpy does?"""
    import numpy

    if int(numpy.__version__.split(".")[0]) > 2:
        return False  # its arrays may be others in C
    probe = numpy.arange(6, dtype="int16").reshape(2, 3)
    form = Batch([probe]).form(0)
    seen = (form.address, form.n_dims, form.bits, form.n_dims == 2 and form.shape[:2])
    return seen == (probe.ctypes.data, 2, 16, [2, 3])
