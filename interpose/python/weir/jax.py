# SPDX-License-Identifier: Apache-2.0
"""JAX: transfers that do not wait for compute.

    weir.jax.install()     before JAX's first use of a device: device_put, device_get and the like of an unmodified
                           program run on weir's streams (libweir_pjrt). Also by WEIR_JAX=1, or python -m weir script.py
    weir.jax.prefetch      an iterator of batches that are on the device before they are asked for
    weir.jax.transfer      a tree of many host arrays as few packed copies

Rule: in doubt forward. What weir does not serve - a type, a sharding, no room left - JAX's own device_put does.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import pathlib
import sys
import warnings
from typing import Any

from . import _lib
from .jax_prefetch import Prefetch, prefetch
from .jax_transfer import transfer

__all__ = ["Prefetch", "install", "prefetch", "status", "transfer", "uninstall"]

_PLUGINS = ("xla_cuda13", "xla_cuda12")
_hook: ctypes.CDLL | None = None
_declined = "install() was not called"


def install() -> bool:
    """Hooks JAX's CUDA plug-in, without starting a backend. Again: fine. False: declined, nothing is changed; the
    reason is a RuntimeWarning, and in status()."""
    global _declined
    _declined = _reason_against() or _hook_plugin(_find_plugin())
    if _declined:
        warnings.warn(f"weir leaves JAX as it is: {_declined}", RuntimeWarning, stacklevel=2)
    return not _declined


def uninstall() -> None:
    """Backends started from now on are not served; one that is stays so."""
    if _hook:
        _hook.weir_pjrt_uninstall()


def status() -> dict:
    """What is hooked: "installed", "message"; of an installed hook also "served" and "forwarded" with counts and
    bytes, "devices" with the memory that weir holds there (weir_pjrt.h)."""
    if not _hook or _declined:
        return {"installed": False, "message": _declined}
    size = _hook.weir_pjrt_status(None, 0) + 4096  # it may grow meanwhile
    text = ctypes.create_string_buffer(size)
    _hook.weir_pjrt_status(text, size)
    return {"message": _hook.weir_pjrt_message().decode(), **json.loads(text.value)}


def _reason_against() -> str:
    """Why hooking can't be tried. "" is none."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is not None and bridge.backends_are_initialized() and not (_hook and not _declined):
        return "JAX has started its backends already: install before its first use of a device"
    if not (_lib.folder() / "libweir_pjrt.so").exists():
        return f"this build has no libweir_pjrt.so in {_lib.folder()}"
    if _find_plugin() is None:
        return f"no CUDA plug-in of JAX is installed (jax_plugins.{' or .'.join(_PLUGINS)})"
    return ""


def _find_plugin() -> pathlib.Path | None:
    """The plug-in's library, as JAX itself finds it. Imports neither JAX nor the plug-in."""
    for name in _PLUGINS:
        try:
            spec = importlib.util.find_spec(f"jax_plugins.{name}")
        except ModuleNotFoundError:  # no jax_plugins at all
            return None
        for folder in (spec.submodule_search_locations or []) if spec else []:
            path = pathlib.Path(folder).resolve() / "xla_cuda_plugin.so"
            if path.exists():
                return path
    return None


def _hook_plugin(path: pathlib.Path) -> str:
    """JAX will load the same file, and so get the same table. Returns why not, "" for done."""
    global _hook
    try:
        plugin = ctypes.CDLL(str(path))
        hook = _hook or ctypes.CDLL(str(_lib.folder() / "libweir_pjrt.so"))
    except OSError as error:
        return str(error)
    plugin.GetPjrtApi.restype = ctypes.c_void_p
    hook.weir_pjrt_install.argtypes = [ctypes.c_void_p]
    hook.weir_pjrt_message.restype = ctypes.c_char_p
    hook.weir_pjrt_status.restype = ctypes.c_size_t
    hook.weir_pjrt_status.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    _hook = hook
    declined = hook.weir_pjrt_install(plugin.GetPjrtApi())
    return hook.weir_pjrt_message().decode() if declined else ""
