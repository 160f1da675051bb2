# SPDX-License-Identifier: Apache-2.0
"""Finds memory that PyTorch's streams use without a word. See weir.torch.detect.

Each tensor's memory has a home, the stream that it was allocated on. A use by another stream is right where record_stream
declares it, or where the home has been made to wait for it by the time that the memory is freed. So uses are counted by
stream, and what is ordered behind what is kept as a vector of those counts for each stream and for the host, moved on by
events, waits and synchronisations. When memory is freed whose home is not behind an undeclared use, that is reported: with
reuse="completed" it may be handed out too early.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import warnings
import weakref
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Order = dict[int, int]  # by stream: how many of its operations are known to come before

_SWEEP = 4096  # memory that was seen is forgotten, where it is gone, each time so much more was seen


@dataclass
class Use:
    count: int  # the stream's operation of that number
    operation: str
    site: str


@dataclass
class Seen:
    """Memory that was met."""

    life: StorageWeakRef
    nbytes: int
    home: int
    declared: set[int] = field(default_factory=set)
    users: dict[int, Use] = field(default_factory=dict)  # of streams that nobody has declared: the last one


class Uses:
    """What was used where. `report` gets a text for each place in the program, once."""

    def __init__(self, report: Callable[[str], None]):
        self._report = report
        self._counts: Order = {}
        self._before: dict[int, Order] = {}  # by stream
        self._before_host: Order = {}
        self._events: weakref.WeakKeyDictionary[Any, Order] = weakref.WeakKeyDictionary()
        self._seen: dict[int, Seen] = {}
        self._used: dict[int, Seen] = {}  # of those, what has users that nobody has declared
        self._sites: set[tuple[str, str]] = set()
        self._sweep_at = _SWEEP
        self._lock = threading.RLock()  # autograd's threads come here, too

    # ---- order

    def _order(self, stream: int) -> Order:
        order = self._before.setdefault(stream, {})
        _merge(order, self._before_host)
        order[stream] = self._counts.get(stream, 0)
        return order

    def recorded(self, event: Any, stream: int) -> None:
        with self._lock:
            self._events[event] = dict(self._order(stream))

    def waited(self, stream: int, event: Any) -> None:
        """What comes on the stream from now on comes behind the event."""
        with self._lock:
            self.look()
            _merge(self._order(stream), self._events.get(event, {}))

    def host_saw(self, event: Any) -> None:
        with self._lock:
            self.look()
            _merge(self._before_host, self._events.get(event, {}))

    def host_waited(self, stream: int | None) -> None:
        """For the stream, or for all."""
        with self._lock:
            self.look()
            for each in [stream] if stream is not None else list(self._counts):
                _merge(self._before_host, self._order(each))

    # ---- memory

    def used(self, storages: list[Any], stream: int, operation: str, home_of: Callable[[Any], int | None]) -> None:
        """An operation that is queued on the stream reads or writes them. `home_of` tells the home of what is new; None:
        the stream itself."""
        with self._lock:
            self.look()
            self._counts[stream] = self._counts.get(stream, 0) + 1
            for storage in storages:
                seen = self._entry(storage, stream, home_of)
                if stream != seen.home and stream not in seen.declared:
                    seen.users[stream] = Use(self._counts[stream], operation, _site())
                    self._used[storage._cdata] = seen

    def declared(self, storage: Any, stream: int, home_of: Callable[[Any], int | None]) -> None:
        """By record_stream: all its uses up to the free."""
        with self._lock:
            seen = self._entry(storage, stream, home_of)
            seen.declared.add(stream)
            seen.users.pop(stream, None)

    def _entry(self, storage: Any, stream: int, home_of: Callable[[Any], int | None]) -> Seen:
        seen = self._seen.get(storage._cdata)  # stays its own as long as the weak reference does
        if seen is None or seen.life.expired():
            home = home_of(storage)
            seen = Seen(StorageWeakRef(storage), storage.nbytes(), stream if home is None else home)
            self._seen[storage._cdata] = seen
            if len(self._seen) >= self._sweep_at:
                self._sweep()
        return seen

    def _sweep(self) -> None:
        self._seen = {key: seen for key, seen in self._seen.items() if not seen.life.expired()}
        self._sweep_at = len(self._seen) + _SWEEP

    def look(self) -> None:
        """Reports what was freed since the last look. Comes before any change of the order."""
        with self._lock:
            for key, seen in list(self._used.items()):
                if seen.life.expired():
                    del self._used[key]
                    self._judge(seen)

    def _judge(self, seen: Seen) -> None:
        home = self._order(seen.home)
        for stream, use in seen.users.items():
            where = (use.operation, use.site)
            if home.get(stream, 0) < use.count and where not in self._sites:
                self._sites.add(where)
                self._report(
                    f"{use.operation} at {use.site} used {seen.nbytes} bytes of stream {seen.home:#x} on stream {stream:#x}, and "
                    "they were freed with no record_stream and before their own stream waited for it"
                )


def _merge(into: Order, other: Order) -> None:
    for stream, count in other.items():
        if into.get(stream, 0) < count:
            into[stream] = count


def _site() -> str:
    """Where the program stands: the innermost frame that is neither PyTorch's nor weir's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("torch", "weir"):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Watch(TorchDispatchMode):
    """Tells a Uses of each operation of PyTorch on tensors of that type of device. What other libraries queue is not
    seen."""

    def __init__(self, uses: Uses, device_type: str, stream_of: Callable[[torch.device], int],
                 home_of: Callable[[Any], int | None]):
        super().__init__()
        self._uses, self._type, self._stream_of, self._home_of = uses, device_type, stream_of, home_of

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.record_stream.default:
            self._uses.declared(args[0].untyped_storage(), _number(args[1]), self._home_of)
            return function(*args, **kwargs or {})
        result = function(*args, **kwargs or {})
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if self._is_ours(leaf)]
        if tensors:
            storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors}
            stream = self._stream_of(tensors[-1].device)  # of the result, where there is one
            self._uses.used(list(storages.values()), stream, str(function), self._home_of)
        return result

    def _is_ours(self, leaf: Any) -> bool:
        return isinstance(leaf, torch.Tensor) and leaf.device.type == self._type and leaf.layout == torch.strided


