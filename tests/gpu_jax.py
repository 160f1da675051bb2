# SPDX-License-Identifier: Apache-2.0
"""JAX's transfers with the hook and without: values, lifetimes, donation, threads, and how long they take.

    WEIR_PJRT=build/gcc/libweir_pjrt.so python3 tests/gpu_jax.py [--results FILE]
                                                  both, side by side; 77: no JAX or no GPU
    python3 tests/gpu_jax.py plain|hooked [checks|figures]                one of them, in this process
"""
import ctypes
import importlib.util
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import threading
import time

MIB = 1 << 20
SECONDS = 140  # of each of the two processes
HERE = pathlib.Path(__file__).resolve()


# ---- the hook ------------------------------------------------------------------------------------------

def find_plugin():
    try:
        spec = importlib.util.find_spec("jax_plugins.xla_cuda13")
    except ModuleNotFoundError:  # no plug-in at all
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    path = pathlib.Path(list(spec.submodule_search_locations)[0]) / "xla_cuda_plugin.so"
    return path if path.is_file() else None


def install():
    """Hooks the table before JAX reads it: the plug-in is one library, however often it is opened."""
    path = os.environ.get("WEIR_PJRT") or HERE.parent.parent / "build" / "gcc" / "libweir_pjrt.so"
    hook = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
    hook.weir_pjrt_message.restype = ctypes.c_char_p
    hook.weir_pjrt_status.restype = ctypes.c_size_t
    hook.weir_pjrt_status.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    plugin = ctypes.CDLL(str(find_plugin()))
    plugin.GetPjrtApi.restype = ctypes.c_void_p
    if hook.weir_pjrt_install(ctypes.c_void_p(plugin.GetPjrtApi())) != 0:
        sys.exit("not hooked: " + hook.weir_pjrt_message().decode())
    return hook


def status_of(hook):
    text = ctypes.create_string_buffer(1 << 16)
    hook.weir_pjrt_status(text, len(text))
    return json.loads(text.value.decode())


# ---- a GPU that is busy --------------------------------------------------------------------------------

class Busy:
    """`start` queues some 80 ms of matrix products on a device and returns at once.

    As a few calls whose kernels are all queued before they return: a loop inside of one call, whose length is not
    known when it is compiled, is led by the host, round by round, and holds up nothing that is queued meanwhile."""

    PRODUCTS = 4  # a call
    MOST_CALLS = 24  # JAX lets 32 be under way, and then waits

    def __init__(self, jax, device, ms=80, side=8192):
        jnp = jax.numpy
        self.jax = jax
        self.a = jax.block_until_ready(jax.device_put(jnp.full((side, side), 1e-4, jnp.bfloat16), device))
        self.run = jax.jit(self._multiply)
        self.n = 4
        self._time()  # compiles
        self.n = min(self.MOST_CALLS, max(1, round(ms / (self._time() / self.n))))
        self.ms = self._time()

    def _multiply(self, x, a):
        for _ in range(self.PRODUCTS):
            x = (x @ a) * 0.5
        return x

    def _time(self):
        t = time.perf_counter()
        self.start()
        self.wait()
        return (time.perf_counter() - t) * 1e3

    def start(self):
        self.last = self.a
        for _ in range(self.n):
            self.last = self.run(self.last, self.a)

    def is_running(self):
        return not self.last.is_ready()

    def wait(self):
        self.jax.block_until_ready(self.last)


def spin(ms):
    """Awake: what is timed next does not pay for waking up, and what was queued before is with the driver."""
    end = time.perf_counter() + ms / 1e3
    while time.perf_counter() < end:
        pass


def timed(action, busies=(), rounds=7, idle_rounds=()):
    """Milliseconds until what `action` returns is ready: every round's. `idle_rounds`, a list, gets those in which a
    device had come to rest before a short action had returned: they tell nothing of a busy one. (A long one may have
    waited for that.)"""
    took = []
    for i in range(rounds + 2):
        for b in busies:
            b.start()
        spin(5)
        t = time.perf_counter()
        result = action(i)
        returned_ms = (time.perf_counter() - t) * 1e3
        if any(not b.is_running() and returned_ms < b.ms / 2 for b in busies):
            idle_rounds.append(i)
        if result is not None:
            result.block_until_ready()
        took.append((time.perf_counter() - t) * 1e3)
        for b in busies:
            b.wait()
    return took[2:]


# ---- to the host, taken apart ----------------------------------------------------------------------------

def huge_kib():
    """Memory of the process in huge pages."""
    lines = pathlib.Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))


