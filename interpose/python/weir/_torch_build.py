# SPDX-License-Identifier: Apache-2.0
"""What of weir.torch must be built against the PyTorch that is installed: once for each, kept in $XDG_CACHE_HOME/weir."""

from __future__ import annotations

import ctypes
import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
from typing import Any

from ._lib import folder

_HERE = pathlib.Path(__file__).parent
_SECONDS = 300


class BuildError(Exception):
    """No compiler, or what it said."""


def thrower(torch: Any) -> ctypes.CDLL:
    """weir_torch_throw, which throws PyTorch's exceptions."""
    return _build(torch, "throw", ["torch_throw.cpp"], ["-lc10"], [])


def native(torch: Any) -> ctypes.CDLL:
    """weir_torch_native_install, and the allocator that it installs."""
    includes = [*_weir_includes(), _cuda_include(torch)]
    libraries = ["-lc10", "-lc10_cuda", f"-L{folder()}", "-l:libweir.so.0"]
    return _build(torch, "native", ["torch_native.cpp", "torch_throw.cpp"], libraries, includes)


def _weir_includes() -> list[pathlib.Path]:
    """The C headers: beside this file in a wheel, else in the source tree."""
    if (_HERE / "include" / "weir.h").exists():
        return [_HERE / "include"]
    root = pathlib.Path(os.environ.get("WEIR_SOURCE") or _HERE.parents[2])
    folders = [root / "alloc", root / "interpose", root / "interpose" / "torch"]
    if not (folders[0] / "weir.h").exists():
        raise BuildError("weir's C headers are neither in the package nor beside it")
    return folders


def _cuda_include(torch: Any) -> pathlib.Path:
    """CUDA's headers: the toolkit's, else those of the packages that PyTorch needs."""
    roots = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    candidates = [pathlib.Path(root, "include") for root in roots if root]
    candidates += sorted(pathlib.Path(torch.__file__).parents[1].glob("nvidia/*/include"))
    for candidate in candidates:
        if (candidate / "cuda_runtime_api.h").exists():
            return candidate
    raise BuildError("no cuda_runtime_api.h: install the CUDA toolkit, or set CUDA_HOME")


def _build(torch: Any, name: str, files: list[str], libraries: list[str], includes: list[pathlib.Path]) -> ctypes.CDLL:
    sources = [_HERE / file for file in files]
    headers = [header for include in includes[:-1] for header in sorted(include.glob("weir*.h"))]
    content = b"".join(path.read_bytes() for path in sources + headers)
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    key = hashlib.sha256(content).hexdigest()[:12]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "weir"
    built = cache / f"torch-{torch.__version__}-{abi}-{name}-{key}.so"
    if not built.exists():
        package = pathlib.Path(torch.__file__).parent
        options = [f"-D_GLIBCXX_USE_CXX11_ABI={abi}", *(f"-I{include}" for include in includes)]
        options += [f"-I{package / 'include'}", f"-L{package / 'lib'}", *libraries, f"-Wl,-rpath,{package / 'lib'}"]
        _compile(sources, options, built)
    try:
        return ctypes.CDLL(str(built))
    except OSError as error:
        raise BuildError(str(error)) from error


def _compile(sources: list[pathlib.Path], options: list[str], built: pathlib.Path) -> None:
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if not compiler:
        raise BuildError("no C++ compiler")
    try:
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
            result = pathlib.Path(scratch, built.name)
            command = [compiler, "-std=c++17", "-O2", "-shared", "-fPIC", *map(str, sources), *options, "-o", str(result)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
            if done.returncode:
                errors = [line for line in done.stderr.splitlines() if "error" in line] or [done.stderr.strip()]
                raise BuildError(f"{compiler}: {errors[0][:300]}")
            result.rename(built)  # whole, whoever else builds it meanwhile
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(str(error)) from error
