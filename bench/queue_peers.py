#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs bench/queue or bench/transfer, and then what PyTorch and JAX programs do in their place, as one run.

    python3 bench/queue_peers.py queue|transfer [OPTIONS OF THE BENCH]

queue     queue.wall_ratio_1m, queue.wall_ratio_16m: a prefetcher on a side stream, written by hand (copies from pinned
          memory, wait_stream, record_stream); and plain .cuda()
transfer  queue.pageable_compute_share: .cuda(); a thread that pins, as DataLoader(pin_memory=True) has one; that thread
          and the side stream. With two GPUs and --devices 2 queue.d2d_busy_ratio, too: torch's .to, and jax.device_put

What is missing is said, and the rest runs. A simulated device has no peers.
"""
import itertools
import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time

import peers

MIB = 1 << 20
SHARES = (1.5, 0.67)  # compute's length in copies, as in bench/queue.c
LEAD = 2  # steps that fill the pipeline
MATRIX = 4096
WARM, BUFFERS, COMPUTE_MS, BATCH_MB, PAGEABLE_STEPS = 4, 3, 30, 616, 40  # as in bench/transfer.c
ACROSS_BYTES, ACROSS_BUSY_MS, ACROSS_ROUNDS = 256 * MIB, 80, 15
JAX_TIMEOUT_S = 120

# ---- ways of feeding: device batches, from an iterator of host batches -----------------------------------------------


def plain(_, batches):
    for batch in batches:
        yield batch.cuda()


def on_side_stream(torch, batches):
    """The next batch is copied while this one is computed with."""
    side = torch.cuda.Stream()

    def load():
        batch = next(batches, None)
        if batch is None:
            return None
        with torch.cuda.stream(side):
            return batch.to("cuda", non_blocking=True)
    ahead = load()
    while ahead is not None:
        batch, current = ahead, torch.cuda.current_stream()
        current.wait_stream(side)
        batch.record_stream(current)
        ahead = load()
        yield batch


def pin_ahead(batches, depth=2):
    """What DataLoader's thread does: copies each batch into new pinned memory, a few ahead of who asks."""
    ahead = queue.Queue(depth)

    def work():
        try:
            for batch in batches:
                ahead.put(batch.pin_memory())
            ahead.put(None)
        except Exception as error:  # it is the consumer's
            ahead.put(error)
    threading.Thread(target=work, daemon=True).start()
    while (batch := ahead.get()) is not None:
        if isinstance(batch, Exception):
            raise batch
        yield batch


def pinned_by_thread(_, batches):
    for batch in pin_ahead(batches):
        yield batch.to("cuda", non_blocking=True)


def pinned_on_side_stream(torch, batches):
    return on_side_stream(torch, pin_ahead(batches))


PINNED_WAYS = {"PyTorch, side stream": on_side_stream, "PyTorch, .cuda()": plain}
PAGEABLE_WAYS = {"PyTorch, .cuda()": plain, "PyTorch, pin thread": pinned_by_thread,
                 "PyTorch, pin thread and side stream": pinned_on_side_stream}

# ---- pinned batches --------------------------------------------------------------------------------------------------


