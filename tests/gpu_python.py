# SPDX-License-Identifier: Apache-2.0
"""The Python package on a GPU, its items consumed by PyTorch, CuPy, Numba and JAX: values, memory that is not reused
under a reader, a host that does not wait, an exit with tensors alive, and how fast it is.

    WEIR_LIBRARY_PATH=build/release python3 tests/gpu_python.py [torch cupy numba jax]     77: no GPU, or none of them
"""
import gc
import importlib.util
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
if importlib.util.find_spec("weir") is None or "WEIR_LIBRARY_PATH" in os.environ:
    sys.path.insert(0, str(ROOT / "interpose" / "python"))
MIB = 1 << 20
SECONDS = 120  # of one framework
BUSY_MS = 80


def check(condition, what):
    print(f"  {'ok' if condition else 'WRONG'}  {what}", flush=True)
    if not condition:
        check.failed = True


check.failed = False


def fill(q, batches):
    """Pushes from a thread of its own, as a loader does."""

    def run():
        try:
            for batch in batches:
                q.push(batch)
            q.close()
        except BaseException as error:
            q.fail(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def wait_until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)
    return condition()


# ---- PyTorch -------------------------------------------------------------------------------------------


def torch_sleep(torch, ms):
    """Queues so much work on the current stream, and returns at once."""
    torch.cuda._sleep(int(ms * torch_sleep.cycles_per_ms))


def calibrate(torch):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(10_000_000)
    torch.cuda.synchronize()
    begin.record()
    torch.cuda._sleep(100_000_000)
    end.record()
    torch.cuda.synchronize()
    torch_sleep.cycles_per_ms = 100_000_000 / begin.elapsed_time(end)


def torch_values(torch, numpy, weir):
    side = torch.cuda.Stream()
    for stream in (torch.cuda.default_stream(), side):
        with weir.Queue(5 * MIB, items=3) as q, torch.cuda.stream(stream):
            thread = fill(q, ([numpy.full((MIB,), i, "float32"), numpy.full(7, i, "int64")] for i in range(60)))
            right = []
            for i, item in enumerate(q):
                images, labels = map(torch.from_dlpack, item)
                right.append(((images == i).all() & (labels == i).all()).clone())
            thread.join()
            check(len(right) == 60 and bool(torch.stack(right).all()), f"60 items' values on {stream}")
            check(q.stats()["host_syncs"] == 0, "no host wait for a stream that computes")
    half = torch.arange(100, dtype=torch.bfloat16)
    with weir.Queue(MIB) as q:
        q.push(half.view(torch.int16).numpy())
        back = torch.from_dlpack(q.get()).view(torch.bfloat16).cpu()
    check(torch.equal(back, half), "bfloat16 bits")


def torch_reader_under_refill(torch, numpy, weir):
    """The tensor is dropped while the kernel that reads it is queued behind others."""
    side = torch.cuda.Stream()
    with weir.Queue(4 * MIB, items=1) as q:
        q.push(numpy.full(MIB, 1, "float32"))
        with torch.cuda.stream(side):
            tensor = torch.from_dlpack(q.get())
            torch_sleep(torch, BUSY_MS)
            copy = tensor.clone()
            del tensor
            began = time.monotonic()
            q.push(numpy.full(MIB, 2, "float32"), timeout=30)
            pushed_ms = (time.monotonic() - began) * 1e3
        second = torch.from_dlpack(q.get()).clone()
        torch.cuda.synchronize()
        check(bool((copy == 1).all()), "a slot is not refilled under a reader of another stream")
        check(bool((second == 2).all()), "and is behind it")
        check(pushed_ms < BUSY_MS / 2, f"the push did not wait for it: {pushed_ms:.2f} ms")