def take_apart(action, hook, rounds):
    """Medians: milliseconds in all, in the hook's part, of processor time in user and system mode, page faults, and how
    much more memory lies in huge pages."""
    rows = []
    for i in range(rounds + 2):
        spin(5)
        before, huge, u = hook_ns(hook), huge_kib(), resource.getrusage(resource.RUSAGE_SELF)
        t = time.perf_counter()
        action(i)
        took = (time.perf_counter() - t) * 1e3
        v = resource.getrusage(resource.RUSAGE_SELF)
        rows.append((took, (hook_ns(hook) - before) / 1e6, (v.ru_utime - u.ru_utime) * 1e3,
                     (v.ru_stime - u.ru_stime) * 1e3, v.ru_minflt - u.ru_minflt, (huge_kib() - huge) / 1024))
    return [statistics.median(column) for column in zip(*rows[2:])]


def hook_ns(hook):
    return status_of(hook)["served"]["to_host"]["ns"] if hook else 0


def breakdown(jax, np, hook):
    """Where np.asarray of 64 MiB spends its time. Each result kept needs memory that this process, and maybe this
    machine, has never touched; one that is dropped gives its pages to the next. Beside them, the same memory filled by
    NumPy from the host: what the pages cost without any GPU."""
    rounds, n = 7, 16 * MIB
    make = jax.jit(lambda x: jax.numpy.full((n,), x, jax.numpy.float32))
    arrays = [jax.block_until_ready(make(float(i))) for i in range(2 * (rounds + 2))]
    source, kept = np.ones(n, np.float32), []

    def fill_kept(i):
        kept.append(source.copy())

    cases = {
        "to host, results kept": lambda i: np.asarray(arrays[i]),
        "to host, results dropped": lambda i: np.asarray(arrays.pop()) is None,
        "numpy copy, results kept": fill_kept,
        "numpy copy, results dropped": lambda i: source.copy() is None,
        "numpy copy into warm memory": lambda i: np.copyto(kept[0], source),
    }
    return {name: take_apart(action, hook, rounds) for name, action in cases.items()}


def figures(jax, np):
    jnp, out = jax.numpy, {}
    devices = jax.devices()
    d0 = devices[0]
    busy0 = Busy(jax, d0)
    sources = [np.random.default_rng(i).integers(0, 255, 64 * MIB, np.uint8) for i in range(2)]
    at_rest = []  # rounds that were to be busy

    def put(source):
        return lambda i: jax.device_put(source[i % len(source)], d0)

    idle = statistics.median(timed(put(sources)))
    out["jax.busy_ms"] = busy0.ms
    out["jax.h2d_64m_ms"] = idle
    out["jax.h2d_64m_busy_ms"] = statistics.median(timed(put(sources), [busy0], idle_rounds=at_rest))
    out["jax.h2d_64m_busy_ratio"] = out["jax.h2d_64m_busy_ms"] / idle
    small = [np.arange(256, dtype=np.float32) + i for i in range(2)]
    out["jax.h2d_1k_idle_ms"] = statistics.median(timed(put(small), rounds=101))
    out["jax.h2d_1k_busy_ms"] = statistics.median(timed(put(small), [busy0], 21, at_rest))
    ready = jax.device_put(small[0], d0).block_until_ready()
    out["ready_1k_ms"] = statistics.median(timed(lambda i: ready.block_until_ready(), rounds=21))
    out["put_1k_returns_ms"] = statistics.median(timed(lambda i: jax.device_put(small[i % 2], d0), rounds=101))

    # A fresh array each time: JAX keeps the host's copy of one.
    make = jax.jit(lambda x: jnp.full((16 * MIB,), x, jnp.float32))
    fresh = [jax.block_until_ready(make(float(i))) for i in range(9)]

    def read(i):
        np.asarray(fresh[i])

    out["jax.d2h_64m_ms"] = statistics.median(timed(read))
    del fresh

    pinned = jax.sharding.SingleDeviceSharding(d0, memory_kind="pinned_host")
    x = jax.block_until_ready(make(3.0))
    to_pinned = lambda i: jax.device_put(x, pinned)  # noqa: E731
    idle = statistics.median(timed(to_pinned))
    out["jax.pinned_idle_ms"] = idle
    out["jax.pinned_busy_ratio"] = statistics.median(timed(to_pinned, [busy0], idle_rounds=at_rest)) / idle
    if len(devices) > 1:
        d1 = devices[1]
        busy1 = Busy(jax, d1)
        y = jax.block_until_ready(jax.jit(lambda x: jnp.full((64 * MIB,), x, jnp.float32))(1.0))
        across = lambda i: jax.device_put(y, d1)  # noqa: E731
        idle = statistics.median(timed(across))
        worst = max(statistics.median(timed(across, b, idle_rounds=at_rest)) for b in ([busy0], [busy1], [busy0, busy1]))
        out["jax.d2d_256m_idle_ms"] = idle
        out["jax.d2d_256m_busy_ratio"] = worst / idle
    out["jax.busy_rounds_at_rest"] = len(at_rest)
    return out


