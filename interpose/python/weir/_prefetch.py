# SPDX-License-Identifier: Apache-2.0
"""Batches of PyTorch on their way to a GPU. See weir.torch.prefetch."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any, Iterator

import torch

from .errors import Closed
from .queue import Item, Queue

_ALIGNMENT = 256  # of each array in an item
_ROOM = 4  # a larger batch gets a queue with a quarter more room than it needs


class Prefetch:
    """A thread takes batches from the loader and queues their copies, which wait for no compute; iterating gives the same
    structures with tensors on the device, in order. Each tensor is ready on the stream that is current when it is
    taken, and its memory stays until it is dropped and that stream has passed what it had queued by then: no
    record_stream. What the loader raises is raised after the batches before it.

    One iteration at a time; a new one starts the loader anew. Ends with the loop, `close`, or a `with` block."""

    def __init__(self, loader: Any, device: Any, depth: int, max_bytes: int):
        """`depth`: batches on their way or ready. `max_bytes`: of all of them, on the device; 0: as the batches ask."""
        if depth < 1:
            raise ValueError(f"a depth of {depth} is not 1 or more")
        self._loader, self._depth, self._max_bytes = loader, depth, max_bytes
        self._device = torch.device(device).index or 0
        self._run: _Run | None = None

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        self.close()
        run = self._run = _Run(self._loader, self._device, self._depth, self._max_bytes)
        try:
            yield from run.batches()
        finally:
            run.close()

    def close(self) -> None:
        """Stops the iteration that is under way. Tensors that were taken stay. Again: no-op."""
        run, self._run = self._run, None
        if run is not None:
            run.close()

    def __enter__(self) -> Prefetch:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Run:
    """One pass over the loader. Batches that outgrow their queue go through a new one, behind it."""

    def __init__(self, loader: Any, device: int, depth: int, max_bytes: int):
        self._device, self._depth, self._max_bytes = device, depth, max_bytes
        self._queues: queue.SimpleQueue[Queue | None] = queue.SimpleQueue()
        self._open: list[Queue] = []
        self._lock = threading.Lock()
        self._closed = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._fill, args=(loader,), name="weir-prefetch", daemon=True)
        self._thread.start()

    def batches(self) -> Iterator[Any]:
        while (current := self._queues.get()) is not None:
            while True:
                try:
                    item = current.get(stream=self._stream())
                except Closed:
                    break
                batch = _rebuild(item)
                item.release()
                del item
                yield batch
                del batch
            current.destroy()
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for each in self._open:
                each.destroy()  # wakes the thread, if it waits for room
        self._thread.join()

    def _stream(self) -> Any:
        return torch.cuda.current_stream(self._device) if torch.cuda.is_available() else None

    def _fill(self, loader: Any) -> None:
        current, room = None, 0
        try:
            for batch in loader:
                arrays: list[Any] = []
                shape = _take_apart(batch, arrays)
                nbytes = sum(-(-a.nbytes // _ALIGNMENT) * _ALIGNMENT for a in arrays) or _ALIGNMENT
                if current is None or nbytes > room:
                    room = self._room_for(nbytes)
                    current = self._next_queue(current, room)
                current.push(arrays, key=shape)
                del batch, arrays
        except BaseException as error:  # whatever a loader raises is its consumer's
            self._failure = None if self._closed else error
        if current is not None:
            with contextlib.suppress(Closed):
                current.close()
        self._queues.put(None)

    def _room_for(self, nbytes: int) -> int:
        most = self._max_bytes // self._depth
        if most and nbytes > most:
            raise ValueError(f"a batch of {nbytes} bytes is more than max_bytes / depth, {most}")
        return most or nbytes + nbytes // _ROOM

    def _next_queue(self, last: Queue | None, room: int) -> Queue:
        if last is not None:
            last.close()
        with self._lock:
            if self._closed:
                raise Closed("the iteration was stopped")
            fresh = Queue(room, self._depth + 1, device=self._device)
            self._open.append(fresh)
        self._queues.put(fresh)
        return fresh


class _Leaf:
    """Stands for a tensor in the structure of a batch."""

    __slots__ = ("index", "dtype", "shape")

    def __init__(self, index: int, tensor: torch.Tensor):
        self.index, self.dtype, self.shape = index, tensor.dtype, tensor.shape


def _take_apart(batch: Any, arrays: list[Any]) -> Any:
    """The structure of a batch, its tensors in `arrays` as bytes; anything else stays as it is."""
    if hasattr(batch, "__array_interface__"):
        batch = torch.as_tensor(batch)
    if isinstance(batch, torch.Tensor) and batch.device.type == "cpu" and batch.layout == torch.strided:
        arrays.append(batch.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
        return _Leaf(len(arrays) - 1, batch)
    return _map(batch, lambda part: _take_apart(part, arrays))


def _rebuild(item: Item) -> Any:
    def on_device(part: Any) -> Any:
        if isinstance(part, _Leaf):
            return torch.from_dlpack(item[part.index]).view(part.dtype).reshape(part.shape)
        return _map(part, on_device)

    return on_device(item.key)


def _map(part: Any, change: Any) -> Any:
    """A list, tuple, named tuple or dict with its members changed; anything else as it is."""
    if isinstance(part, dict):
        return {key: change(value) for key, value in part.items()}
    if isinstance(part, tuple) and hasattr(part, "_fields"):
        return type(part)(*(change(value) for value in part))
    if isinstance(part, (list, tuple)):
        return type(part)(change(value) for value in part)
    return part