def _number(stream: Any) -> int:
    """A stream as this module knows it: its handle. PyTorch hands dispatch a plain torch.Stream."""
    if not hasattr(stream, "cuda_stream"):
        stream = torch.cuda.Stream(stream_id=stream.stream_id, device_index=stream.device_index,
                                   device_type=stream.device_type)
    return stream.cuda_stream


@contextlib.contextmanager
def order_of_cuda(uses: Uses) -> Iterator[None]:
    """While inside, `uses` hears of what PyTorch's events and streams order. Waits of other libraries are not heard."""
    event, stream = torch.cuda.Event, torch.cuda.Stream

    def current(given: Any) -> int:
        return _number(given or torch.cuda.current_stream())

    def seen(self: Any, passed: Any) -> Any:
        if passed is not False:
            uses.host_saw(self)
        return passed

    changes: list[tuple[Any, str, Callable[..., Any]]] = [
        (event, "record", lambda plain, self, stream=None: (plain(self, stream), uses.recorded(self, current(stream)))[0]),
        (event, "wait", lambda plain, self, stream=None: (plain(self, stream), uses.waited(current(stream), self))[0]),
        (event, "query", lambda plain, self: seen(self, plain(self))),
        (event, "synchronize", lambda plain, self: seen(self, plain(self))),
        (stream, "synchronize", lambda plain, self: (plain(self), uses.host_waited(self.cuda_stream))[0]),
        (torch.cuda, "synchronize", lambda plain, *a, **k: (plain(*a, **k), uses.host_waited(None))[0]),
    ]
    kept = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for (owner, name, plain), (_, _, change) in zip(kept, changes):
        setattr(owner, name, _bind(change, plain))
    try:
        yield
    finally:
        for owner, name, plain in kept:
            setattr(owner, name, plain)


def _bind(change: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: change(plain, *args, **kwargs)


@contextlib.contextmanager
def detect(home_of: Callable[[Any], int | None]) -> Iterator[list[str]]:
    """See weir.torch.detect."""
    reports: list[str] = []

    def report(text: str) -> None:
        reports.append(text)
        warnings.warn(f"weir: {text}", RuntimeWarning, stacklevel=2)

    uses = Uses(report)
    watch = Watch(uses, "cuda", lambda device: torch.cuda.current_stream(device).cuda_stream, home_of)
    with order_of_cuda(uses), watch:
        yield reports
    uses.look()