# ---- what must hold ------------------------------------------------------------------------------------

def check_values(jax, np):
    import ml_dtypes
    rng = np.random.default_rng(0)
    types = [np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.float16, np.float32,
             np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4]
    for t in types:
        for shape in [(), (0,), (3, 0, 2), (1,), (7,), (33, 65), (4, 84, 84), (1 << 20,), (3, 1000, 1001)]:
            a = rng.integers(0, 2 if t is np.bool_ else 7, shape).astype(t)
            assert np.array_equal(np.asarray(jax.device_put(a)), a), (t, shape)
    big = rng.standard_normal((64, 128, 96)).astype(np.float32)
    for a in [big[::2], big[:, ::3], big[..., ::2], big.T, big[::-1], big[:, :, 5:69], big[3], big[:, 0, 0],
              np.asfortranarray(big), np.broadcast_to(big[0], (5, 128, 96))]:
        assert np.array_equal(np.asarray(jax.device_put(a)), a), a.strides
    tree = {"a": big, "b": [big[0], np.float32(3)], "c": (np.arange(5), None)}
    back = jax.device_get(jax.device_put(tree))
    assert np.array_equal(back["a"], big) and np.array_equal(back["b"][0], big[0]) and back["c"][0][4] == 4
    assert np.allclose(jax.jit(lambda x: x + 1)(big), big + 1)
    y = jax.jit(lambda x: x * 2)(big)
    y.copy_to_host_async()
    assert np.array_equal(np.asarray(y), big * 2)


def check_host_array_may_change(jax, np):
    """J03: what JAX has copied stays as it was."""
    for n in (16, 1000, 1 << 20, 1 << 24):
        for _ in range(5):
            a = np.full(n, 1.0, np.float32)
            y = jax.numpy.array(a)
            a.fill(2.0)
            assert float(y.max()) == 1.0, n


def check_reuse(jax, np):
    rng, alive = np.random.default_rng(1), []
    for i in range(400):
        a = np.full(int(rng.integers(1, 1 << 20)), i, np.int32)
        alive.append((i, jax.device_put(a)))
        if len(alive) > 12:
            number, y = alive.pop(int(rng.integers(0, 12)))
            assert (np.asarray(y) == number).all()
    for number, y in alive:
        assert int(y.min()) == int(y.max()) == number


def check_lifetime(jax, np):
    """A buffer deleted while a kernel will still read it, with its memory in demand."""
    busy = Busy(jax, jax.devices()[0])
    ends = jax.jit(lambda x: (x.min(), x.max()))
    n = 4 * MIB
    jax.block_until_ready(ends(jax.device_put(np.zeros(n, np.float32))))
    for i in range(8):
        x = jax.device_put(np.full(n, i, np.float32))
        busy.start()
        low, high = ends(x)  # after the products: a device computes in order
        x.delete() if i % 2 else None
        del x
        others = [jax.device_put(np.full(n, -1, np.float32)) for _ in range(20)]
        assert float(low) == float(high) == i, (float(low), float(high), i)
        del others


def check_donation(jax, np):
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    for i in range(50):
        x = jax.device_put(np.full(1 << 18, i, np.float32))
        y = double(double(x))
        assert float(y[0]) == 4 * i
    target = jax.devices()[-1]
    busy = Busy(jax, jax.devices()[0], 20)
    for i in range(10):
        busy.start()
        x = jax.numpy.full((1 << 20,), float(i))
        copies = [jax.device_put(x, target)] if target != jax.devices()[0] else []
        x.copy_to_host_async()
        y = double(x)  # while it is copied
        assert float(y[-1]) == 2 * i
        assert all(float(c[7]) == i for c in copies)


def check_threads(jax, np):
    failed = []

    def work(seed):
        try:
            rng = np.random.default_rng(seed)
            for i in range(60):
                a = rng.integers(0, 1000, int(rng.integers(1, 600000))).astype(np.int32)
                d = jax.devices()[i % len(jax.devices())]
                y = jax.device_put(jax.device_put(a), d)
                assert np.array_equal(jax.device_get(y), a)
        except BaseException as e:  # noqa: BLE001 - reported below
            failed.append(repr(e))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed[0]


