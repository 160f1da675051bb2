# SPDX-License-Identifier: Apache-2.0
"""The transfer engine: copies that wait for the streams named, and for no other work."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Iterable, Sequence

from . import _abi
from ._lib import check, lib, timeout_ns

if TYPE_CHECKING:
    from .pool import Pool

TO_DEVICE, TO_HOST, ON_DEVICE = 0, 1, 2


class Copier:
    """A transfer engine (weir_copy.h) of a pool, `pool.copier`. Addresses are ints, sizes bytes. The GIL is released
    in every call."""

    def __init__(self, pool: Pool):
        self.pool = pool
        handle = ctypes.c_void_p()
        check(lib.weir_engine_open(pool.handle, None, ctypes.byref(handle)))
        self.handle = handle.value
        """The engine's, for C code."""
        self.stream: int = lib.weir_engine_stream(handle)
        """A stream where nothing runs: allocate what is to be filled on it."""

    def close(self) -> None:
        """Copies that are queued still run. By its pool."""
        check(lib.weir_engine_close(self.handle))

    def copy(
        self,
        direction: int,
        pieces: Iterable[tuple[int, int, int]],
        after: Sequence[int] = (),
        timeout: float | None = None,
    ) -> _abi.Ticket:
        """Queues (to, from, bytes) copies behind the work queued on `after`. Pageable sources may be overwritten when
        it returns; all other memory must stay until the ticket is joined or waited for."""
        listed = [_abi.Piece(to, source, size, 0, 0, 0) for to, source, size in pieces]
        streams = (ctypes.c_void_p * max(1, len(after)))(*after)
        options = _abi.CopyOptions(after=streams, n_after=len(after), timeout_ns=timeout_ns(timeout))
        ticket = _abi.Ticket()
        array = (_abi.Piece * max(1, len(listed)))(*listed)
        arguments = (self.handle, direction, array, len(listed), ctypes.byref(options), ctypes.byref(ticket))
        try:
            check(lib.weir_copy(*arguments))
        except BaseException:
            lib.weir_copy_wait(self.handle, ticket, -1)  # a part may be under way
            raise
        return ticket

    def join(self, ticket: _abi.Ticket, stream: int) -> None:
        """That stream waits for the copy; the host for nothing."""
        check(lib.weir_copy_join(self.handle, ticket, stream))

    def wait(self, ticket: _abi.Ticket, timeout: float | None = None) -> None:
        """The host waits for the copy."""
        check(lib.weir_copy_wait(self.handle, ticket, timeout_ns(timeout)))

    def to_host(self, device: int, host: int, nbytes: int, stream: int) -> None:
        """Copies behind the work of that stream, and waits for both."""
        if nbytes:
            self.wait(self.copy(TO_HOST, [(host, device, nbytes)], [stream]))

    def settle(self, device: int, nbytes: int, stream: int) -> None:
        """Waits for the work queued on a stream so far: a byte is copied behind it."""
        if nbytes:
            byte = ctypes.c_char()
            self.to_host(device, ctypes.addressof(byte), 1, stream)

    def link(self, peer: Pool) -> None:
        """Makes copies between this device and that pool's possible. Again: no-op."""
        check(lib.weir_engine_link(self.handle, peer.handle))
