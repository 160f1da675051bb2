# SPDX-License-Identifier: Apache-2.0
"""Host arrays seen without a copy: numpy's array interface, else the buffer protocol."""

from __future__ import annotations

import ctypes
import math
from typing import Any, NamedTuple

# DLPack's type codes.
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6
_CODES = {"i": _INT, "u": _UINT, "f": _FLOAT, "c": _COMPLEX, "b": _BOOL}
# Types that numpy has from ml_dtypes alone, one byte each but the first.
_EXTENDED = {
    "bfloat16": _BFLOAT,
    "float8_e3m4": 7,
    "float8_e4m3": 8,
    "float8_e4m3b11fnuz": 9,
    "float8_e4m3fn": 10,
    "float8_e4m3fnuz": 11,
    "float8_e5m2": 12,
    "float8_e5m2fnuz": 13,
    "float8_e8m0fnu": 14,
}
# The struct module's letters, as a memoryview has them: kind.
_LETTERS = {letter: "i" for letter in "bhilqn"} | {letter: "u" for letter in "BHILQNcP"}
_LETTERS |= {"e": "f", "f": "f", "d": "f", "?": "b"}


class Form(NamedTuple):
    """Shape and type of a dense, row-major array."""

    shape: tuple[int, ...]
    typestr: str  # numpy's array interface: "<f4"
    name: str  # numpy's name of the type: "float32", "bfloat16"
    itemsize: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    def dlpack_code(self) -> int:
        """BufferError: DLPack has no such type."""
        code = _EXTENDED.get(self.name, _CODES.get(self.typestr[1]))
        if code is None or self.typestr[0] == ">":
            raise BufferError(f"DLPack has no type for {self.name} ({self.typestr})")
        return code


class HostArray(NamedTuple):
    """A dense array in host memory, which `keep` keeps where it is."""

    address: int
    form: Form
    keep: Any


class _PyBuffer(ctypes.Structure):
    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


class _Buffer:
    """An object's buffer, held until this is dropped. Unlike ctypes' from_buffer it takes read-only ones, too."""

    def __init__(self, view: memoryview):
        self._py = _PyBuffer()
        self._release = ctypes.pythonapi.PyBuffer_Release
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(view), ctypes.byref(self._py), 0)
        self.address = self._py.buf or 0

    def __del__(self):
        self._release(ctypes.byref(self._py))


def _of_buffer(obj: Any) -> HostArray:
    view = memoryview(obj)
    if not view.c_contiguous:
        view = memoryview(view.tobytes()).cast("B").cast(view.format, view.shape)
    letter = view.format.lstrip("@=<")
    if letter not in _LETTERS:
        raise TypeError(f"elements of format {view.format!r} can't be queued")
    kind = _LETTERS[letter]
    name = "bool" if kind == "b" else {"i": "int", "u": "uint", "f": "float"}[kind] + str(8 * view.itemsize)
    held = _Buffer(view)
    return HostArray(held.address, Form(tuple(view.shape), f"<{kind}{view.itemsize}", name, view.itemsize), held)


def _of_numpy(array: Any) -> HostArray:
    if array.dtype.hasobject:
        raise TypeError("arrays of Python objects can't be queued")
    interface = array.__array_interface__
    if interface.get("strides") is not None:  # numpy says None of a dense, row-major array
        import numpy

        array = numpy.ascontiguousarray(array)
        interface = array.__array_interface__
    form = Form(tuple(array.shape), interface["typestr"], array.dtype.name, array.dtype.itemsize)
    return HostArray(interface["data"][0], form, array)


def of(obj: Any) -> HostArray:
    """A host array, bytes, memoryview, array.array, CPU tensor or number, without a copy where it is dense."""
    if hasattr(obj, "__array_interface__") and hasattr(obj, "dtype"):
        return _of_numpy(obj)
    try:
        return _of_buffer(obj)
    except TypeError:
        if isinstance(obj, (memoryview, bytes, bytearray)):
            raise
    import numpy  # for CPU tensors, JAX arrays and numbers

    return _of_numpy(numpy.asarray(obj))