def check_pinned(jax, np):
    d = jax.devices()[0]
    to_host = jax.sharding.SingleDeviceSharding(d, memory_kind="pinned_host")
    to_device = jax.sharding.SingleDeviceSharding(d, memory_kind="device")
    for n in (5, 1000, 1 << 22):
        a = np.arange(n, dtype=np.float32)
        x = jax.jit(lambda x: x + 1)(a)
        p = jax.device_put(x, to_host)
        assert p.sharding.memory_kind == "pinned_host"
        del x
        back = jax.device_put(p, to_device)
        assert np.array_equal(np.asarray(p), a + 1) and np.array_equal(np.asarray(back), a + 1)


def check_across(jax, np):
    devices = jax.devices()
    if len(devices) < 2:
        return "one GPU"
    busy = Busy(jax, devices[0], 30)
    after = jax.jit(lambda late, x: late[0, 0] * 0 + x)
    for i in range(10):
        busy.start()
        x = after(busy.last, jax.device_put(np.full(1 << 20, i, np.float32), devices[0]))
        y = jax.device_put(x, devices[1])  # before x is computed
        del x
        z = jax.device_put(y, devices[0])
        assert float(y.min()) == float(y.max()) == float(z.min()) == float(z.max()) == i
    mesh = jax.sharding.Mesh(np.array(devices), ("d",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("d"))
    a = np.arange(len(devices) * 1000 * 64, dtype=np.float32).reshape(-1, 64)
    assert np.array_equal(np.asarray(jax.device_put(a, split)), a)
    assert float(jax.jit(lambda x: x.sum(), in_shardings=split)(a * 0 + 1)) == a.size
    return None


CHECKS = [check_values, check_host_array_may_change, check_reuse, check_lifetime, check_donation, check_threads,
          check_pinned, check_across]


# ---- one process, and both -----------------------------------------------------------------------------

def run_one(mode, what):
    hook = install() if mode == "hooked" else None
    import jax
    import numpy as np
    result = {"checks": {}, "figures": {}, "device": jax.devices()[0].device_kind}
    if what in ("all", "checks"):
        for check in CHECKS:
            try:
                result["checks"][check.__name__] = check(jax, np) or "ok"
            except Exception as e:  # noqa: BLE001 - every check is to run
                result["checks"][check.__name__] = f"FAILED {type(e).__name__}: {e}"[:300]
            print(f"{mode}: {check.__name__} {result['checks'][check.__name__]}", file=sys.stderr, flush=True)
    if what in ("all", "figures"):
        result["figures"] = figures(jax, np)
        result["breakdown"] = breakdown(jax, np, hook)
    if hook:
        result["status"] = status_of(hook)
    print("RESULT " + json.dumps(result), flush=True)


def run_child(mode):
    try:
        done = subprocess.run([sys.executable, str(HERE), mode], stdout=subprocess.PIPE, text=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        print(f"{mode}: not over after {SECONDS} s")
        return None
    lines = [line[7:] for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode != 0 or not lines:
        print(f"{mode}: exit {done.returncode}\n{done.stdout[-1000:]}")
        return None
    return json.loads(lines[-1])


def write_figures(path, plain, hooked):
    """Side by side, with the form of the benches' results."""
    sys.path.insert(0, str(HERE.parent.parent / "bench" / "jax"))
    import common
    results = common.Results(path, "tests/gpu_jax.py", hooked["device"])
    for name in hooked["figures"]:
        unit = "ms" if name.endswith("_ms") else ""
        for subject, result in (("weir", hooked), ("JAX", plain)):
            results.add(name, subject, result["figures"][name], unit)


def main(path):
    if importlib.util.find_spec("jax") is None or not find_plugin() or not pathlib.Path("/dev/nvidia0").exists():
        print("no JAX with its CUDA 13 plug-in, or no GPU: skipped")
        return 77
    plain, hooked = run_child("plain"), run_child("hooked")
    if not plain or not hooked:
        return 1
    write_figures(path, plain, hooked)
    for name in hooked["checks"]:
        print(f"{name:28s} {hooked['checks'][name]} (plain: {plain['checks'][name]})")
    print(json.dumps(hooked["status"]))
    served = sum(k["count"] for k in hooked["status"]["served"].values())
    failed = [n for n, r in hooked["checks"].items() if r.startswith("FAILED")
              and not plain["checks"][n].startswith("FAILED")]
    if served == 0:
        failed.append("nothing was served")
    for subject, result in (("plain", plain), ("hooked", hooked)):
        if result["figures"]["jax.busy_rounds_at_rest"] > 0:
            print(f"NOTE {subject}: the GPU was at rest in busy rounds, whose figures tell nothing")
    print("failed: " + ", ".join(failed) if failed else f"all right, {served} transfers served")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] in (["plain"], ["hooked"]):
        run_one(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "all")
    else:
        sys.exit(main(sys.argv[2] if sys.argv[1:2] == ["--results"] else None))
