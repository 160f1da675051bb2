# SPDX-License-Identifier: Apache-2.0
"""An array in device memory that others read through DLPack or the CUDA array interface."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from . import _abi, _arrays, _streams
from ._lib import check, lib, need_memory, python_lib

if TYPE_CHECKING:
    from .pool import Pool

_CPU, _CUDA = 1, 2  # DLPack's device types

_python = ctypes.pythonapi
_new_capsule = _python.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_destroy_capsule = ctypes.cast(python_lib.weir_capsule_destroy, ctypes.c_void_p)
python_lib.weir_capsule_set_up(
    ctypes.cast(_python.PyCapsule_IsValid, ctypes.c_void_p), ctypes.cast(_python.PyCapsule_GetPointer, ctypes.c_void_p)
)


class Lease:
    """The right to read a piece of device memory. It ends when this object and all DLPack tensors made from it have;
    then the memory is given back behind all that the readers' streams have queued. Made by Queue and Pool."""

    def __init__(self, handle: int, pool: Pool, stream: int):
        self._handle = handle
        self._drop = python_lib.weir_lease_drop  # there still while the interpreter ends
        self.pool = pool
        self.stream = stream
        self.joined: set[int] = set()
        """Streams that wait already for the copy which its arrays name."""
        self.lent = False
        """An address was given to somebody who keeps this object instead of a reference of his own."""

    def read_on(self, stream: int) -> None:
        """That stream may read from now on: an item's copy comes first there."""
        status = python_lib.weir_lease_read_on(self._live(), stream)
        if status and stream == _streams.PER_THREAD:
            raise BufferError("the per-thread default stream: acquire on it, in the thread that reads")
        check(status)

    def export(self, form: _abi.Form, versioned: bool) -> int:
        return need_memory(python_lib.weir_lease_export(self._live(), ctypes.byref(form), versioned))

    def drop(self) -> None:
        """Gives up this reference. Again: no-op."""
        handle, self._handle = self._handle, None
        if handle:
            self._drop(handle)

    def _live(self) -> int:
        if not self._handle:
            raise BufferError("this memory was given back")
        return self._handle

    __del__ = drop


class DeviceArray:
    """A dense array in device memory, readable on `stream` at once, and through the protocols below by others.

    It does not own the memory: its item or block does, and so does each DLPack tensor made from it.
    """

    def __init__(self, lease: Lease, address: int, form: _arrays.Form, ticket: _abi.Ticket | None = None):
        self._lease = lease
        self._form = form
        self._ticket = ticket  # a copy into it, which its own stream does not wait for
        self.address = address
        """The device address."""
        self.shape = form.shape
        self.dtype = form.name
        """numpy's name of the type: "float32"."""
        self.nbytes = form.nbytes

    @property
    def stream(self) -> int:
        """The handle of the stream on which it may be read without further ado."""
        return self._lease.stream

    def __repr__(self) -> str:
        return f"<weir array {self.dtype}{list(self.shape)} on device {self._lease.pool.device}>"

    # ---- DLPack

    def __dlpack_device__(self) -> tuple[int, int]:
        """(2, ordinal); a simulated device's memory is the host's: (1, 0)."""
        return (_CPU, 0) if self._lease.pool.simulated else (_CUDA, self._lease.pool.device)

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule. `stream` is the consumer's: None or 1 the legacy default stream, 2 the per-thread one, -1: it
        orders itself, by `self.stream`. That stream waits for the data, the host does not, except on a simulated
        device. The memory stays until the consumer has dropped its tensor, and its stream passed what it had queued."""
        device = self.__dlpack_device__()
        if dl_device is not None and tuple(dl_device) != device:
            raise BufferError(f"the array is on device {device}, not {tuple(dl_device)}")
        if copy:
            raise BufferError("weir makes no copies: copy what you import")
        form = self._dlpack_form(device)
        self._order(stream, device)
        versioned = max_version is not None and max_version[0] >= 1
        name = b"dltensor_versioned" if versioned else b"dltensor"
        return _new_capsule(self._lease.export(form, versioned), name, _destroy_capsule)

    def _dlpack_form(self, device: tuple[int, int]) -> _abi.Form:
        shape = (ctypes.c_int64 * max(1, len(self.shape)))(*self.shape)
        return _abi.Form(
            self.address, *device, self._form.dlpack_code(), 8 * self._form.itemsize, len(self.shape), shape
        )

    def _order(self, stream: int | None, device: tuple[int, int]) -> None:
        if device[0] == _CPU:
            if stream not in (None, -1):
                raise BufferError("memory of a simulated device is the host's, which has no streams")
            self._settle()
        elif stream == 0:
            raise BufferError("stream 0 is ambiguous: 1 is the legacy default stream, 2 the per-thread one")
        elif stream != -1:
            reader = _streams.handle(stream)
            self._lease.read_on(reader)
            self._join(reader)

    def _join(self, reader: int) -> None:
        """That stream waits for the copy into the lease's memory, by one wait for all of its arrays."""
        if self._ticket is not None and reader not in self._lease.joined:
            self._lease.pool.copier.join(self._ticket, reader)
            self._lease.joined.add(reader)

    def _settle(self) -> None:
        """The host waits until the values are there."""
        copier = self._lease.pool.copier
        if self._ticket is not None:
            copier.wait(self._ticket)
        else:
            copier.settle(self.address, self.nbytes, self.stream)

    # ---- CUDA array interface, version 3

    @property
    def __cuda_array_interface__(self) -> dict:
        """For Numba and CuPy (whose from_dlpack needs less care). Reads on other streams than `self.stream` must be
        declared: `use_on` of the item or block."""
        if self._lease.pool.simulated:
            raise AttributeError("a simulated device's memory is no CUDA array")
        self._lease.read_on(self.stream)
        self._lease.lent = True
        return {
            "shape": self.shape,
            "typestr": self._form.typestr,
            "data": (self.address if self.nbytes else 0, False),
            "strides": None,
            "stream": self.stream,
            "version": 3,
        }

    # ---- host

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """A numpy array with the values. Waits for the work queued on `self.stream`, and for the copy."""
        import numpy

        if copy is False:
            raise ValueError("device memory can't be read in place")
        self._lease.read_on(self.stream)
        host = numpy.empty(self.shape, _numpy_type(self._form))
        self._lease.pool.copier.to_host(self.address, host.ctypes.data, self.nbytes, self.stream)
        return host if dtype is None else host.astype(dtype)

    def numpy(self) -> Any:
        """The same by name."""
        return self.__array__()


def _numpy_type(form: _arrays.Form) -> Any:
    import numpy

    if form.typestr[1] != "V":
        return numpy.dtype(form.typestr)
    import ml_dtypes

    return numpy.dtype(getattr(ml_dtypes, form.name))