def torch_no_wait(torch, numpy, weir):
    side = torch.cuda.Stream()
    with weir.Queue(4 * MIB, items=4) as q:
        for i in range(2):
            q.push(numpy.full(MIB, i, "float32"))
        torch.from_dlpack(q.get()).sum()  # a kernel's first launch loads it, which may wait for what runs
        torch.cuda.synchronize()
        torch_sleep(torch, BUSY_MS)  # on the default stream
        began = time.monotonic()
        with torch.cuda.stream(side):
            item = q.get(stream=side)
            total = torch.from_dlpack(item).sum()
            got_ms = (time.monotonic() - began) * 1e3
            side.synchronize()
        done_ms = (time.monotonic() - began) * 1e3
        torch.cuda.synchronize()
        check(float(total) == MIB, "values behind compute on another stream")
        check(got_ms < 10 and done_ms < BUSY_MS / 2, f"got in {got_ms:.2f} ms, read in {done_ms:.2f} ms")


def torch_blocks(torch, numpy, weir):
    pool = weir.pool()
    side = torch.cuda.Stream()
    block = pool.alloc(4 * MIB, side)
    view = block.view((MIB,), "float32")
    with torch.cuda.stream(side):
        tensor = torch.from_dlpack(view)
        tensor.fill_(3)
    check(bool((view.numpy() == 3).all()), "a block written by PyTorch, read by numpy")
    live = pool.stats()["live_blocks"]
    block.free()
    check(pool.stats()["live_blocks"] == live, "the tensor keeps the block")
    del tensor, view
    gc.collect()
    check(pool.stats()["live_blocks"] == live - 1, "and its end frees it")
    pinned = weir.empty_pinned((4, MIB), "float32")
    check(torch.from_numpy(pinned).is_pinned(), "PyTorch knows empty_pinned's memory as pinned")


def torch_speed(torch, numpy, weir):
    pageable = numpy.ones(16 * MIB, "float32")
    pinned = weir.empty_pinned(16 * MIB)
    pinned[:] = 1
    for name, source, borrow in (("pageable", pageable, False), ("pinned, borrowed", pinned, True)):
        with weir.Queue(64 * MIB, items=3) as q:
            for round_ in range(2):
                began = time.monotonic()
                for _ in range(16):
                    q.push(source, borrow=borrow)
                    torch.from_dlpack(q.get())
                q.wait_borrowed()
                torch.cuda.synchronize()
                seconds = time.monotonic() - began
        print(f"  python.queue_gbps ({name}): {16 * 64 * MIB / seconds / 1e9:.1f} GB/s")
    small, times = numpy.ones(1000, "float32"), []
    with weir.Queue(MIB, items=4) as q:
        for _ in range(300):
            began = time.perf_counter()
            q.push(small)
            torch.from_dlpack(q.get())
            times.append((time.perf_counter() - began) * 1e6)
    print(f"  python.item_us (push, get, from_dlpack, drop of 4 KB): {statistics.median(times):.1f} us")


def run_torch():
    import numpy
    import torch

    import weir

    calibrate(torch)
    for test in (torch_values, torch_reader_under_refill, torch_no_wait, torch_blocks, torch_speed):
        test(torch, numpy, weir)
    q = weir.Queue(MIB)
    q.push(numpy.ones(10))
    run_torch.alive_at_exit = torch.from_dlpack(q.get())  # dropped after the interpreter has ended, if at all


# ---- CuPy and Numba ------------------------------------------------------------------------------------


def run_cupy():
    import cupy
    import numpy

    import weir

    with weir.Queue(5 * MIB, items=3) as q:
        thread = fill(q, (numpy.full(MIB, i, "float32") for i in range(40)))
        right = [bool((cupy.from_dlpack(item) == i).all()) for i, item in enumerate(q)]
        thread.join()
        check(len(right) == 40 and all(right), "40 items by DLPack")
    with weir.Queue(5 * MIB, items=3) as q:
        side = cupy.cuda.Stream(non_blocking=True)
        thread = fill(q, (numpy.full(MIB, i, "float32") for i in range(40)))
        right = []
        with side:
            for i, item in enumerate(q):
                item.use_on(side)
                right.append((cupy.asarray(item) == i).all())
        thread.join()
        check(len(right) == 40 and all(map(bool, right)), "40 items by the CUDA array interface, on another stream")


