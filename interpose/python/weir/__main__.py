# SPDX-License-Identifier: Apache-2.0
"""Runs a program with weir's hook for JAX: python -m weir script.py ARGUMENTS, or python -m weir -m module ARGUMENTS"""

from __future__ import annotations

import pathlib
import runpy
import sys

from . import jax


def main() -> None:
    arguments = sys.argv[1:]
    by_module = arguments[:1] == ["-m"]
    arguments = arguments[by_module:]
    if not arguments:
        sys.exit(__doc__)
    jax.install()
    sys.argv = arguments
    if by_module:
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(pathlib.Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


main()
