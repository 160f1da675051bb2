# SPDX-License-Identifier: Apache-2.0
"""weir.jax.prefetch: batches that are on the device before they are asked for."""

from __future__ import annotations

import collections
import weakref
from typing import Any, Iterable, Iterator, NamedTuple

from ._jax_leaves import fill_in, movable, pool_for, put_others, to_jax
from .errors import OutOfMemory, Timeout, WouldBlock
from .queue import Queue


# A slot whose batch the program has dropped comes free when JAX has no more use for it. Not, perhaps, if somebody else
# has a view of it: then the program goes on without.
_PATIENCE_S = 1.0


class _Batch(NamedTuple):
    """A batch of the source, taken ahead."""

    put: list[Any]  # its leaves, None for those that are in the queue
    structure: Any
    in_queue: bool


class Prefetch:
    """The iterator that `prefetch` returns. Also a context manager; it ends with its last batch, or by `close`."""

    def __init__(self, source: Iterable[Any], target: Any, depth: int, max_bytes: int | None):
        if depth < 1:
            raise ValueError("depth is at least 1")
        self._source: Iterator[Any] | None = iter(source)
        self._target, self._depth, self._max_bytes = target, depth, max_bytes
        self._slots = depth + 2  # those ahead, and two that the program works with: the present and the last
        self._pending: list[Any] = []  # the tree that the source gave last, while the queue is full
        self._ahead: collections.deque[_Batch] = collections.deque()
        self._delivered: list[list[weakref.ref]] = []  # arrays in slots, by batch
        self._queue: Queue | None = None
        self._error: BaseException | None = None
        self._device, self._pool = pool_for(target)

    def __iter__(self) -> Prefetch:
        return self

    def __next__(self) -> Any:
        self._take_ahead(1)
        if not self._ahead:
            self.close()
            error, self._error = self._error, None
            raise error or StopIteration
        batch = self._deliver(self._ahead.popleft())
        self._take_ahead(self._depth)  # while this one is computed with
        return batch

    def close(self) -> None:
        """Drops what was taken ahead. Batches that were delivered stay. Again: no-op."""
        self._source = None
        self._pending.clear()
        self._ahead.clear()
        if self._queue:
            self._queue.destroy()

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ---- taking ahead

    def _take_ahead(self, n: int) -> None:
        """Stops where the queue is full, unless nothing is there to be delivered."""
        while len(self._ahead) < n and self._ask_source():
            batch = self._begin(self._pending[0], may_wait=not self._ahead)
            if batch is None:
                return
            self._pending.clear()
            self._ahead.append(batch)

    def _ask_source(self) -> bool:
        """Is a tree pending? An exception of the source is kept until the batches before it are delivered."""
        if not self._pending and self._source is not None:
            try:
                self._pending.append(next(self._source))
            except StopIteration:
                self._source = None
            except BaseException as error:
                self._source, self._error = None, error
        return bool(self._pending)

    def _begin(self, tree: Any, may_wait: bool) -> _Batch | None:
        """None: the queue is full."""
        import jax

        leaves, structure = jax.tree.flatten(tree)
        moved = movable(leaves) if self._pool else [None] * len(leaves)
        arrays = [array for array in moved if array is not None]
        pushed = False
        if arrays:
            try:
                pushed = self._push(arrays, may_wait)
            except WouldBlock:
                return None
        if not pushed:
            moved = [None] * len(leaves)
        return _Batch(put_others(leaves, moved, self._target), structure, pushed)

    def _push(self, arrays: list[Any], may_wait: bool) -> bool:
        """False: the queue can't take them, and it is no use to wait. WouldBlock: not now."""
        kept = self._count_kept()
        if kept >= self._slots:
            return False
        try:
            if self._queue is None:
                self._queue = self._open(sum(array.nbytes + 256 for array in arrays))
            self._queue.push(arrays, timeout=_PATIENCE_S if may_wait else 0)
        except WouldBlock:
            raise
        except (Timeout, OutOfMemory):
            return False
        return True

    def _count_kept(self) -> int:
        """Batches whose arrays the program still has: their slots come free by its own doing alone."""
        self._delivered = [batch for batch in self._delivered if any(array() is not None for array in batch)]
        return len(self._delivered)

    def _open(self, first_bytes: int) -> Queue:
        limit = self._max_bytes or 2 * self._slots * first_bytes
        self._slots = max(1, min(self._slots, limit // first_bytes))
        return Queue(limit, self._slots, pool=self._pool, device_bytes=limit, pinned_bytes=limit)

    # ---- delivering

    def _deliver(self, batch: _Batch) -> Any:
        import jax

        arrived = []
        if batch.in_queue:
            with self._queue.get(timeout=0) as item:
                arrived = [to_jax(array, self._device) for array in item]
            self._delivered.append([weakref.ref(array) for array in arrived])
        return jax.tree.unflatten(batch.structure, fill_in(batch.put, arrived))


def prefetch(
    iterator: Iterable[Any], device_or_sharding: Any = None, depth: int = 2, max_bytes: int | None = None
) -> Prefetch:
    """Iterates over trees of host arrays as trees of JAX arrays, `depth` batches ahead.

    Numpy leaves travel through a weir queue: their copies wait for no compute, and no thread drives them. The
    source is advanced by the caller's thread, when a batch is asked for. `max_bytes`: the most device memory, and pinned
    memory again, for the batches ahead and those that the program still holds; None: room for twice the first. What
    does not fit, other leaves, and shardings over several devices go by jax.device_put, ahead likewise.
    The source may overwrite what travels through the queue when it is asked for the next batch. Its exception comes
    after all batches before it.
    """
    return Prefetch(iterator, device_or_sharding, depth, max_bytes)
