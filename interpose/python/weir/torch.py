# SPDX-License-Identifier: Apache-2.0
"""PyTorch on weir's memory.

    import weir.torch
    weir.torch.install()            # before anything uses CUDA

install() puts weir in the place of PyTorch's own allocator. It goes by PyTorch's pluggable interface, with which PyTorch
has no memory_stats, memory_summary, snapshot or memory history, no sharing of CUDA tensors between processes, no MemPool of
its own and no graph trees (torch.compile(mode="reduce-overhead")); graphs, record_stream and weir.torch.stats() work.
pool() keeps all of PyTorch's tools: its own allocator goes on, and gets its segments from weir.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import Any

from . import _adapters
from ._adapters import stats
from ._lib import lib

__all__ = ["install", "pool", "prefetch", "stats"]

_HOOKS = {
    "set_record_stream_fn": "weir_torch_record_stream",
    "set_memory_fraction_fn": "weir_torch_memory_fraction",
    "set_begin_allocate_to_pool": "weir_torch_begin_pool",
    "set_end_allocate_to_pool_fn": "weir_torch_end_pool",
    "set_release_pool": "weir_torch_release_pool",
}
_installed = None  # PyTorch's handle of the allocator, once set
_kept: list[Any] = []  # what C code holds addresses of


def install() -> bool:
    """Makes weir the allocator of all CUDA memory of PyTorch. True: it is; False: PyTorch keeps its own, for the
    reason that a warning gives. Call it before CUDA is initialised."""
    global _installed
    import torch

    if _installed is not None:
        _adapters.decline("PyTorch twice", "it does already")
        return True
    reason = _reason_against(torch)
    if reason:
        return _adapters.decline("PyTorch", reason)
    allocator = _allocator(torch, "weir_torch_alloc")
    handle = allocator.allocator()
    missing = [setter for setter in _HOOKS if not hasattr(handle, setter)]
    if missing:
        return _adapters.decline("PyTorch", f"version {torch.__version__} has no {', '.join(missing)}")
    for setter, name in _HOOKS.items():
        getattr(handle, setter)(_adapters.address_of(lib, name))
    lib.weir_torch_on_failure(_failure(torch))
    torch.cuda.memory.change_current_allocator(allocator)
    _installed = allocator
    return True


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


# ---- errors of PyTorch's own types

# c10::Error and c10::OutOfMemoryError can be thrown by C++ alone.
_THROWER = r"""
#include <cstring>
#include <c10/util/Exception.h>
#include <cstdint>
extern "C" void weir_throw(const char *function, const char *file, uint32_t code, const char *text)
{
    c10::SourceLocation where = {function, file, code};
    if (std::strncmp(text, "CUDA out of memory", 18) == 0) throw c10::OutOfMemoryError(where, text);
    throw c10::Error(where, text);
}
"""


def _failure(torch: Any) -> int:
    """The address of what throws out of weir_torch_alloc: torch.OutOfMemoryError, or a RuntimeError of the same words
    where no compiler is."""
    try:
        library, name = ctypes.CDLL(str(_build_thrower(torch))), "weir_throw"
    except (OSError, subprocess.SubprocessError) as error:
        _adapters.decline("PyTorch's OutOfMemoryError", f"it comes as a RuntimeError: {error}")
        library = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / "libc10.so"))
        name = "_ZN3c106detail14torchCheckFailEPKcS2_jS2_"
    _kept.append(library)
    return _adapters.address_of(library, name)


def _build_thrower(torch: Any) -> pathlib.Path:
    """Built once for each version of PyTorch, in $XDG_CACHE_HOME/weir. OSError: no compiler; SubprocessError: its."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "weir"
    built = cache / f"torch-{torch.__version__}-{int(torch._C._GLIBCXX_USE_CXX11_ABI)}.so"
    if built.exists():
        return built
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if not compiler:
        raise FileNotFoundError("no C++ compiler")
    cache.mkdir(parents=True, exist_ok=True)
    package = pathlib.Path(torch.__file__).parent
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        source, result = pathlib.Path(scratch, "weir_throw.cpp"), pathlib.Path(scratch, built.name)
        source.write_text(_THROWER)
        command = [compiler, "-std=c++17", "-O2", "-shared", "-fPIC", str(source), "-o", str(result)]
        command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
        command += [f"-I{package / 'include'}", f"-L{package / 'lib'}", "-lc10", f"-Wl,-rpath,{package / 'lib'}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise subprocess.SubprocessError(f"{compiler} failed: {done.stderr.strip()[:400]}")
        result.rename(built)
    return built


# ---- prefetching


def prefetch(loader: Any, device: Any = "cuda", depth: int = 2, max_bytes: int = 0) -> Any:
    """Iterates over a DataLoader, or any iterable of CPU tensors, numpy arrays and nested lists, tuples and dicts of
    them, with up to `depth` batches on their way to the device. See weir._prefetch.Prefetch."""
    from ._prefetch import Prefetch

    return Prefetch(loader, device, depth, max_bytes)
