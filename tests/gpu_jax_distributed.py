# SPDX-License-Identifier: Apache-2.0
"""Two processes of one jax.distributed job, a GPU each, both hooked: transfers beside collectives give the right values.

    WEIR_LIBRARY_PATH=BUILD python3 tests/gpu_jax_distributed.py

Exit 77: no JAX, or fewer than two GPUs (NCCL refuses two processes on one). JAX_PLATFORMS=cpu tries the program out over JAX's
CPU platform, without the hook.
"""
import ctypes
import importlib.util
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
ON_CPU = os.environ.get("JAX_PLATFORMS") == "cpu"
PROCESSES, ROUNDS, LIMIT_S = 2, 20, 200


def count_gpus():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    n = ctypes.c_int()
    return n.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(n)) == 0 else 0


# ---- a process of the job ----------------------------------------------------------------------------------------------


def check_local(jax, np, device, number):
    """Transfers of this process alone, while its GPU computes."""
    work = jax.jit(lambda x: jax.lax.fori_loop(0, 50, lambda _, y: (y @ x) * 1e-3, x))
    busy = work(jax.device_put(np.full((1024, 1024), 1.0, np.float32), device))
    for i in range(ROUNDS):
        value = number * 1000 + i
        x = jax.device_put(np.full(1 << 18, value, np.int32), device)
        assert (np.asarray(x) == value).all(), value
        busy = work(busy)
    jax.block_until_ready(busy)


def check_collectives(jax, np, device, number):
    """Sums over both processes, of what was put a moment before; donated, and read back while the next is put."""
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    split = NamedSharding(Mesh(np.array(jax.devices()), ("all",)), PartitionSpec("all"))
    total = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(split.mesh, PartitionSpec()))
    double = jax.jit(lambda x: x * 2, donate_argnums=0)
    n = 1 << 18
    for i in range(ROUNDS):
        mine = jax.device_put(np.full(n, number + i, np.int32), device)
        whole = jax.make_array_from_single_device_arrays((PROCESSES * n,), split, [mine])
        whole = double(double(whole))
        assert int(total(whole)) == 4 * n * (2 * i + 1), (i, int(total(whole)))
        assert (np.asarray(whole.addressable_shards[0].data) == 4 * (number + i)).all()


def check_global_put(jax, np, device, number):
    """device_put of one host array to a sharding over both processes."""
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    mesh = Mesh(np.array(jax.devices()), ("all",))
    everything = np.arange(PROCESSES * 1000 * 64, dtype=np.float32).reshape(-1, 64)
    for spec in (PartitionSpec("all"), PartitionSpec()):
        x = jax.device_put(everything, NamedSharding(mesh, spec))
        shard = x.addressable_shards[0]
        assert np.array_equal(np.asarray(shard.data), everything[shard.index])
        assert float(jax.jit(lambda x: x.max())(x)) == everything.max()


def run_process(number, address):
    if not ON_CPU:
        import weir.jax
        assert weir.jax.install(), weir.jax.status()["message"]
    import jax
    import numpy as np
    jax.distributed.initialize(address, PROCESSES, number, local_device_ids=[0 if ON_CPU else number],
                               initialization_timeout=100)
    (device,) = jax.local_devices()
    assert len(jax.devices()) == PROCESSES
    for check in (check_local, check_collectives, check_global_put):
        check(jax, np, device, number)
        print(f"process {number}: {check.__name__} ok", flush=True)
    if not ON_CPU:
        status = weir.jax.status()
        print(f"process {number}: served {status['served']}, forwarded {status['forwarded']}", flush=True)
        assert status["served"]["from_host"]["count"] >= 2 * ROUNDS, status
    jax.distributed.shutdown()


# ---- the job -----------------------------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_job(folder):
    """The exit statuses. One that fails, or is not over in time, ends the other."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(
        [str(ROOT / "interpose" / "python")] + [p for p in [os.environ.get("PYTHONPATH")] if p]))
    environment.setdefault("WEIR_LIBRARY_PATH", str(ROOT / "build" / "gcc"))
    address, processes = f"127.0.0.1:{free_port()}", []
    for number in range(PROCESSES):
        with open(folder / str(number), "w") as log:
            command = [sys.executable, __file__, str(number), address]
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        ended = [p.poll() for p in processes]
        if None not in ended or any(ended):
            break
        time.sleep(0.2)
    for p in processes:
        if p.poll() is None:
            p.kill()
    return [p.wait() for p in processes]


def main():
    if importlib.util.find_spec("jax") is None or (not ON_CPU and count_gpus() < PROCESSES):
        print(f"no JAX, or fewer than {PROCESSES} GPUs: skipped")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        ended = run_job(pathlib.Path(folder))
        for number in range(PROCESSES):
            text = (pathlib.Path(folder) / str(number)).read_text()
            print(text if ended[number] == 0 else f"process {number}: exit {ended[number]}\n{text[-4000:]}")
    print("all right" if not any(ended) else "FAILED")
    return any(ended)


if __name__ == "__main__":
    sys.exit(run_process(int(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 1 else main())
