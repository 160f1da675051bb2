#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The adapters on a GPU: each part in a process of its own, since frameworks take an allocator once.

    WEIR_LIBRARY_PATH=BUILD PYTHONPATH=interpose/python python3 tests/gpu_adapters.py [PART...]

Prints a line for each part, and the figures torch.pair_ns and cupy.empty_ratio. Frameworks that are missing are said and
left out. Exit code 77: no GPU; 1: a part failed.
"""
import ctypes
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import timeit
import warnings

MIB, GIB = 1 << 20, 1 << 30
SKIPPED = 77
KERNEL_S = 0.08


def adapters():
    from weir import _adapters
    return _adapters


def live_bytes():
    return adapters().stats(0)["live_bytes"]


def set_limit(nbytes):
    adapters().check(adapters().lib.weir_shared_limit(0, nbytes, 0.0))


def raises(kind, call):
    """The text of what the call raises, which must be of that type."""
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


def declines(call):
    """The text of the warning with which the call returns False."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert call() is False
    return str(caught[-1].message)


# ---- PyTorch


def torch_with_weir(level="native"):
    import torch
    import weir.torch
    assert weir.torch.install(level)
    return torch


def spin(torch):
    """80 ms on the current stream."""
    torch.cuda._sleep(int(KERNEL_S * 1.755e9))


def torch_values(level="native"):
    torch = torch_with_weir(level)
    x = torch.arange(1 << 20, device="cuda")
    assert live_bytes() >= x.nbytes
    assert int(x.sum()) == sum(range(1 << 20))
    assert torch.empty(0, device="cuda").numel() == 0
    a = torch.randn(512, 512, device="cuda")
    b = torch.linalg.solve(a, a)
    assert torch.allclose(b, torch.eye(512, device="cuda"), atol=1e-2)
    del x, a, b
    y = torch.nn.functional.conv2d(torch.ones(8, 3, 64, 64, device="cuda"), torch.ones(4, 3, 3, 3, device="cuda"))
    assert float(y.max()) == 27
    assert adapters().stats(0)["host_waits"] == 0


def torch_values_plain():
    torch_values("plain")


def torch_T01_statistics():
    torch = torch_with_weir()
    x = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_allocated() == live_bytes() == GIB
    assert torch.cuda.memory_reserved() == adapters().stats(0)["reserved_bytes"]
    del x
    assert torch.cuda.memory_allocated() == 0 and torch.cuda.max_memory_allocated() == GIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    y = torch.empty(1000, device="cuda")
    assert torch.cuda.max_memory_allocated() == 4096
    assert torch.cuda.memory_stats()["allocation.all.current"] == 1
    assert "allocated" in torch.cuda.memory_summary().lower()
    assert [s["address"] for s in torch.cuda.memory_snapshot()] == [y.data_ptr()]
    for _ in range(10):  # what has passed is known once it was asked for
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < GIB
    torch.backends.cudnn.benchmark = True
    torch.nn.functional.conv2d(torch.ones(8, 3, 64, 64, device="cuda"), torch.ones(4, 3, 3, 3, device="cuda"))
    assert "history" in raises(RuntimeError, lambda: torch.cuda.memory._record_memory_history())


def torch_out_of_memory_plain():
    torch_out_of_memory("plain")


def torch_record_stream_plain():
    torch_record_stream("plain")


def torch_graphs_plain():
    torch_graphs("plain")