def run_numba():
    import numpy
    from numba import cuda

    import weir

    with weir.Queue(5 * MIB, items=3) as q:
        thread = fill(q, (numpy.full(MIB, i, "float32") for i in range(20)))
        right = [bool((cuda.as_cuda_array(item).copy_to_host() == i).all()) for i, item in enumerate(q)]
        thread.join()
        check(len(right) == 20 and all(right), "20 items by the CUDA array interface")


# ---- JAX -----------------------------------------------------------------------------------------------


def run_jax():
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.3")
    import jax
    import jax.numpy as jnp
    import numpy

    import weir.jax

    step = jax.jit(lambda x, w: (w @ w * 1e-4, x.sum(), (x == x[0, 0]).all(), x[0, 0]))
    w = jnp.ones((4096, 4096), jnp.bfloat16)

    def source():
        buffer = numpy.empty((1024, 1024), "float32")
        for i in range(100):
            buffer[:] = i
            yield {"x": buffer, "i": i}

    results = []
    with weir.jax.prefetch(source(), depth=2) as batches:
        for batch in batches:
            w, _, same, first = step(batch["x"], w)
            results.append((same, first, batch["i"]))
        stats = batches._queue.stats() if batches._queue else {"items_pushed": 0, "host_syncs": 0}
    right = all(bool(same) and float(first) == int(i) for same, first, i in results)
    check(right and len(results) == 100, "100 prefetched batches, each overwritten by the source after it was given")
    print(f"  of them {stats['items_pushed']} by the queue, {100 - stats['items_pushed']} by device_put")
    check(stats["host_syncs"] == 0, "no host wait for a stream that computes")

    def heavy(x, w):
        for _ in range(40):
            w = w @ w * 1e-4
        return x + w.sum().astype(x.dtype) * 0

    late, heavy = [], jax.jit(heavy)
    with weir.jax.prefetch(numpy.full((512, 512), i, "float32") for i in range(12)) as batches:
        for x in batches:
            late.append(heavy(x, w))
            del x  # its slot is free for the next, but for the kernel that reads it
    check(all(bool((y == i).all()) for i, y in enumerate(late)), "slots are not refilled under JAX's kernels")

    rollout = [numpy.full((84, 84), i % 200, "uint8") for i in range(1152)]
    for name, move in (("jax.device_put", jax.device_put), ("weir.jax.transfer", weir.jax.transfer)):
        times = []
        for _ in range(5):
            began = time.monotonic()
            moved = jax.block_until_ready(move(rollout, jax.devices()[0]))
            times.append((time.monotonic() - began) * 1e3)
        print(f"  1152 arrays of 7 KB by {name}: {statistics.median(times):.1f} ms")
    check(all(bool((m == i % 200).all()) for i, m in enumerate(moved)), "their values")
    pinned = [weir.empty_pinned((4 << 20,), "uint8") for _ in range(4)]
    for array in pinned:
        array[:] = 7
    moved = weir.jax.transfer(pinned)
    for array in pinned:
        array[:] = 9
    check(all(bool((m == 7).all()) for m in moved), "pinned arrays, overwritten when transfer had returned")


# ---- all -----------------------------------------------------------------------------------------------

FRAMEWORKS = {"torch": run_torch, "cupy": run_cupy, "numba": run_numba, "jax": run_jax}


def has_gpu():
    import weir

    try:
        weir.Pool(0).close()
    except weir.DeviceError as error:
        print(f"no GPU: {error}")
        return False
    return True


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--one":
        FRAMEWORKS[sys.argv[2]]()
        sys.exit(1 if check.failed else 0)
    if not has_gpu():
        sys.exit(77)
    names = [n for n in sys.argv[1:] or FRAMEWORKS if importlib.util.find_spec(n)]
    status = 0 if names else 77
    for name in names:
        print(name, flush=True)
        try:
            code = subprocess.run([sys.executable, __file__, "--one", name], timeout=SECONDS).returncode
        except subprocess.TimeoutExpired:
            code = f"none after {SECONDS} s"
        if code:
            print(f"  WRONG  exit status {code}", flush=True)
            status = 1
    sys.exit(status)


main()
