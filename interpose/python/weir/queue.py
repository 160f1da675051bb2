# SPDX-License-Identifier: Apache-2.0
"""A bounded prefetch queue from host memory into device memory.

    with weir.Queue(item_bytes=1 << 20, items=4) as q:
        threading.Thread(target=fill, args=(q,)).start()      # q.push(batch) ...; q.close()
        for item in q:
            x = torch.from_dlpack(item)                       # its stream waits for the copy; the host for nothing
            train(x)
"""

from __future__ import annotations

import collections
import ctypes
import threading
from typing import Any, Iterator, Sequence

from . import _abi, _arrays, _streams
from ._device import DeviceArray, Lease
from ._lib import check, lib, need_memory, python_lib, timeout_ns
from .errors import Closed, Poisoned
from .pool import Pool
from .pool import pool as pool_of

ORDERS = ("fifo", "any")
_BORROW = 1  # WEIR_PUSH_BORROW
_ALIGNMENT = 256  # of each array in an item, as GPU code likes it
_PADDING = ctypes.create_string_buffer(_ALIGNMENT)


class Item:
    """What was pushed, in device memory. `item[0]`, `item[1]`, ... are its arrays; with a single one the item itself
    speaks __dlpack__ and __cuda_array_interface__.

    Its slot is free for another once it was released, or is gone with its arrays; and the tensors made from it
    are gone; and the streams that read have passed what they had queued by then.
    """

    def __init__(self, lease: Lease, key: Any, arrays: Sequence[DeviceArray]):
        self._lease = lease
        self.key = key
        """What push was given as key."""
        self.arrays = tuple(arrays)

    def use_on(self, stream: _streams.Stream) -> None:
        """Work that is queued on that stream from now on, up to the release, reads the item, too: its copy comes first
        there. DLPack does this by itself."""
        self._lease.read_on(_streams.handle(stream))

    def release(self) -> None:
        """Reads are all queued by now. Tensors made from it keep the slot. Again: no-op. Never waits."""
        self._lease.drop()

    def __len__(self) -> int:
        return len(self.arrays)

    def __getitem__(self, index: int) -> DeviceArray:
        return self.arrays[index]

    def __iter__(self) -> Iterator[DeviceArray]:
        return iter(self.arrays)

    def __enter__(self) -> Item:
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def _only(self) -> DeviceArray:
        if len(self.arrays) != 1:
            raise BufferError(f"the item has {len(self.arrays)} arrays: take item[0] and so on")
        return self.arrays[0]

    def __dlpack__(self, **options: Any) -> Any:
        return self._only().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._only().__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict:
        if len(self.arrays) != 1:
            raise AttributeError("the item has several arrays")
        return self.arrays[0].__cuda_array_interface__

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self._only().__array__(dtype, copy)

    def numpy(self) -> Any:
        """The values of the only array, in a numpy array; waits for them."""
        return self._only().numpy()


