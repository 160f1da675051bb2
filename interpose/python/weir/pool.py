# SPDX-License-Identifier: Apache-2.0
"""Device memory: one pool for each device and process."""

from __future__ import annotations

import ctypes
import json
import os
import threading
from typing import Any

from . import _abi, _arrays, _streams
from ._device import DeviceArray, Lease
from ._lib import check, lib, need_memory, python_lib
from .copier import Copier
from .errors import Closed, NotYet

REUSES = ("default", "completed", "owner", "device_wait", "host_wait")


class Block:
    """A block of device memory, freed on the stream it was allocated on, by `free`, at the end of a `with`, or with
    the last reference to it and to its DLPack tensors."""

    def __init__(self, lease: Lease, address: int, nbytes: int):
        self._lease = lease
        self.address = address
        self.nbytes = nbytes

    @property
    def handle(self) -> int:
        """The lease's, for C code. BufferError: it was given back."""
        return self._lease._live()

    def use_on(self, stream: _streams.Stream) -> None:
        """Work on that stream reads or writes the block, too; ordering it behind the block's own stream is yours.
        The block is not reused before what is queued there by its free has passed."""
        self._lease.read_on(_streams.handle(stream))

    def view(self, shape: tuple[int, ...], dtype: Any = "uint8") -> DeviceArray:
        """A dense array at the block's beginning. `dtype`: anything numpy takes."""
        import numpy

        kind = numpy.dtype(dtype)
        form = _arrays.Form(tuple(shape), kind.str, kind.name, kind.itemsize)
        if form.nbytes > self.nbytes:
            raise ValueError(f"{form.nbytes} bytes don't fit into {self.nbytes}")
        return DeviceArray(self._lease, self.address, form)

    def free(self) -> None:
        """Never waits. DLPack tensors made from it keep the memory. Again: no-op."""
        self._lease.drop()

    def __enter__(self) -> Block:
        return self

    def __exit__(self, *_: Any) -> None:
        self.free()


class Pool:
    """Memory of a device. Opened by `weir.pool`, which gives everyone the same; your own with `Pool(...)`.

    No call waits for the GPU. Never closed unless you say so: what it holds goes back with the process.
    """

    def __init__(self, device: int = 0, limit_bytes: int = 0, kind: str | None = None, reuse: str = "default"):
        """`limit_bytes` 0: the device's memory. `kind`: None is $WEIR_DEVICE, else "cuda"; "sim" is a simulation."""
        options = _abi.PoolOptions(device=device, limit_bytes=limit_bytes, reuse=REUSES.index(reuse))
        options.device_kind = kind.encode() if kind else None
        handle = ctypes.c_void_p()
        check(lib.weir_pool_open(ctypes.byref(options), ctypes.byref(handle)))
        self._set_up(handle.value, device, kind)

    @classmethod
    def _of(cls, handle: int, device: int) -> Pool:
        """A pool that is open already."""
        made = cls.__new__(cls)
        made._set_up(handle, device, None)
        return made

    def _set_up(self, handle: int, device: int, kind: str | None) -> None:
        self.handle = handle
        self.device = device
        self.simulated = (kind or os.environ.get("WEIR_DEVICE") or "cuda").startswith("sim")
        self._copier: Copier | None = None
        self._lock = threading.Lock()

    @property
    def copier(self) -> Copier:
        """The pool's transfer engine, opened by its first use (some milliseconds)."""
        with self._lock:
            if self._copier is None:
                self._copier = Copier(self)
            return self._copier

    def alloc(self, nbytes: int, stream: _streams.Stream = None, *, alignment: int = 0) -> Block:
        """A block for use on `stream`, 512-byte aligned unless told otherwise. OutOfMemory and its kind."""
        home = _streams.handle(stream)
        if home == _streams.PER_THREAD:
            raise ValueError("a block may be freed by any thread: allocate it on a stream that all can name")
        options, address = _abi.AllocOptions(alignment=alignment), ctypes.c_uint64()
        check(lib.weir_alloc_with(self.handle, nbytes, home, ctypes.byref(options), ctypes.byref(address)))
        lease = python_lib.weir_lease_block(self.handle, address, home)
        if not lease:
            lib.weir_free(self.handle, address, home)
        return Block(Lease(need_memory(lease), self, home), address.value, nbytes)

    def touch(self, address: int, stream: _streams.Stream) -> None:
        """Work queued on `stream` so far uses the block at that address, too. For Blocks: Block.use_on."""
        check(lib.weir_touch(self.handle, address, _streams.handle(stream), 0))

    def retire(self, stream: _streams.Stream) -> None:
        """The stream will be destroyed: its memory serves others."""
        check(lib.weir_stream_retire(self.handle, _streams.handle(stream)))

    def trim(self, keep_bytes: int = 0) -> int:
        """Gives idle memory back to the driver until `keep_bytes` are left. The bytes that went back."""
        freed = ctypes.c_size_t()
        check(lib.weir_trim(self.handle, keep_bytes, ctypes.byref(freed)))
        return freed.value

    def enable_peer(self, device: int) -> None:
        """Work of another device may use this pool's memory from now on."""
        check(lib.weir_pool_peer_enable(self.handle, device))

    def stats(self) -> dict[str, int]:
        """The counters of weir_stats: live + pending + cached + idle == reserved, in bytes."""
        stats = _abi.Stats()
        check(lib.weir_pool_stats(self.handle, ctypes.byref(stats)))
        return {name: getattr(stats, name) for name, _ in stats._fields_[1:]}

    def snapshot(self) -> dict:
        """Where every byte is: segments, and by stream its pieces of memory."""
        text = ctypes.c_void_p()
        check(lib.weir_pool_snapshot(self.handle, ctypes.byref(text)))
        try:
            return json.loads(ctypes.string_at(text))
        finally:
            _free(text)

    @property
    def limit_bytes(self) -> int:
        """Reserved never exceeds it."""
        return self.stats()["limit_bytes"]

    def close(self) -> bool:
        """No more allocs; frees are accepted. True: all memory has gone back to the driver. False: live blocks, or freed
        ones that the GPU has not passed yet, still hold some; the last free, or another close, finishes it."""
        with self._lock:
            copier, self._copier = self._copier, None
        if copier:
            copier.close()
        try:
            check(lib.weir_pool_close(self.handle))
        except NotYet:
            return False
        except Closed:
            pass  # finished before
        return True


_free = ctypes.CDLL(None).free
_free.argtypes, _free.restype = [ctypes.c_void_p], None

_pools: dict[int, Pool] = {}
_lock = threading.Lock()


def pool(device: int = 0) -> Pool:
    """The process's pool of a device, opened by the first call, with OWNER reuse: the one that the C library and all
    adapters of frameworks share."""
    with _lock:
        if device not in _pools:
            handle = ctypes.c_void_p()
            check(lib.weir_shared_pool(device, ctypes.byref(handle)))
            _pools[device] = Pool._of(handle.value, device)
        return _pools[device]


def limit(device: int, nbytes: int) -> None:
    """The most memory that the process's pool of a device takes; 0: the device's, or what it was opened with. Once it is
    open, at any time: NotYet where more is in use than that, and the limit then is what is in use; again, later, it goes
    on. Never waits."""
    check(lib.weir_shared_limit(device, nbytes, 0.0))
