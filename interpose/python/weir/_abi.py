# SPDX-License-Identifier: Apache-2.0
"""The C structs, enums and prototypes, as ctypes has them. tests/test_python.py compares them with the headers."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_ubyte, c_uint
from ctypes import c_uint16, c_uint32, c_uint64, c_void_p


class _Sized(ctypes.Structure):
    """A struct that begins with its own size."""

    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(type(self)), **fields)


def _u64(names: str) -> list:
    return [(name, c_uint64) for name in names.split()]


class PoolOptions(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("device", c_int),
        ("device_kind", c_char_p),
        ("limit_bytes", c_size_t),
        ("grow_bytes", c_size_t),
        ("limit_fraction", c_double),
        ("soft_limit_bytes", c_size_t),
        ("evict", c_void_p),
        ("evict_context", c_void_p),
        ("reuse", c_int),
        ("deadline_ns", c_int64),
        ("streams", c_int),
        ("backing", c_int),
        ("most_limit_bytes", c_size_t),
    ]


class AllocOptions(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("alignment", c_size_t),
        ("reuse", c_int),
        ("deadline_ns", c_int64),
    ]


class Stats(_Sized):
    _fields_ = [("struct_size", c_size_t)] + _u64(
        "live_bytes pending_bytes cached_bytes idle_bytes reserved_bytes peak_live_bytes peak_reserved_bytes limit_bytes"
        " live_blocks pending_blocks streams allocs frees touches slow_allocs grows trims ticks host_waits stream_waits"
        " pinned_bytes pinned_live_bytes pinned_pending_bytes hits driver_calls"
    )


class QueueOptions(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("item_bytes", c_size_t),
        ("items", c_uint),
        ("device_bytes", c_size_t),
        ("pinned_bytes", c_size_t),
        ("order", c_int),
        ("consumers", c_int),
        ("low_items", c_uint),
        ("high_items", c_uint),
        ("timeline", c_char_p),
        ("direction", c_int),
        ("source", c_void_p),
        ("flags", c_uint),
    ]


class Item(ctypes.Structure):
    _fields_ = [
        ("ticket", c_uint64),
        ("handle", c_uint64),
        ("key", c_int64),
        ("bytes", c_size_t),
        ("host", c_void_p),
        ("device", c_uint64),
    ]


class Span(ctypes.Structure):
    _fields_ = [("host", c_void_p), ("bytes", c_size_t)]


class QueueStats(_Sized):
    _fields_ = [("struct_size", c_size_t)] + _u64(
        "items_pushed items_delivered items_released items_aborted bytes_copied copies borrowed_bytes"
        " staged_pageable_bytes slots slots_in_use device_bytes peak_device_bytes pinned_bytes peak_pinned_bytes"
        " producer_waits_slot producer_waits_pinned consumer_waits_item producer_wait_ns consumer_wait_ns"
        " stream_waits_copy stream_waits_slot host_syncs waiting_slot waiting_pinned waiting_item longest_wait_ns"
        " items_cancelled items_replaced items_filling items_ready consumers"
        " wait_slot_ns wait_pinned_ns waits_turn wait_turn_ns waits_borrowed wait_borrowed_ns waits_idle wait_idle_ns"
        " gathers gathered_bytes gather_fallbacks slot_allocations host_allocations age_ns"
    ) + [("items_per_s", c_double), ("bytes_per_s", c_double)] + _u64(
        "consumer_waits_copy peer_staged peer_staged_bytes"
    )


class EngineOptions(_Sized):
    _fields_ = [("struct_size", c_size_t), ("chunk_bytes", c_size_t), ("staging_bytes", c_size_t), ("flags", c_uint)]


class Piece(ctypes.Structure):
    _fields_ = [
        ("to", c_uint64),
        ("from_", c_uint64),
        ("bytes", c_size_t),
        ("rows", c_size_t),
        ("to_pitch", c_size_t),
        ("from_pitch", c_size_t),
    ]


class CopyOptions(_Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("after", POINTER(c_void_p)),
        ("n_after", c_size_t),
        ("flags", c_uint),
        ("timeout_ns", c_int64),
    ]


class Ticket(ctypes.Structure):
    _fields_ = [("lane", c_uint64), ("stamp", c_uint64), ("landing", c_uint64)]


class Form(ctypes.Structure):
    _fields_ = [
        ("address", c_uint64),
        ("device_type", c_int32),
        ("device", c_int32),
        ("code", c_ubyte),
        ("bits", c_ubyte),
        ("n_dims", c_int32),
        ("shape", POINTER(c_int64)),
    ]


class BatchTarget(ctypes.Structure):
    _fields_ = [("lease", c_void_p), ("address", c_uint64), ("device_type", c_int32), ("device", c_int32)]


# By header: C name -> the struct here.
STRUCTS = {
    "weir.h": {"weir_pool_options": PoolOptions, "weir_alloc_options": AllocOptions, "weir_stats": Stats},
    "weir_queue.h": {
        "weir_queue_options": QueueOptions,
        "weir_item": Item,
        "weir_span": Span,
        "weir_queue_stats": QueueStats,
    },
    "weir_copy.h": {
        "weir_engine_options": EngineOptions,
        "weir_piece": Piece,
        "weir_copy_options": CopyOptions,
        "weir_ticket": Ticket,
    },
    "lease.h": {"weir_form": Form},
    "batch.h": {"weir_batch_target": BatchTarget},
}

# C enumerators used here, compared with the headers likewise.
CONSTANTS = {
    "WEIR_ORDER_FIFO": 0,
    "WEIR_ORDER_ANY": 1,
    "WEIR_PUSH_BORROW": 1,
    "WEIR_TO_DEVICE": 0,
    "WEIR_TO_HOST": 1,
    "WEIR_ON_DEVICE": 2,
    "WEIR_REUSE_DEFAULT": 0,
    "WEIR_REUSE_COMPLETED": 1,
    "WEIR_REUSE_OWNER": 2,
    "WEIR_REUSE_DEVICE_WAIT": 3,
    "WEIR_REUSE_HOST_WAIT": 4,
}

_STATUS, _TEXT, _HANDLE, _STREAM, _DPTR = c_int, c_char_p, c_void_p, c_void_p, c_uint64

# name -> (result, arguments)
WEIR_FUNCTIONS = {
    "weir_status_name": (_TEXT, [_STATUS]),
    "weir_status_text": (_TEXT, [_STATUS]),
    "weir_error_text": (_TEXT, []),
    "weir_version": (_TEXT, []),
    "weir_pool_open": (_STATUS, [POINTER(PoolOptions), POINTER(_HANDLE)]),
    "weir_pool_close": (_STATUS, [_HANDLE]),
    "weir_shared_pool": (_STATUS, [c_int, POINTER(_HANDLE)]),
    "weir_shared_limit": (_STATUS, [c_int, c_size_t, c_double]),
    "weir_alloc_with": (_STATUS, [_HANDLE, c_size_t, _STREAM, POINTER(AllocOptions), POINTER(_DPTR)]),
    "weir_touch": (_STATUS, [_HANDLE, _DPTR, _STREAM, c_uint]),
    "weir_free": (_STATUS, [_HANDLE, _DPTR, _STREAM]),
    "weir_stream_retire": (_STATUS, [_HANDLE, _STREAM]),
    "weir_trim": (_STATUS, [_HANDLE, c_size_t, POINTER(c_size_t)]),
    "weir_pool_peer_enable": (_STATUS, [_HANDLE, c_int]),
    "weir_pool_stats": (_STATUS, [_HANDLE, POINTER(Stats)]),
    "weir_pool_snapshot": (_STATUS, [_HANDLE, POINTER(c_void_p)]),
    "weir_host_alloc": (_STATUS, [_HANDLE, c_size_t, POINTER(c_void_p)]),
    "weir_host_free": (_STATUS, [_HANDLE, c_void_p, _STREAM]),
    "weir_queue_open": (_STATUS, [_HANDLE, POINTER(QueueOptions), POINTER(_HANDLE)]),
    "weir_queue_put": (
        _STATUS,
        [_HANDLE, c_int64, POINTER(Span), c_size_t, c_uint, c_int64, POINTER(c_uint64)],
    ),
    "weir_queue_acquire": (_STATUS, [_HANDLE, _STREAM, c_int64, POINTER(Item)]),
    "weir_queue_release": (_STATUS, [_HANDLE, POINTER(Item), POINTER(_STREAM), c_size_t]),
    "weir_queue_borrowed": (_STATUS, [_HANDLE, c_uint64, c_int64]),
    "weir_queue_size": (_STATUS, [_HANDLE, POINTER(c_size_t)]),
    "weir_queue_close": (_STATUS, [_HANDLE]),
    "weir_queue_clear": (_STATUS, [_HANDLE]),
    "weir_queue_poison": (_STATUS, [_HANDLE, c_int64, c_char_p]),
    "weir_queue_get_stats": (_STATUS, [_HANDLE, POINTER(QueueStats)]),
    "weir_engine_open": (_STATUS, [_HANDLE, POINTER(EngineOptions), POINTER(_HANDLE)]),
    "weir_engine_close": (_STATUS, [_HANDLE]),
    "weir_engine_link": (_STATUS, [_HANDLE, _HANDLE]),
    "weir_engine_stream": (_STREAM, [_HANDLE]),
    "weir_copy": (
        _STATUS,
        [_HANDLE, c_int, POINTER(Piece), c_size_t, POINTER(CopyOptions), POINTER(Ticket)],
    ),
    "weir_copy_join": (_STATUS, [_HANDLE, Ticket, _STREAM]),
    "weir_copy_wait": (_STATUS, [_HANDLE, Ticket, c_int64]),
}

PYTHON_FUNCTIONS = {
    "weir_house_new": (_HANDLE, [_HANDLE]),
    "weir_house_leave": (None, [_HANDLE]),
    "weir_lease_item": (_HANDLE, [_HANDLE, POINTER(Item), _STREAM]),
    "weir_lease_block": (_HANDLE, [_HANDLE, _DPTR, _STREAM]),
    "weir_lease_read_on": (_STATUS, [_HANDLE, _STREAM]),
    "weir_lease_drop": (None, [_HANDLE]),
    "weir_lease_late": (c_size_t, []),
    "weir_lease_export": (c_void_p, [_HANDLE, POINTER(Form), c_int]),
    "weir_batch_new": (_HANDLE, [POINTER(c_void_p), POINTER(c_uint16), c_size_t, c_size_t]),
    "weir_batch_delete": (None, [_HANDLE]),
    "weir_batch_bytes": (c_size_t, [_HANDLE]),
    "weir_batch_form": (Form, [_HANDLE, c_size_t]),
    "weir_batch_send": (
        _STATUS,
        [_HANDLE, c_size_t, c_size_t, _HANDLE, POINTER(BatchTarget), POINTER(Ticket), POINTER(c_void_p)],
    ),
    "weir_capsule_set_up": (None, [c_void_p, c_void_p]),
}


def declare(library: ctypes.CDLL, functions: dict) -> None:
    """Gives the library's functions their types."""
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