class Queue:
    """Producers push host arrays from any thread; consumers iterate. Every wait releases the GIL."""

    def __init__(
        self,
        item_bytes: int,
        items: int = 2,
        *,
        device: int = 0,
        pool: Pool | None = None,
        stream: _streams.Stream = None,
        order: str = "fifo",
        device_bytes: int = 0,
        pinned_bytes: int = 0,
    ):
        """`item_bytes`: the largest item, each of its arrays rounded up to 256. `items`: slots; one of them is with
        the consumer. `stream`: on which items are acquired unless `get` says otherwise; None is the legacy default
        stream. `order`: "fifo", or "any" (the first that is complete). `device_bytes`, `pinned_bytes`: limits; 0 is
        items * item_bytes."""
        options = _abi.QueueOptions(item_bytes=item_bytes, items=items, order=ORDERS.index(order))
        options.device_bytes, options.pinned_bytes = device_bytes, pinned_bytes
        self.pool = pool or pool_of(device)
        self._stream = _streams.handle(stream)
        handle = ctypes.c_void_p()
        check(lib.weir_queue_open(self.pool.handle, ctypes.byref(options), ctypes.byref(handle)))
        self._handle = handle.value
        self._house = need_memory(python_lib.weir_house_new(handle))
        _let_go()
        self._lock = threading.Lock()
        self._forms: dict[int, tuple[Any, list[_arrays.Form]]] = {}  # of items under way, by the C library's key
        self._next = 0
        self._lent: collections.deque[tuple[int, list[_arrays.HostArray]]] = collections.deque()
        self._failure: BaseException | None = None

    # ---- producers

    def push(self, arrays: Any, *, key: Any = None, borrow: bool = False, timeout: float | None = None) -> None:
        """Queues the copy of one array, or of a list or tuple of arrays as one item. They may be overwritten when it
        returns; with `borrow` those in pinned memory are read in place, to be left alone until `wait_borrowed`, and kept
        until then. Waits, as long as `timeout` seconds allow, for a slot that no consumer holds.
        Errors: Timeout (WouldBlock with 0), Closed, Poisoned, TooLarge (over item_bytes)."""
        sources = [_arrays.of(a) for a in (arrays if isinstance(arrays, (list, tuple)) else [arrays])]
        spans = _spans_of(sources)
        number = self._note(key, [source.form for source in sources])
        flags, ticket = (_BORROW if borrow else 0), ctypes.c_uint64()
        put = (self._handle, number, spans, len(spans), flags, timeout_ns(timeout), ctypes.byref(ticket))
        try:
            check(lib.weir_queue_put(*put))
        except BaseException:
            self._take_note(number)
            ticket.value = 0  # of all pushes: a failed one may have begun to read
            raise
        finally:
            if borrow:
                self._lent.append((ticket.value, sources))
                self._forget_read()

    def wait_borrowed(self, timeout: float | None = None) -> None:
        """Until all arrays lent so far may be overwritten. Waits for copies, not for compute. Errors: Timeout."""
        check(lib.weir_queue_borrowed(self._handle, 0, timeout_ns(timeout)))
        self._forget_read()

    def close(self) -> None:
        """No more items: consumers get what was pushed, then their loops end. Again: no-op."""
        lib.weir_queue_close(self._handle)

    def fail(self, error: BaseException) -> None:
        """The source has failed: consumers get what was pushed before, then this exception. The first one stays."""
        with self._lock:
            self._failure = self._failure or error
        lib.weir_queue_poison(self._handle, 1, repr(error).encode()[:255])

    # ---- consumers

    def get(self, *, stream: _streams.Stream = None, timeout: float | None = None) -> Item:
        """The next item, for use on `stream` (the queue's, if None), which waits for its copy. The host waits, as long
        as `timeout` seconds allow, for the push alone. Errors: Timeout, Closed (no more), what `fail` was given."""
        home = self._stream if stream is None else _streams.handle(stream)
        held = _abi.Item()
        try:
            check(lib.weir_queue_acquire(self._handle, home, timeout_ns(timeout), ctypes.byref(held)))
        except Poisoned as error:
            if self._failure is not None:
                raise self._failure from error
            raise
        key, forms = self._take_note(held.key)
        return _item_of(self._lease_of(held, home), key, held.device, forms)

    def _lease_of(self, held: _abi.Item, home: int) -> Lease:
        with self._lock:  # destroy is not to take the house away meanwhile
            lease = self._house and python_lib.weir_lease_item(self._house, ctypes.byref(held), home)
            destroyed = not self._house
        if not lease:
            lib.weir_queue_release(self._handle, ctypes.byref(held), None, 0)
        if destroyed:
            raise Closed("the queue was destroyed")
        return Lease(need_memory(lease), self.pool, home)

    def __iter__(self) -> Iterator[Item]:
        """Items until the queue is closed and empty. Each is released at the next round, but for the tensors made
        from it; one whose __cuda_array_interface__ was read, when it is gone. `get` gives items to keep."""
        while True:
            try:
                item = self.get()
            except Closed:
                return
            yield item
            if not item._lease.lent:
                item.release()
            del item

    # ---- both

    def __len__(self) -> int:
        """Items pushed and not delivered."""
        n = ctypes.c_size_t()
        check(lib.weir_queue_size(self._handle, ctypes.byref(n)))
        return n.value

    def __bool__(self) -> bool:
        return True  # an empty queue is one, too

    def stats(self) -> dict[str, int]:
        """The counters of weir_queue_stats: items, bytes, waits by cause."""
        stats = _abi.QueueStats()
        check(lib.weir_queue_get_stats(self._handle, ctypes.byref(stats)))
        return {name: getattr(stats, name) for name, _ in stats._fields_[1:]}

    def destroy(self) -> None:
        """Closes, drops what was not delivered, and wakes whoever waits in a call, with Closed. Items and tensors
        that are held stay readable; with the last of them the queue's memory goes back. Never waits for the GPU."""
        with self._lock:
            house, self._house = self._house, None
        if not house:
            return
        lib.weir_queue_close(self._handle)
        lib.weir_queue_clear(self._handle)
        _leavers.append((self, house))
        _let_go()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: Any) -> None:
        self.destroy()

    def __del__(self) -> None:
        if getattr(self, "_house", None):
            self.destroy()

    def _forget_read(self) -> bool:
        """Lent arrays whose copies have passed are the caller's alone again. True: none is left."""
        with self._lock:
            while self._lent and lib.weir_queue_borrowed(self._handle, self._lent[0][0], 0) == 0:
                self._lent.popleft()
            return not self._lent

    def _note(self, key: Any, forms: list[_arrays.Form]) -> int:
        with self._lock:
            self._next += 1
            self._forms[self._next] = (key, forms)
            return self._next

    def _take_note(self, number: int) -> tuple[Any, list[_arrays.Form]]:
        with self._lock:
            return self._forms.pop(number)


# Destroyed queues. Those whose copies read lent arrays are kept, with the arrays, until another begins or ends.
_leavers: collections.deque[tuple[Queue, int]] = collections.deque()


def _let_go() -> None:
    for _ in range(len(_leavers)):
        try:
            queue, house = _leavers.popleft()
        except IndexError:  # another thread was faster
            return
        if queue._forget_read():
            python_lib.weir_house_leave(house)
        else:
            _leavers.append((queue, house))


def _padding(nbytes: int) -> int:
    return -nbytes % _ALIGNMENT


def _spans_of(sources: Sequence[_arrays.HostArray]) -> ctypes.Array:
    """The arrays, each but the last padded. A queue has no empty items, so one without bytes gets some."""
    spans = []
    for source in sources:
        spans += [(source.address, source.form.nbytes), (ctypes.addressof(_PADDING), _padding(source.form.nbytes))]
    if sum(nbytes for _, nbytes in spans) == 0:
        spans.append((ctypes.addressof(_PADDING), 1))
    elif spans:
        spans.pop()
    return (_abi.Span * len(spans))(*spans)


def _item_of(lease: Lease, key: Any, address: int, forms: Sequence[_arrays.Form]) -> Item:
    arrays = []
    for form in forms:
        arrays.append(DeviceArray(lease, address, form))
        address += form.nbytes + _padding(form.nbytes)
    return Item(lease, key, arrays)
