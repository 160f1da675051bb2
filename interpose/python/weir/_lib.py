# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the C library, once. All calls go through ctypes, which gives up the GIL during each of them."""

from __future__ import annotations

import ctypes
import os
import pathlib

from . import _abi, errors


def folder() -> pathlib.Path:
    """Where the libraries are: $WEIR_LIBRARY_PATH (a build's folder), else beside this file, as in a wheel."""
    return pathlib.Path(os.environ.get("WEIR_LIBRARY_PATH") or pathlib.Path(__file__).parent)


def _load(name: str, functions: dict) -> ctypes.CDLL:
    path = folder() / name
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"weir's library can't be loaded: {error} (WEIR_LIBRARY_PATH names another folder)") from error
    _abi.declare(library, functions)
    return library


lib = _load("libweir.so.0", _abi.WEIR_FUNCTIONS)
python_lib = _load("libweir_python.so", _abi.PYTHON_FUNCTIONS)


def check(status: int) -> None:
    """Raises what a status other than WEIR_OK means, in the words of the C library for this thread."""
    if status:
        name = lib.weir_status_name(status).decode()
        text = lib.weir_error_text() or lib.weir_status_text(status)
        raise errors.of_status(name, text.decode(errors="replace"))


def need_memory(handle: int | None) -> int:
    """The handle, unless the host had no memory to make it."""
    if not handle:
        raise errors.of_status("WEIR_NO_HOST_MEMORY", "the host has no memory left")
    return handle


def timeout_ns(seconds: float | None) -> int:
    """Seconds as the C library counts; None waits without end."""
    return -1 if seconds is None else max(0, int(seconds * 1e9))