def steps_for(nbytes, steps=0):
    return steps or min(512, max(24, (8 << 30) // nbytes))


def sizes_of(first_mib, most_mib):
    while first_mib <= most_mib:
        yield first_mib * MIB
        first_mib *= 4


def worst_ratios(bench, ways, sizes):
    """{way: its worst of steps / the longer of copy and compute alone}"""
    worst = dict.fromkeys(ways, 0.0)
    for nbytes, share in itertools.product(sizes, SHARES):
        copy_ms, compute_ms = bench.time_alone(nbytes, share)
        for name, way in ways.items():
            ratio = bench.time_way(way, nbytes) / max(copy_ms, compute_ms)
            print(f"| {nbytes // MIB} MiB | {name} | {copy_ms:.3f} | {compute_ms:.3f} | {ratio:.3f} |", flush=True)
            worst[name] = max(worst[name], ratio)
    return worst


class TorchBench:
    """A step reads its batch, multiplies matrices, and reads it again, as one of bench/compute.c. Both readings are
    summed."""

    def __init__(self, torch, most_mib, steps, repeats):
        self.torch, self.steps, self.repeats = torch, steps, repeats
        self.host = torch.empty(most_mib * MIB // 8, dtype=torch.int64, pin_memory=True).random_()
        self.sum = torch.zeros((), dtype=torch.int64, device="cuda")
        self.factors = [self.random_matrix() for _ in range(2)]
        self.product = torch.empty_like(self.factors[0])
        self.units = 50
        self.time(50, self.compute_unit)  # clocks are up
        self.unit_ms = self.time(50, self.compute_unit)

    def random_matrix(self):
        """Values in [0.5, 1) of either sign: power and clocks depend on the bits that toggle."""
        rand = self.torch.rand(2, MATRIX, MATRIX, device="cuda")
        return ((rand[0] + 1) / 2 * self.torch.where(rand[1] < 0.5, -1, 1)).bfloat16()

    def compute_unit(self):
        self.torch.mm(*self.factors, out=self.product)

    def step(self, batch):
        self.sum += batch.sum()
        for _ in range(self.units):
            self.compute_unit()
        self.sum += batch.sum()

    def events(self):
        return [self.torch.cuda.Event(enable_timing=True) for _ in range(2)]

    def time(self, n, run):
        """Of one run, in ms, by the device's clock."""
        begin, end = self.events()
        begin.record()
        for _ in range(n):
            run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / n

    def batch(self, nbytes):
        return self.host[:nbytes // 8]

    def time_alone(self, nbytes, share):
        host, device = self.batch(nbytes), self.torch.empty(nbytes // 8, dtype=self.torch.int64, device="cuda")
        n = steps_for(nbytes, self.steps)

        def copy():
            device.copy_(host, non_blocking=True)
        copy_ms = min(self.time(n, copy) for _ in range(self.repeats + 1))
        self.units = max(int(share > 1), round(share * copy_ms / self.unit_ms))
        compute_ms = min(self.time(n, lambda: self.step(device)) for _ in range(self.repeats))
        return copy_ms, compute_ms

    def time_way(self, way, nbytes):
        """The median of some passes: a step of both, in ms."""
        host, n = self.batch(nbytes), steps_for(nbytes, self.steps)
        expected = 2 * (LEAD + n) * int(host.sum())
        return statistics.median(self.pass_of(way, host, n, expected) for _ in range(self.repeats))

    def pass_of(self, way, host, n, expected):
        begin, end = self.events()
        self.sum.zero_()
        for i, batch in enumerate(way(self.torch, itertools.repeat(host, LEAD + n)), 1):
            self.step(batch)
            if i == LEAD:
                begin.record()
        end.record()
        end.synchronize()
        if (int(self.sum) - expected) % (1 << 64):
            raise RuntimeError("a step read wrong bytes")
        return begin.elapsed_time(end) / n


def number(arguments, name, otherwise):
    return int(peers.option(arguments, name) or otherwise)


def bring_pinned(arguments, device):
    import torch
    most_mib = number(arguments, "--most-mib", 1024)
    bench = TorchBench(torch, most_mib, number(arguments, "--steps", 0), number(arguments, "--repeats", 3))
    print("| batch | way | copy alone, ms | compute alone, ms | step / the longer |\n|---|---|---|---|---|")
    figures = {"queue.wall_ratio_1m": sizes_of(1, 1), "queue.wall_ratio_16m": sizes_of(16, most_mib)}
    return [(figure, name, ratio, "ratio", device) for figure, sizes in figures.items()
            for name, ratio in worst_ratios(bench, PINNED_WAYS, list(sizes)).items()]


# ---- pageable batches ------------------------------------------------------------------------------------------------


def cycles_for(torch, ms):
    """Of torch.cuda._sleep, and the time that they take in fact."""
    def time_of(cycles):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)
    time_of(10_000_000)
    cycles = int(10_000_000 * ms / time_of(10_000_000))
    return cycles, statistics.median(time_of(cycles) for _ in range(5))


def compute_share(feed, compute, finish, step_ms, steps, clock=time.perf_counter):
    """Of the time of so many steps, the part that the device computed. `feed` has some more, to warm up."""
    for _ in range(WARM):
        next(feed)
        compute()
    finish()
    start = clock()
    for _ in feed:
        compute()
    finish()
    return step_ms * steps / ((clock() - start) * 1e3)


def bring_pageable(arguments, device):
    import torch
    steps = number(arguments, "--steps", PAGEABLE_STEPS)
    nbytes = number(arguments, "--batch-mb", BATCH_MB) * 1000000
    buffers = [torch.full((nbytes,), i, dtype=torch.uint8) for i in range(BUFFERS)]
    cycles, step_ms = cycles_for(torch, COMPUTE_MS)
    rows = []
    for name, way in PAGEABLE_WAYS.items():
        feed = iter(way(torch, itertools.islice(itertools.cycle(buffers), WARM + steps)))
        share = compute_share(feed, lambda: torch.cuda._sleep(cycles), torch.cuda.synchronize, step_ms, steps)
        rows.append(("queue.pageable_compute_share", name, share, "", device))
    return rows


# ---- device to device ------------------------------------------------------------------------------------------------


def busy_ratio(time_once, rounds=ACROSS_ROUNDS):
    """A copy to a device that computes, over the same to an idle one: medians."""
    time_once(False)
    idle, busy = (statistics.median(time_once(is_busy) for _ in range(rounds)) for is_busy in (False, True))
    return busy / idle


def bring_torch_across(device):
    import torch
    source = torch.zeros(ACROSS_BYTES, dtype=torch.uint8, device="cuda:0")
    with torch.cuda.device(1):
        cycles, _ = cycles_for(torch, ACROSS_BUSY_MS)

    def once(is_busy):
        if is_busy:
            with torch.cuda.device(1):
                torch.cuda._sleep(cycles)
        start = time.perf_counter()
        source.to("cuda:1", non_blocking=True)
        torch.cuda.current_stream(0).synchronize()  # on which the copy runs
        took = time.perf_counter() - start
        torch.cuda.synchronize(1)
        return took
    return [("queue.d2d_busy_ratio", "torch .to", busy_ratio(once), "", device)]


def jax_across():
    """In a process of its own: see bring_jax_across. Prints the ratio."""
    import jax
    here, there = jax.devices()[:2]
    source = jax.device_put(jax.numpy.zeros(ACROSS_BYTES, jax.numpy.uint8), here).block_until_ready()
    matrix = jax.device_put(jax.numpy.full((MATRIX, MATRIX), 1 / MATRIX, jax.numpy.bfloat16), there)
    work = jax.jit(lambda m, n: jax.lax.fori_loop(0, n, lambda _, x: x @ m, m))

    def time_work(n):
        start = time.perf_counter()
        work(matrix, n).block_until_ready()
        return time.perf_counter() - start
    time_work(100)
    n = int(1000 * ACROSS_BUSY_MS / 1e3 / time_work(1000)) + 1

    def once(is_busy):
        computed = work(matrix, n) if is_busy else matrix
        start = time.perf_counter()
        jax.device_put(source, there).block_until_ready()
        took = time.perf_counter() - start
        computed.block_until_ready()
        return took
    print(json.dumps(busy_ratio(once)))


def bring_jax_across(device):
    environment = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    run = subprocess.run([sys.executable, __file__, "jax-across"], env=environment, capture_output=True, text=True,
                         timeout=JAX_TIMEOUT_S)
    if run.returncode:
        raise RuntimeError((run.stderr.strip().splitlines() or ["no word why"])[-1])
    return [("queue.d2d_busy_ratio", "jax.device_put", json.loads(run.stdout.splitlines()[-1]), "", device)]


# ---- the run ---------------------------------------------------------------------------------------------------------


def device_of(rows):
    """None: one that has no peers."""
    device = rows[0]["device"]
    if device.startswith("sim:"):
        print("peers: a simulated device has none", file=sys.stderr)
        return None
    return device


def run_queue(arguments, scratch):
    device = device_of(peers.run_bench("queue", arguments, scratch))
    return device and peers.find("PyTorch", lambda: bring_pinned(arguments, device)) or []


def run_transfer(arguments, scratch):
    rows = peers.run_bench("transfer", arguments, scratch)
    device = device_of(rows)
    if device is None:
        return []
    more = peers.find("PyTorch", lambda: bring_pageable(arguments, device))
    if any(row["figure"] == "queue.d2d_busy_ratio" for row in rows):
        more += peers.find("PyTorch on two GPUs", lambda: bring_torch_across(device))
        more += peers.find("JAX on two GPUs", lambda: bring_jax_across(device))
    return more


if __name__ == "__main__":
    if sys.argv[1:] == ["jax-across"]:
        jax_across()
    else:
        peers.main({"queue": run_queue, "transfer": run_transfer}, __doc__)
