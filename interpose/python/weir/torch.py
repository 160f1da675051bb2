# SPDX-License-Identifier: Apache-2.0
"""PyTorch on weir's memory.

    import weir.torch
    weir.torch.install()            # before anything uses CUDA

install() puts weir in the place of PyTorch's own allocator, at one of two levels. "native" is built against the PyTorch that
is installed, with a C++ compiler, once (half a minute): memory_allocated, memory_stats, memory_summary, empty_cache,
peers, graphs and torch.OutOfMemoryError go on as they are, and snapshots show the blocks in use. "plain" needs no compiler and
goes by PyTorch's pluggable interface: graphs, record_stream and weir.torch.stats() work, and all functions about memory
raise. Neither shares CUDA tensors between processes, keeps a history of allocations, or has graph trees
(torch.compile(mode="reduce-overhead")).
pool() keeps all of PyTorch's tools: its own allocator goes on, and gets its segments from weir.
"""

from __future__ import annotations

import ctypes
import pathlib
from typing import Any

from . import _adapters, _torch_build
from ._adapters import stats
from ._lib import lib
from .pool import REUSES

__all__ = ["detect", "install", "pool", "prefetch", "stats"]

_HOOKS = {
    "set_record_stream_fn": "weir_torch_record_stream",
    "set_memory_fraction_fn": "weir_torch_memory_fraction",
    "set_begin_allocate_to_pool": "weir_torch_begin_pool",
    "set_end_allocate_to_pool_fn": "weir_torch_end_pool",
    "set_release_pool": "weir_torch_release_pool",
}
_POLICIES = {"completed": REUSES.index("completed"), "owner": REUSES.index("owner")}
_installed: str | None = None  # the level
_kept: list[Any] = []  # what C code holds addresses of


def install(level: str | None = None, policy: str = "owner", check: bool = False) -> bool:
    """Makes weir the allocator of all CUDA memory of PyTorch. True: it is; False: PyTorch keeps its own, for the
    reason that a warning gives. Call it before CUDA is initialised. `level`: "native", "plain", or None: native, or
    plain where that can't be built, which a warning says.

    `policy`: of memory that was freed. "owner": other streams get it when all that was queued on the device has passed, as
    programs of PyTorch need that drop a tensor before they join its users. "completed": as soon as its own stream and
    those of record_stream have, for programs that declare or join every use; `check` then reports, as a warning, the
    uses of this thread that are neither, as `detect` does."""
    global _installed
    import torch

    if level not in (None, "native", "plain"):
        raise ValueError(f"no level {level!r}")
    if policy not in _POLICIES:
        raise ValueError(f"no policy {policy!r}")
    if _installed is not None:
        _adapters.decline("PyTorch twice", f"it does already, {_installed}")
        return True
    reason = _reason_against(torch) or _set_policy(policy)
    if reason is None:
        reason, _installed = _install_level(torch, level)
    if reason:
        return _adapters.decline("PyTorch", reason)
    if check:
        detector = detect()
        detector.__enter__()
        _kept.append(detector)
    return True


def _set_policy(policy: str) -> str | None:
    """None, or why it can't be."""
    if lib.weir_shared_reuse(_POLICIES[policy]) == 0 or policy == "owner":
        return None
    return f"the policy {policy}: {lib.weir_error_text().decode(errors='replace')}"


def _install_level(torch: Any, level: str | None) -> tuple[str | None, str | None]:
    """None and the level, or why not."""
    if level != "plain":
        reason = _install_native(torch)
        if reason is None or level == "native":
            return reason, None if reason else "native"
        _adapters.decline("PyTorch's memory statistics", reason)
    reason = _install_plain(torch)
    return reason, None if reason else "plain"


def detect() -> Any:
    """A context in which each operation of PyTorch on this thread, and of its backward passes, is watched: memory that
    is freed although another stream used it, neither declared by record_stream nor waited for by the memory's own stream,
    is reported by a warning, once a place. `with detect() as reports` has the texts in a list. For debugging: some
    microseconds an operation. What other libraries queue, and waits that they make, is not seen."""
    from ._torch_uses import detect

    return detect(_home_of)


def _home_of(storage: Any) -> int | None:
    """The stream that the storage was allocated on; None: it is not known."""
    found = _adapters.SharedBlock()
    try:
        known = lib.weir_torch_find(storage.data_ptr(), ctypes.byref(found))
    except RuntimeError:  # of a tensor that wraps others, as DTensor does: it has no memory itself
        return None
    return (found.stream or 0) if known else None


def _install_native(torch: Any) -> str | None:
    """None, or why it can't be."""
    try:
        library = _torch_build.native(torch)
    except _torch_build.BuildError as error:
        return f"the native level can't be built: {error}"
    install = library.weir_torch_native_install
    install.restype = ctypes.c_char_p
    reason = install()
    return reason.decode() if reason else None


def _install_plain(torch: Any) -> str | None:
    """None, or why it can't be."""
    allocator = _allocator(torch, "weir_torch_alloc")
    handle = allocator.allocator()
    missing = [setter for setter in _HOOKS if not hasattr(handle, setter)]
    if missing:
        return f"version {torch.__version__} has no {', '.join(missing)}"
    for setter, name in _HOOKS.items():
        getattr(handle, setter)(_adapters.address_of(lib, name))
    lib.weir_torch_on_failure(_failure(torch))
    torch.cuda.memory.change_current_allocator(allocator)
    _kept.append(allocator)
    return None


def _failure(torch: Any) -> int:
    """The address of what throws out of weir_torch_alloc: torch.OutOfMemoryError, or a RuntimeError of the same words
    where it can't be built."""
    try:
        library, name = _torch_build.thrower(torch), "weir_torch_throw"
    except _torch_build.BuildError as error:
        _adapters.decline("PyTorch's OutOfMemoryError", f"it comes as a RuntimeError: {error}")
        library = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / "libc10.so"))
        name = "_ZN3c106detail14torchCheckFailEPKcS2_jS2_"
    _kept.append(library)
    return _adapters.address_of(library, name)


def pool(**options: Any) -> Any:
    """A torch.cuda.MemPool whose segments are weir's: `with torch.cuda.use_mem_pool(pool): ...`. Options as MemPool's.
    PyTorch's statistics, snapshots and out-of-memory errors go on as they are. Not together with install()."""
    import torch

    if _installed is not None:
        raise RuntimeError("weir serves all of PyTorch already: a pool of its own has no place there")
    allocator = _allocator(torch, "weir_torch_segment_alloc")
    _kept.append(allocator)
    return torch.cuda.MemPool(allocator.allocator(), **options)


def _reason_against(torch: Any) -> str | None:
    if not torch.cuda.is_available():
        return "it sees no GPU"
    if torch.version.hip:
        return "it is built for ROCm"
    if torch.cuda.is_initialized():
        return "CUDA is initialised already; call install() before the first use of a GPU"
    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        return f"it has another allocator already, {backend}"
    return None


def _allocator(torch: Any, alloc: str) -> Any:
    return torch.cuda.memory.CUDAPluggableAllocator(_adapters.library_path(), alloc, "weir_torch_free")


# ---- prefetching


def prefetch(loader: Any, device: Any = "cuda", depth: int = 2, max_bytes: int = 0) -> Any:
    """Iterates over a DataLoader, or any iterable of CPU tensors, numpy arrays and nested lists, tuples and dicts of
    them, with up to `depth` batches on their way to the device. See weir._prefetch.Prefetch."""
    from ._prefetch import Prefetch

    return Prefetch(loader, device, depth, max_bytes)
