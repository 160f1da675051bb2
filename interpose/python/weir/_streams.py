# SPDX-License-Identifier: Apache-2.0
"""CUDA streams, whoever made them.

A stream is an int (a cudaStream_t or CUstream handle), None (the legacy default stream, where PyTorch and CuPy work
unless told otherwise), or any object with `__cuda_stream__()`, `cuda_stream` (PyTorch) or `ptr` (CuPy).
"""

from __future__ import annotations

from typing import Any, Union

LEGACY = 1
"""The legacy default stream."""
PER_THREAD = 2
"""The calling thread's own default stream."""

Stream = Union[int, None, Any]


def handle(stream: Stream) -> int:
    """The handle of a stream, LEGACY for 0 and None."""
    if stream is None:
        return LEGACY
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        stream = (protocol() if callable(protocol) else protocol)[1]
    elif hasattr(stream, "cuda_stream"):
        stream = stream.cuda_stream
    elif hasattr(stream, "ptr"):
        stream = stream.ptr
    return int(stream) or LEGACY
