# SPDX-License-Identifier: Apache-2.0
"""What JAX calls before its first use of a device (entry point group jax_plugins): WEIR_JAX=1 installs the hook."""

from __future__ import annotations

import os


def initialize() -> None:
    if os.environ.get("WEIR_JAX", "0") not in ("", "0"):
        from . import jax

        jax.install()
