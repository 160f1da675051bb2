# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as exceptions.

    WeirError                    all of them; .status is the C library's name of it ("WEIR_NOT_YET")
      InvalidArgument            also a ValueError
      OutOfMemory                also a MemoryError: no memory, and none will come back by itself
        NotYet                   it would fit once pending frees have passed on the GPU
        TooLarge                 it can never fit under the limit
      Timeout                    also a TimeoutError: the deadline passed first
        WouldBlock               the call was asked not to wait
      Closed                     the pool or queue is closed, or the process is exiting
      Poisoned                   a queue's source has failed; what it raised is the __cause__ where it is known
      Stale                      the item or block was given back before
      Capturing                  the stream is capturing a graph, where this call is not possible
      DeviceError                driver and device: none there, too old, refused, lost
"""

from __future__ import annotations


class WeirError(Exception):
    """Any failure of weir. `status` is the C library's name of it."""

    status = "unknown"


class InvalidArgument(WeirError, ValueError):
    pass


class OutOfMemory(WeirError, MemoryError):
    pass


class NotYet(OutOfMemory):
    pass


class TooLarge(OutOfMemory):
    pass


class Timeout(WeirError, TimeoutError):
    pass


class WouldBlock(Timeout):
    pass


class Closed(WeirError):
    pass


class Poisoned(WeirError):
    pass


class Stale(WeirError):
    pass


class Capturing(WeirError):
    pass


class DeviceError(WeirError):
    pass


_BY_STATUS = {
    "WEIR_INVALID_ARGUMENT": InvalidArgument,
    "WEIR_INVALID_POINTER": InvalidArgument,
    "WEIR_TOO_LARGE": TooLarge,
    "WEIR_OUT_OF_MEMORY": OutOfMemory,
    "WEIR_NOT_YET": NotYet,
    "WEIR_WOULD_BLOCK": WouldBlock,
    "WEIR_TIMEOUT": Timeout,
    "WEIR_CLOSED": Closed,
    "WEIR_STALE_HANDLE": Stale,
    "WEIR_CAPTURING": Capturing,
    "WEIR_NO_DRIVER": DeviceError,
    "WEIR_DRIVER_TOO_OLD": DeviceError,
    "WEIR_NO_DEVICE": DeviceError,
    "WEIR_DRIVER_ERROR": DeviceError,
    "WEIR_CONTEXT_LOST": DeviceError,
    "WEIR_NO_HOST_MEMORY": OutOfMemory,
    "WEIR_AFTER_FORK": WeirError,
    "WEIR_POISONED": Poisoned,
    "WEIR_IN_USE": InvalidArgument,
}


def of_status(name: str, text: str) -> WeirError:
    """The exception for a status, by its C name."""
    error = _BY_STATUS.get(name, WeirError)(text)
    error.status = name
    return error
