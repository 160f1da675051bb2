# SPDX-License-Identifier: Apache-2.0
"""Host memory of others, page-locked as long as somebody wants it so.

The driver locks whole pages, refuses a range of which a part is locked already, and unlocks by the address of the locking
alone: arrays that share a page can't be pinned one by one. So here each page is locked once, by whoever comes first, in
ranges of pages; each pin counts in the ranges that it touches, and a range is unlocked with its last pin."""

from __future__ import annotations

import collections
import threading
from typing import Callable

PAGE = 4096


class _Range:
    __slots__ = ("first", "past", "pins")

    def __init__(self, first: int, past: int):
        self.first, self.past, self.pins = first, past, 0


class Pins:
    """`lock(address, nbytes)` and `unlock(address)` are the driver's; lock tells whether it could. What it can't lock, as
    where somebody else has, stays as it is: copies from there go by the driver's own staging."""

    def __init__(self, lock: Callable[[int, int], bool], unlock: Callable[[int], None]):
        self._lock_pages, self._unlock_pages = lock, unlock
        self._ranges: list[_Range] = []  # by address; none overlaps another
        self._mutex = threading.Lock()
        self._leaving: collections.deque[list[_Range]] = collections.deque()  # the ranges of pins that have ended

    def pin(self, address: int, nbytes: int) -> Callable[[], None]:
        """Returns what unpins it; called again, that does nothing."""
        if nbytes <= 0:
            return lambda: None
        first, past = address // PAGE, (address + nbytes - 1) // PAGE + 1
        with self._mutex:
            held = [r for r in self._ranges if r.first < past and first < r.past]
            held += self._lock_gaps(first, past, held)
            for each in held:
                each.pins += 1
        self._let_go()

        def unpin() -> None:
            self._leaving.append(held)
            self._let_go()

        return unpin

    def _lock_gaps(self, first: int, past: int, held: list[_Range]) -> list[_Range]:
        """Locks the pages that no range holds yet."""
        fresh, at = [], first
        for begin, end in [(r.first, r.past) for r in held] + [(past, past)]:
            if at < begin and self._lock_pages(at * PAGE, (begin - at) * PAGE):
                fresh.append(_Range(at, begin))
            at = max(at, end)
        self._ranges = sorted(self._ranges + fresh, key=lambda r: r.first)
        return fresh

    def _let_go(self) -> None:
        """Of the pins that have ended. The garbage collector may end one anywhere, in a thread that holds the mutex, too:
        so nobody waits for it here, and who has held it looks again once it is given back."""
        while self._leaving and self._mutex.acquire(blocking=False):
            try:
                held = self._leaving.popleft() if self._leaving else []  # another thread may have come first
                while held:
                    self._unpin_range(held.pop())
            finally:
                self._mutex.release()

    def _unpin_range(self, each: _Range) -> None:
        each.pins -= 1
        if each.pins == 0:
            self._ranges.remove(each)
            self._unlock_pages(each.first * PAGE)

    def locked_bytes(self) -> int:
        with self._mutex:
            nbytes = sum(r.past - r.first for r in self._ranges) * PAGE
        self._let_go()
        return nbytes
