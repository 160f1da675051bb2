# SPDX-License-Identifier: Apache-2.0
"""What the framework modules share: the C adapters, and the pool that all of them draw on."""

from __future__ import annotations

import ctypes
import warnings
from ctypes import POINTER, c_double, c_int, c_int64, c_size_t, c_uint64, c_void_p
from typing import Any, Callable

from . import _abi, _streams
from ._lib import check, folder, lib, python_lib


class SharedBlock(ctypes.Structure):
    """weir_shared_block"""

    _fields_ = [("address", c_uint64), ("bytes", c_size_t), ("stream", c_void_p)]


_abi.declare(
    lib,
    {
        "weir_shared_pool": (c_int, [c_int, POINTER(c_void_p)]),
        "weir_shared_limit": (c_int, [c_int, c_size_t, c_double]),
        "weir_shared_reuse": (c_int, [c_int]),
        "weir_torch_find": (c_int, [c_void_p, POINTER(SharedBlock)]),
        "weir_shared_alloc": (c_int, [c_int, c_size_t, c_void_p, c_int64, POINTER(c_uint64)]),
        "weir_shared_use": (c_int, [c_int, c_uint64, c_void_p]),
        "weir_torch_on_failure": (None, [c_void_p]),
    },
)

class Interpreter(ctypes.Structure):
    """weir_interpreter: functions of Python's C interface, by address."""

    _fields_ = [(name, c_void_p) for name in ("PyCFunction_NewEx", "PyObject_CallOneArg", "PyTuple_GetItem", "Py_DecRef")]

    def __init__(self) -> None:
        super().__init__(*(address_of(ctypes.pythonapi, name) for name, _ in self._fields_))


# Called with the interpreter's lock, unlike all else.
_with_lock = ctypes.PyDLL(python_lib._name)
_with_lock.weir_cupy_allocator.restype = ctypes.py_object
_with_lock.weir_cupy_allocator.argtypes = [POINTER(Interpreter), ctypes.py_object]


def allocator(malloc: Callable[[int], Any], handler: Callable[[int], Any]) -> Callable[[int], Any]:
    """A function of `size` that returns malloc(size), or what handler(size) does if weir_cupy_guarded_malloc failed in
    it; for one that is called often, since it has no frame of Python code."""
    return _with_lock.weir_cupy_allocator(ctypes.byref(Interpreter()), (malloc, handler))


PATIENCE_NS = 60 * 10**9  # WEIR_SHARED_PATIENCE_NS


def library_path() -> str:
    """The C library's file, for frameworks that load it by themselves."""
    return str(folder() / "libweir.so.0")


def address_of(library: ctypes.CDLL, name: str) -> int:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value


def shared_pool(device: int) -> int:
    """The handle of the pool that all adapters of the process share, opened by the first call."""
    handle = c_void_p()
    check(lib.weir_shared_pool(device, ctypes.byref(handle)))
    return handle.value


def stats(device: int = 0) -> dict[str, int]:
    """The shared pool's counters, as Pool.stats."""
    found = _abi.Stats()
    check(lib.weir_pool_stats(shared_pool(device), ctypes.byref(found)))
    return {name: getattr(found, name) for name, _ in found._fields_[1:]}


def decline(framework: str, reason: str) -> bool:
    """Says why a framework keeps its own allocator, with which the program goes on."""
    warnings.warn(f"weir does not serve {framework}: {reason}", RuntimeWarning, stacklevel=3)
    return False


class Memory:
    """A block of the shared pool, freed with its last reference, on the stream that it was allocated on.
    Errors: weir.OutOfMemory and its kind."""

    __slots__ = ("_pool", "_free", "_touch", "_users", "address", "device", "nbytes", "stream")

    def __init__(self, nbytes: int, device: int, stream: _streams.Stream):
        self._pool = None  # until there is something to free
        self.stream = _streams.handle(stream)
        block = c_uint64()
        check(lib.weir_shared_alloc(device, nbytes, self.stream, PATIENCE_NS, ctypes.byref(block)))
        self.address, self.device, self.nbytes = block.value, device, nbytes
        self._free, self._touch, self._users = lib.weir_free, lib.weir_touch, set()
        self._pool = shared_pool(device)

    def use(self, stream: _streams.Stream) -> None:
        """What is queued on `stream` until the block is freed uses it, too."""
        user = _streams.handle(stream)
        if user != self.stream:
            check(self._touch(self._pool, self.address, user, 0))
            self._users.add(user)

    def free(self, stream: _streams.Stream = None) -> None:
        """`stream`: on which its last use is queued; None: where it was allocated. Again: no-op. Never waits. A block
        whose users can't be asked any more, since their stream is gone, is kept for good."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if all(self._touch(pool, self.address, user, 0) == 0 for user in self._users):
            self._free(pool, self.address, self.stream if stream is None else _streams.handle(stream))

    __del__ = free