def torch_out_of_memory(level="native"):
    torch = torch_with_weir(level)
    set_limit(GIB)
    text = raises(torch.OutOfMemoryError, lambda: torch.empty(2 * GIB, dtype=torch.uint8, device="cuda"))
    assert "CUDA out of memory" in text and "limit of 1073741824" in text, text
    x = torch.empty(GIB // 2, dtype=torch.uint8, device="cuda")  # and it goes on
    raises(torch.OutOfMemoryError, lambda: torch.empty(GIB * 3 // 4, dtype=torch.uint8, device="cuda"))
    del x
    torch.empty(GIB * 3 // 4, dtype=torch.uint8, device="cuda")


def torch_T02_larger_after_large():
    torch = torch_with_weir()
    total = torch.cuda.mem_get_info()[0] // 16 * 16
    x = torch.empty(total * 3 // 4, dtype=torch.uint8, device="cuda")
    del x
    assert torch.empty(total * 7 // 8, dtype=torch.uint8, device="cuda").numel() == total * 7 // 8


def torch_T02_mempool():
    import torch
    import weir.torch
    torch.empty(1, device="cuda")
    total = torch.cuda.mem_get_info()[0] // 16 * 16
    pool = weir.torch.pool()

    def take(nbytes):
        with torch.cuda.use_mem_pool(pool):
            return torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    x = take(total * 3 // 4)
    del x  # PyTorch keeps the segment
    raises(torch.OutOfMemoryError, lambda: take(total * 7 // 8))
    del pool
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    pool = weir.torch.pool()
    assert take(total * 7 // 8).numel() == total * 7 // 8


def torch_limit():
    torch = torch_with_weir()
    import weir
    x = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    raises(weir.NotYet, lambda: weir.limit(0, GIB // 2))
    raises(torch.OutOfMemoryError, lambda: torch.empty(GIB, dtype=torch.uint8, device="cuda"))
    del x
    torch.cuda.synchronize()
    for _ in range(10):  # what has passed is known once it was asked for
        torch.cuda.empty_cache()
    weir.limit(0, GIB // 2)
    raises(torch.OutOfMemoryError, lambda: torch.empty(GIB, dtype=torch.uint8, device="cuda"))
    torch.cuda.set_per_process_memory_fraction(0.5)
    assert abs(torch.cuda.get_per_process_memory_fraction() - 0.5) < 0.01
    assert torch.empty(GIB, dtype=torch.uint8, device="cuda").numel() == GIB


def torch_record_stream(level="native"):
    torch = torch_with_weir(level)
    side, n = torch.cuda.Stream(), 64 * MIB
    out = torch.zeros(n, dtype=torch.uint8, device="cuda")
    for round_ in range(5):
        x = torch.full((n,), 7, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        x.record_stream(side)
        with torch.cuda.stream(side):
            spin(torch)
            out.copy_(x)
        address = x.data_ptr()
        started = time.perf_counter()
        del x
        y = torch.full((n,), 9, dtype=torch.uint8, device="cuda")
        took = time.perf_counter() - started
        assert y.data_ptr() != address, "reused while the side stream reads"
        assert round_ == 0 or took < KERNEL_S / 4, f"the host waited {took * 1e3:.1f} ms"
        torch.cuda.synchronize()
        assert int(out.min()) == int(out.max()) == 7
        del y


def torch_graphs(level="native"):
    torch = torch_with_weir(level)
    x = torch.ones(MIB, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        (x * 2 + 1).sum()  # warms up
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2 + 1) * 3
        z = y.sum()
    for value in (1, 5):
        x.fill_(value)
        others = [torch.full((MIB,), -1.0, device="cuda") for _ in range(8)]  # must not lie in the graph's memory
        graph.replay()
        torch.cuda.synchronize()
        assert float(y[0]) == (2 * value + 1) * 3 and float(z) == float(y[0]) * MIB
        assert all(float(o.max()) == -1 for o in others)
    held = live_bytes()
    del y, z, graph, others
    assert live_bytes() < held


def torch_refusals():
    import torch
    import weir.torch
    torch.empty(1, device="cuda")
    assert "initialised already" in declines(weir.torch.install)
    x = torch.ones(4, device="cuda")  # on its own allocator
    assert x.sum().item() == 4 and torch.cuda.memory_allocated() > 0


def torch_twice():
    import weir.torch
    torch_with_weir()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert weir.torch.install() is True
    assert "already" in str(caught[0].message)


def torch_detect():
    import torch
    import weir.torch
    assert weir.torch.install("native", policy="completed")
    side, main = torch.cuda.Stream(), torch.cuda.current_stream()
    kinds = {}

    def use(kind):
        x = torch.ones(MIB, device="cuda")
        side.wait_stream(main)
        with torch.cuda.stream(side):
            x.sum()
        if kind == "declared":
            x.record_stream(side)
        if kind == "joined":
            main.wait_stream(side)
        del x
        if kind == "joined late":
            main.wait_stream(side)
        if kind == "synchronised late":
            torch.cuda.synchronize()
    for kind in ("declared", "joined", "joined late", "synchronised late", "unjoined"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with weir.torch.detect() as reports:
                use(kind)
        torch.cuda.synchronize()
        kinds[kind] = len(reports)
    late = {"joined late": 1, "synchronised late": 1, "unjoined": 1}
    assert kinds == {"declared": 0, "joined": 0, **late}, kinds
    model = torch.nn.Linear(64, 64, device="cuda")
    with weir.torch.detect() as reports:
        for _ in range(3):
            model(torch.randn(8, 64, device="cuda")).sum().backward()
    assert reports == []


class Numbers:
    def __len__(self):
        return 64

    def __getitem__(self, i):
        import torch
        return torch.full((1000,), i)


def torch_forked_workers_and_exit():
    torch = torch_with_weir()
    kept = torch.ones(1000, device="cuda")
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=8, num_workers=2, pin_memory=True)
    total = sum(int(batch.cuda(non_blocking=True).sum()) for batch in loader)
    assert total == 1000 * sum(range(64))
    globals()["kept_until_exit"] = kept


def torch_mempool():
    import torch
    import weir.torch
    pool = weir.torch.pool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((32 * MIB,), 3, dtype=torch.uint8, device="cuda")
    assert int(x.sum()) == 3 * 32 * MIB
    assert live_bytes() >= 32 * MIB and torch.cuda.memory_allocated() >= 32 * MIB
    assert torch.cuda.memory_stats()["active_bytes.all.current"] >= 32 * MIB
    total = torch.cuda.get_device_properties(0).total_memory

    def too_much():
        with torch.cuda.use_mem_pool(pool):
            torch.empty(2 * total, dtype=torch.uint8, device="cuda")
    raises(torch.OutOfMemoryError, too_much)
    del x
    del pool
    torch.cuda.empty_cache()
    assert live_bytes() == 0, live_bytes()


def torch_prefetch():
    torch = torch_with_weir()
    import numpy
    import weir.torch
    batches = ({"x": numpy.full((256, 1000), i, numpy.float32), "i": (i, torch.tensor(i))} for i in range(50))
    for i, batch in enumerate(weir.torch.prefetch(batches, "cuda", depth=3)):
        spin(torch) if i < 3 else None
        assert batch["x"].is_cuda and float(batch["x"].sum()) == 256000 * i
        assert batch["i"][0] == i and int(batch["i"][1]) == i
    assert i == 49


LOOP = """
#include <stdint.h>
#include <time.h>
typedef int32_t (*alloc_fn)(uint64_t, void **);
typedef int32_t (*free_fn)(void *);
typedef int (*weir_alloc_fn)(void *pool, uint64_t bytes, void *stream, uint64_t *out);
typedef int (*weir_free_fn)(void *pool, uint64_t block, void *stream);
typedef int (*device_fn)(int *);

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
double pair_ns(alloc_fn a, free_fn f, uint64_t bytes, int n)
{
    void *block;
    double from = 0;
    for (int i = -100; i < n; i++) {
        if (i == 0) from = now_ns();
        a(bytes, &block);
        f(block);
    }
    return (now_ns() - from) / n;
}
double weir_pair_ns(weir_alloc_fn a, weir_free_fn f, void *pool, uint64_t bytes, int n)
{
    uint64_t block;
    double from = 0;
    for (int i = -100; i < n; i++) {
        if (i == 0) from = now_ns();
        a(pool, bytes, 0, &block);
        f(pool, block, 0);
    }
    return (now_ns() - from) / n;
}
double device_ns(device_fn get, int n)
{
    int device;
    double from = now_ns();
    for (int i = 0; i < n; i++) get(&device);
    return (now_ns() - from) / n;
}
"""
SIZES = (512, 64 << 10, 4 << 20)


def loops():
    with tempfile.TemporaryDirectory() as scratch:
        source, built = pathlib.Path(scratch, "loop.c"), pathlib.Path(scratch, "loop.so")
        source.write_text(LOOP)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", built], check=True)
        library = ctypes.CDLL(str(built))
    for name in ("pair_ns", "weir_pair_ns", "device_ns"):
        getattr(library, name).restype = ctypes.c_double
    return library


def median(values):
    return sorted(values)[len(values) // 2]


def address(function):
    return ctypes.cast(function, ctypes.c_void_p)


def torch_pairs(torch):
    """Nanoseconds a pair through the framework's C++, by size."""
    torch.empty(1, device="cuda")
    library = ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib/libtorch_cuda.so"))
    functions = (address(library.aoti_torch_cuda_caching_allocator_raw_alloc),
                 address(library.aoti_torch_cuda_caching_allocator_raw_delete))
    loop = loops().pair_ns
    return [median(loop(*functions, ctypes.c_uint64(size), 20000) for _ in range(11)) for size in SIZES]


def pair_ns(torch):
    return max(torch_pairs(torch))


def pair_parts():
    """What the pair of torch_pair is made of: weir's own, and one question for the current device."""
    library, lib = loops(), adapters().lib
    pool = ctypes.c_void_p(adapters().shared_pool(0))
    functions = address(lib.weir_alloc), address(lib.weir_free)
    pairs = [median(library.weir_pair_ns(*functions, pool, ctypes.c_uint64(size), 20000) for _ in range(11))
             for size in SIZES]
    runtime = ctypes.CDLL(None)
    asked = median(library.device_ns(address(runtime.cudaGetDevice), 20000) for _ in range(11)) \
        if hasattr(runtime, "cudaGetDevice") else float("nan")
    return pairs, asked


def torch_pair_native():
    import torch
    print(f"torch.pair_ns native {pair_ns(torch):.0f}")


def torch_pair():
    by_size = torch_pairs(torch_with_weir())
    parts, asked = pair_parts()
    print(f"torch.pair_ns weir {max(by_size):.0f}; at 512 B, 64 KiB, 4 MiB: {' '.join(f'{t:.0f}' for t in by_size)}; "
          f"weir alone {' '.join(f'{t:.0f}' for t in parts)}; cudaGetDevice {asked:.0f}")


def torch_pair_plain():
    print(f"torch.pair_ns weir, plain {pair_ns(torch_with_weir('plain')):.0f}")


# ---- CuPy


def cupy_values():
    import cupy
    import weir.cupy
    assert weir.cupy.install() and weir.cupy.install()
    x = cupy.arange(MIB)
    assert int(x.sum()) == MIB * (MIB - 1) // 2
    pool = cupy.get_default_memory_pool()
    assert pool.used_bytes() == live_bytes() >= x.nbytes
    assert pool.total_bytes() >= pool.used_bytes() and pool.free_bytes() >= 0 and pool.n_free_blocks() >= 0
    assert cupy.empty(0).size == 0
    text = raises(cupy.cuda.memory.OutOfMemoryError, lambda: cupy.empty(1 << 45, cupy.uint8))
    assert "Out of memory" in text, text
    with cupy.cuda.Stream(non_blocking=True) as stream:
        y = cupy.ones(MIB)
        assert float(y.sum()) == MIB
    del x, y
    cupy.cuda.Device().synchronize()
    pool.free_all_blocks()
    assert pool.used_bytes() == 0
    weir.cupy.uninstall()
    assert cupy.zeros(10).sum() == 0 and live_bytes() == 0


def cupy_use():
    import cupy
    import weir.cupy
    weir.cupy.install()
    side = cupy.cuda.Stream(non_blocking=True)
    clock = cupy.RawKernel(
        'extern "C" __global__ void wait(long long ns) { long long t, u; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));'
        ' do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(u)); while (u - t < ns); }', "wait")
    out = cupy.zeros(MIB, cupy.int32)
    x = cupy.full(MIB, 7, cupy.int32)
    cupy.cuda.Device().synchronize()
    with side:
        clock((1,), (1,), (int(KERNEL_S * 1e9),))
        cupy.copyto(out, x)
    weir.cupy.use(x, side)
    address = x.data.ptr
    del x
    y = cupy.full(MIB, 9, cupy.int32)
    assert y.data.ptr != address
    cupy.cuda.Device().synchronize()
    assert int(out.min()) == int(out.max()) == 7


def call_ns(call):
    return min(timeit.repeat(call, number=20000, repeat=9)) / 20000 * 1e9


def empty_ns(cupy):
    """Of cupy.empty, and of its pool alone."""
    malloc = cupy.get_default_memory_pool().malloc
    return call_ns(lambda: cupy.empty(1024, cupy.float32)), call_ns(lambda: malloc(4096))


def cupy_empty():
    import cupy
    import weir.cupy
    native, native_pool = empty_ns(cupy)
    assert weir.cupy.install()
    ours, our_pool = empty_ns(cupy)
    print(f"cupy.empty_ratio {ours / native:.2f} ({ours:.0f} ns, its own pool {native:.0f}; the pools' malloc alone "
          f"{our_pool:.0f} and {native_pool:.0f})")


# ---- Numba, cuda.core, RMM


def numba_values():
    import weir.numba
    assert weir.numba.install()
    import numpy
    from numba import cuda
    import weir
    data = numpy.arange(MIB)
    x = cuda.to_device(data)
    assert live_bytes() >= data.nbytes
    assert (x.copy_to_host() == data).all()
    stream = cuda.stream()
    y = cuda.to_device(data, stream=stream)
    assert (y.copy_to_host(stream=stream) == data).all()
    raises(weir.OutOfMemory, lambda: cuda.device_array(1 << 45, numpy.uint8))
    assert cuda.current_context().get_memory_info().total > 0
    del x, y
    for _ in range(100):
        z = cuda.to_device(data)
        assert (z.copy_to_host() == data).all()
    assert adapters().stats(0)["reserved_bytes"] < 64 * data.nbytes


def numba_pins():
    import weir.numba
    assert weir.numba.install()
    import numpy
    from numba import cuda
    whole = numpy.zeros(3 * MIB + 4096, numpy.uint8)
    at = -whole.ctypes.data % 4096
    first, second = whole[at:at + MIB + 100], whole[at + MIB + 200:at + 3 * MIB]  # they share a page
    for order in (0, 1):
        first[:], second[:] = 3, 5
        pins = [cuda.pinned(first), cuda.pinned(second)]
        for pin in pins:
            pin.__enter__()
        assert int(cuda.to_device(first).copy_to_host().sum()) == 3 * first.size
        assert int(cuda.to_device(second).copy_to_host().sum()) == 5 * second.size
        pins[order].__exit__(None, None, None)
        pins[1 - order].__exit__(None, None, None)
        cuda.current_context().deallocations.clear()
    left = weir.numba._pins().locked_bytes()
    assert left == 0, f"{left} bytes are still locked"


def cuda_core_values():
    import cuda.core
    import weir
    from weir.cuda_core import MemoryResource
    device = cuda.core.Device(0)
    device.set_current()
    resource, stream = MemoryResource(device), device.create_stream()
    device.memory_resource = resource
    buffer = device.allocate(MIB, stream=stream)
    assert buffer.size == MIB and live_bytes() == MIB
    assert buffer.is_device_accessible and not buffer.is_host_accessible and buffer.device_id == 0
    buffer.close(stream)
    assert live_bytes() == 0
    raises(weir.OutOfMemory, lambda: resource.allocate(1 << 45, stream=stream))


def rmm_values():
    import rmm
    import weir.rmm
    rmm.mr.set_current_device_resource(weir.rmm.resource())
    buffer = rmm.DeviceBuffer.to_device(bytes(range(256)) * 4096)
    assert live_bytes() == MIB
    assert buffer.tobytes() == bytes(range(256)) * 4096
    raises(MemoryError, lambda: rmm.DeviceBuffer(size=1 << 45))
    del buffer
    assert live_bytes() == 0


# ---- all together


def one_budget():
    torch = torch_with_weir()
    import cupy
    import numpy
    from numba import cuda
    import weir
    import weir.cupy
    import weir.numba
    set_limit(4 * GIB)
    assert weir.cupy.install() and weir.numba.install()
    x = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    y = cupy.empty(GIB, cupy.uint8)
    z = cuda.device_array(GIB, numpy.uint8)
    assert live_bytes() == 3 * GIB
    raises(torch.OutOfMemoryError, lambda: torch.empty(2 * GIB, dtype=torch.uint8, device="cuda"))
    raises(cupy.cuda.memory.OutOfMemoryError, lambda: cupy.empty(2 * GIB, cupy.uint8))
    raises(weir.OutOfMemory, lambda: cuda.device_array(2 * GIB, numpy.uint8))
    del x, y, z
    torch.cuda.synchronize()
    assert torch.empty(3 * GIB, dtype=torch.uint8, device="cuda").numel() == 3 * GIB
    assert adapters().stats(0)["peak_reserved_bytes"] <= 4 * GIB


PARTS = [torch_values, torch_values_plain, torch_T01_statistics, torch_out_of_memory, torch_out_of_memory_plain,
         torch_T02_larger_after_large, torch_T02_mempool, torch_limit, torch_record_stream, torch_record_stream_plain,
         torch_detect, torch_graphs, torch_graphs_plain, torch_refusals, torch_twice, torch_forked_workers_and_exit,
         torch_mempool, torch_prefetch, torch_pair_native, torch_pair, torch_pair_plain, cupy_values, cupy_use,
         cupy_empty, numba_values, numba_pins, cuda_core_values, rmm_values, one_budget]


def run_part(name):
    part = next(p for p in PARTS if p.__name__ == name)
    try:
        part()
    except ModuleNotFoundError as error:
        print(error)
        sys.exit(SKIPPED)


def has_gpu():
    try:
        driver, n = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    except OSError:
        return False
    return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(n)) == 0 and n.value > 0


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--part":
        return run_part(sys.argv[2])
    probe = subprocess.run([sys.executable, "-c", f"import sys; sys.path[:0] = [{str(pathlib.Path(__file__).parent)!r}];"
                            "import gpu_adapters; sys.exit(not gpu_adapters.has_gpu())"])
    if probe.returncode:
        print("no GPU")
        sys.exit(SKIPPED)
    unknown = set(sys.argv[1:]) - {part.__name__ for part in PARTS}
    if unknown:
        sys.exit(f"no part {' '.join(unknown)}")
    failed = 0
    for part in PARTS:
        if len(sys.argv) > 1 and part.__name__ not in sys.argv[1:]:
            continue
        started = time.monotonic()
        try:
            run = subprocess.run([sys.executable, __file__, "--part", part.__name__], capture_output=True, text=True,
                                 timeout=120, env={**os.environ, "PYTHONUNBUFFERED": "1"})
            code, said = run.returncode, run.stdout.strip()
            trouble = run.stderr.strip()
        except subprocess.TimeoutExpired as error:
            code, said, trouble = "no end", "", str(error)
        word = {0: "ok", SKIPPED: "missing"}.get(code, "FAILED")
        print(f"{word:8}{part.__name__:32}{time.monotonic() - started:5.1f} s  {said}", flush=True)
        if word == "FAILED":
            failed += 1
            print(f"  exit code {code}\n{trouble[-3000:]}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
