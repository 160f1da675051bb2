#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs bench/alloc or bench/replay beside the allocators that Python packages bring: PyTorch's, RMM's, CuPy's.

    python3 bench/peers.py alloc|replay [OPTIONS OF THE BENCH]

Which packages are missing is said, and the rest runs. PyTorch and RMM export C functions: bench/alloc's own loops call
those, in this process, and no Python runs meanwhile. CuPy's pool can be called from Python alone, and is named so: its
times are what a Python program pays. PyTorch's memory is found by replaying the traces on the GPU.
"""
import ctypes
import datetime
import gzip
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import timeit

BUILD = pathlib.Path(os.environ.get("WEIR_BENCH", pathlib.Path(__file__).resolve().parents[1] / "build/release/bench"))
STEP = 2 << 20  # limits are tried in steps of 2 MiB, or of a thousandth of the load where that is more
SELECT = ctypes.CFUNCTYPE(None)


class Peer(ctypes.Structure):
    """struct wr_peer of peer.h"""
    _fields_ = [("name", ctypes.c_char_p)] + [(name, ctypes.c_void_p) for name in (
        "alloc_current", "free_current", "set_stream", "alloc_on", "free_on")] + [("select", SELECT)]


def address_of(library, name):
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value


def find(name, bring):
    """What `bring` gives; [] where its package, or what that needs, is missing, which is said."""
    try:
        return bring()
    except Exception as error:  # whatever a package raises that finds no driver, no GPU, or not its own parts
        print(f"peers: no {name}: {type(error).__name__}: {str(error).partition(chr(10))[0]}", file=sys.stderr)
        return []


# ---- peers of bench/alloc --------------------------------------------------------------------------------------------


def bring_torch():
    import torch
    torch.empty(1, device="cuda")  # sets its allocator up
    library = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib/libtorch_cuda.so"))
    functions = ("aoti_torch_cuda_caching_allocator_raw_alloc", "aoti_torch_cuda_caching_allocator_raw_delete",
                 "aoti_torch_create_cuda_stream_guard")
    return [Peer(b"PyTorch", *(address_of(library, name) for name in functions))]


def bring_rmm():
    import rmm
    import rmm.mr
    adaptor = next((pathlib.Path(rmm.__file__).parent / "librmm").glob("_torch_allocator*.so"))
    library = ctypes.CDLL(str(adaptor))
    on = [address_of(library, name) for name in ("allocate", "deallocate")]
    start = 1 << 30  # grown by what the loads need, before they are timed

    def peer(name, resource):
        return Peer(name, None, None, None, *on, SELECT(lambda: rmm.mr.set_current_device_resource(resource)))
    cuda = rmm.mr.CudaMemoryResource()
    return [peer(b"RMM pool", rmm.mr.PoolMemoryResource(cuda, initial_pool_size=start)),
            peer(b"RMM arena", rmm.mr.ArenaMemoryResource(cuda, arena_size=16 << 30))]


def bring_cupy():
    """[(figure, value, unit)] of its pool: the loads of bench/alloc for one thread, written in Python."""
    import cupy
    malloc = cupy.cuda.MemoryPool().malloc

    def median_ns(run, calls):
        run()
        return statistics.median(timeit.repeat(run, number=1, repeat=21)) / calls * 1e9

    def pairs(size, n=10000):
        for _ in range(n):
            malloc(size)  # freed when the result is dropped, which is at once
    draw = random.Random(1)
    sizes = [int(512 * 2 ** draw.uniform(0, 15)) for _ in range(1 << 16)]
    blocks = [malloc(size) for size in sizes[:512]]
    order = [(draw.randrange(512), draw.choice(sizes)) for _ in range(10000)]

    def mix():
        for slot, size in order:
            blocks[slot] = None
            blocks[slot] = malloc(size)
    pair_ns = max(median_ns(lambda: pairs(size), 10000) for size in (512, 64 << 10, 4 << 20))
    return [("alloc.pair_ns", pair_ns, "ns"), ("alloc.mix_op_ns", median_ns(mix, 2 * len(order)), "ns")]


def run_alloc(arguments, scratch):
    found = find("PyTorch", bring_torch) + find("RMM", bring_rmm)
    words = [b"alloc"] + [word.encode() for word in arguments] + [b"--results", str(scratch).encode()]
    run = ctypes.CDLL(str(BUILD / "libweir_alloc.so")).wr_alloc_run
    status = run(len(words), (ctypes.c_char_p * len(words))(*words), (Peer * len(found))(*found), len(found))
    if status:
        sys.exit(status)
    device = read_rows(scratch)[0]["device"]
    return [(figure, "CuPy, from Python", value, unit, device) for figure, value, unit in find("CuPy", bring_cupy)]


# ---- PyTorch's memory ------------------------------------------------------------------------------------------------


def read_trace(path):
    """([(is an alloc, id, bytes)], the greatest sum of live bytes)"""
    events, live, load = [], 0, 0
    with (gzip.open(path, "rt") if path.suffix == ".gz" else open(path)) as file:
        next(file)
        for line in file:
            _, op, block, size, _ = line.split(",")
            events.append((op == "alloc", block, int(size)))
            live += int(size) if op == "alloc" else -int(size)
            load = max(load, live)
    return events, load


def replay_torch(cuda, events, limit):
    """The most that was reserved; None: `limit` is too little. `cuda` is torch.cuda."""
    total, blocks, fits = cuda.get_device_properties(0).total_memory, {}, True
    cuda.set_per_process_memory_fraction((min(limit, total - 1) + 0.5) / total)  # half a byte, as it rounds down
    cuda.reset_peak_memory_stats()
    try:
        for is_alloc, block, size in events:
            if is_alloc:
                blocks[block] = cuda.caching_allocator_alloc(size)
            else:
                cuda.caching_allocator_delete(blocks.pop(block))
    except cuda.OutOfMemoryError:
        fits = False
    peak = cuda.memory_stats()["reserved_bytes.all.peak"]
    for address in blocks.values():
        cuda.caching_allocator_delete(address)
    cuda.empty_cache()
    return peak if fits else None


def find_min_limit(replay, load, peak):
    """The smallest limit, by bisection, as if every limit above one that is enough were, too."""
    step = max(STEP, load // 1000 // STEP * STEP)
    too_small, enough = (load - 1) // step, -(-peak // step)
    while enough - too_small > 1:
        middle = (too_small + enough) // 2
        if replay(middle * step) is None:
            too_small = middle
        else:
            enough = middle
    return enough * step


def measure_torch(cuda, subject, traces):
    """[(figure, subject, value, unit)]"""
    rows, limits, peaks = [], [], []
    for trace in traces:
        events, load = read_trace(trace)
        peak = replay_torch(cuda, events, math.inf)
        if peak is None:
            print(f"peers: {subject}: {trace.name} needs more than the GPU has", file=sys.stderr)
            continue
        limits.append(find_min_limit(lambda limit: replay_torch(cuda, events, limit), load, peak) / load)
        peaks.append(peak / load)
        name = trace.name.split(".csv")[0]
        rows += [(f"memory.min_limit:{name}", subject, limits[-1], ""),
                 (f"memory.peak_ratio:{name}", subject, peaks[-1], "")]
    geomean = statistics.geometric_mean
    return rows + [("memory.min_limit_geomean", subject, geomean(limits), ""),
                   ("memory.min_limit_worst", subject, max(limits), ""),
                   ("memory.peak_ratio_geomean", subject, geomean(peaks), "")]


def bring_torch_memory(traces):
    import torch
    torch.cuda.init()
    device = torch.cuda.get_device_name(0)
    rows = measure_torch(torch.cuda, "PyTorch", traces)
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    rows += measure_torch(torch.cuda, "PyTorch, expandable", traces)
    return [(*row, device) for row in rows]


def run_replay(arguments, scratch):
    figures = {row["figure"] for row in run_bench("replay", arguments, scratch)}
    folder = pathlib.Path(option(arguments, "--traces") or os.environ["WEIR_TRACES"])
    traces = [path for path in sorted(folder.iterdir()) if f"memory.min_limit:{path.name.split('.csv')[0]}" in figures]
    return find("PyTorch's memory", lambda: bring_torch_memory(traces))


# ---- the run ---------------------------------------------------------------------------------------------------------


def option(arguments, name):
    return arguments[arguments.index(name) + 1] if name in arguments[:-1] else None


def read_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def run_bench(name, arguments, scratch):
    """Its rows. Ends with it where it fails."""
    status = subprocess.run([BUILD / name, *arguments, "--results", scratch]).returncode
    if status:
        sys.exit(status)
    return read_rows(scratch)


def merge(rows, more):
    """The bench's rows, and ours as of the same run."""
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    for figure, subject, value, unit, device in more:
        print(f"| {figure} | {subject} | {value:.4g} {unit} |")
        rows.append({**rows[0], "figure": figure, "subject": subject, "value": float(f"{value:.6g}"), "unit": unit,
                     "device": device, "date": date})
    return rows


def main(runs, about):
    run = runs.get(sys.argv[1] if len(sys.argv) > 1 else None)
    if run is None:
        sys.exit(about)
    arguments = sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder) / "results.jsonl"
        more = run(arguments, scratch)
        rows = merge(read_rows(scratch), more)
    if option(arguments, "--results"):
        with open(option(arguments, "--results"), "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main({"alloc": run_alloc, "replay": run_replay}, __doc__)
