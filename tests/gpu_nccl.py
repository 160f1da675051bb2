#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NCCL on weir's memory: all-reduce, plain and through registered windows, over one GPU or two of one process.

    WEIR_LIBRARY_PATH=BUILD python3 tests/gpu_nccl.py

libnccl.so.2 is the one of PyTorch's wheels, or $WEIR_NCCL. A line for each part, each a process with 60 seconds. Exit code 77:
no GPU or no NCCL; 1: a part failed.
"""
import array
import ctypes
import importlib.util
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
if importlib.util.find_spec("weir") is None or "WEIR_LIBRARY_PATH" in os.environ:
    sys.path.insert(0, str(ROOT / "interpose" / "python"))
SKIPPED, SECONDS = 77, 60
MIB = 1 << 20
FLOAT32, SUM, SYMMETRIC = 7, 0, 1  # ncclFloat32, ncclSum, NCCL_WIN_COLL_SYMMETRIC
WINDOW_ALIGNMENT = 4096


def find_nccl():
    """The library, or None."""
    names = [os.environ["WEIR_NCCL"]] if "WEIR_NCCL" in os.environ else ["libnccl.so.2"]
    for folder in sys.path:
        names += [str(path) for path in pathlib.Path(folder or ".").glob("nvidia/nccl/lib/libnccl.so.2")]
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            pass
    return None


class Driver:
    """libcuda, with the devices' primary contexts and a stream on each."""

    def __init__(self):
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError:
            self.library = None
        n = ctypes.c_int()
        has_any = self.library and not self.library.cuInit(0) and not self.library.cuDeviceGetCount(ctypes.byref(n))
        self.n_devices = n.value if has_any else 0
        self.contexts, self.streams = [], []

    def __call__(self, name, *arguments):
        error = getattr(self.library, name)(*arguments)
        assert error == 0, f"{name}: CUDA error {error}"

    def open(self, n):
        for device in range(n):
            context, stream = ctypes.c_void_p(), ctypes.c_void_p()
            self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self.contexts.append(context)
            self.select(device)
            self("cuStreamCreate", ctypes.byref(stream), 1)
            self.streams.append(stream)

    def select(self, device):
        self("cuCtxSetCurrent", self.contexts[device])

    def write(self, device, address, values):
        data = array.array("f", values).tobytes()
        self.select(device)
        self("cuMemcpyHtoD_v2", ctypes.c_uint64(address), data, ctypes.c_size_t(len(data)))

    def read(self, device, address, n):
        data = ctypes.create_string_buffer(4 * n)
        self.select(device)
        self("cuStreamSynchronize", self.streams[device])
        self("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(4 * n))
        return array.array("f", data.raw)


class Ranks:
    """A communicator over the devices, all ranks in this thread: collective calls stand between start and end."""

    def __init__(self, nccl, driver, n):
        self.nccl, self.driver, self.n = nccl, driver, n
        self.comms = (ctypes.c_void_p * n)()
        nccl.ncclGetErrorString.restype = ctypes.c_char_p
        self("ncclCommInitAll", self.comms, n, (ctypes.c_int * n)(*range(n)))

    def __call__(self, name, *arguments):
        error = getattr(self.nccl, name)(*arguments)
        assert error == 0, f"{name}: {self.nccl.ncclGetErrorString(error).decode()}"

    def on_all(self, name, arguments):
        """The call for each rank, with arguments(rank)."""
        self("ncclGroupStart")
        for rank in range(self.n):
            self.driver.select(rank)
            self(name, *arguments(rank))
        self("ncclGroupEnd")

    def all_reduce(self, sources, targets, n):
        self.on_all("ncclAllReduce", lambda rank: (
            ctypes.c_void_p(sources[rank]), ctypes.c_void_p(targets[rank]), ctypes.c_size_t(n), FLOAT32, SUM,
            ctypes.c_void_p(self.comms[rank]), self.driver.streams[rank]))

    def register(self, addresses, nbytes):
        """A window on each rank. NULL ones: NCCL has no use for windows here, and says so in no other way."""
        windows = (ctypes.c_void_p * self.n)()
        self.on_all("ncclCommWindowRegister", lambda rank: (
            ctypes.c_void_p(self.comms[rank]), ctypes.c_void_p(addresses[rank]), ctypes.c_size_t(nbytes),
            ctypes.byref(windows, rank * ctypes.sizeof(ctypes.c_void_p)), SYMMETRIC))
        return windows

    def deregister(self, windows):
        for rank in range(self.n):
            if windows[rank]:
                self.driver.select(rank)
                self("ncclCommWindowDeregister", ctypes.c_void_p(self.comms[rank]), ctypes.c_void_p(windows[rank]))

    def close(self):
        for rank in range(self.n):
            self("ncclCommDestroy", ctypes.c_void_p(self.comms[rank]))


class World:
    def __init__(self):
        import weir
        self.nccl, self.driver = find_nccl(), Driver()
        if self.nccl is None or self.driver.n_devices == 0:
            print("no NCCL" if self.nccl is None else "no GPU")
            sys.exit(SKIPPED)
        self.n = min(2, self.driver.n_devices)
        self.driver.open(self.n)
        self.pools = [weir.pool(device) for device in range(self.n)]
        for device, pool in enumerate(self.pools):
            for peer in range(self.n):
                if peer != device:
                    pool.enable_peer(peer)
        self.ranks = Ranks(self.nccl, self.driver, self.n)

    def blocks(self, nbytes, alignment=512):
        made = [pool.alloc(nbytes, self.driver.streams[device].value, alignment=alignment)
                for device, pool in enumerate(self.pools)]
        assert all(block.address % alignment == 0 for block in made)
        return made

    def reduce_and_check(self, sources, targets, n):
        """Rank r gives r + 1 + (i mod 7): exact in float32."""
        for rank, block in enumerate(sources):
            self.driver.write(rank, block.address, (rank + 1 + i % 7 for i in range(n)))
        self.ranks.all_reduce([b.address for b in sources], [b.address for b in targets], n)
        base, times = sum(range(1, self.n + 1)), self.n
        expected = array.array("f", (base + times * (i % 7) for i in range(n)))
        for rank, block in enumerate(targets):
            assert self.driver.read(rank, block.address, n) == expected, f"rank {rank} has other sums"

    def close(self):
        self.ranks.close()
        for pool in self.pools:
            assert pool.stats()["live_bytes"] == 0, "blocks are left"


def free(*all_blocks):
    for block in (b for blocks in all_blocks for b in blocks):
        block.free()


def all_reduce_on_plain_blocks():
    world = World()
    for n in (1, 1000, 256 << 10, 4 << 20):
        sources, targets = world.blocks(4 * n), world.blocks(4 * n)
        world.reduce_and_check(sources, targets, n)
        world.reduce_and_check(sources, sources, n)  # in place
        free(sources, targets)
    world.close()
    print(f"{world.n} ranks")


def all_reduce_through_windows():
    world, given = World(), 0
    for nbytes in (64 << 10, 4 * MIB):
        spacers = world.blocks(WINDOW_ALIGNMENT)  # so that windows begin inside a page
        sources, targets = world.blocks(nbytes, WINDOW_ALIGNMENT), world.blocks(nbytes, WINDOW_ALIGNMENT)
        windows = [world.ranks.register([b.address for b in blocks], nbytes) for blocks in (sources, targets)]
        given += sum(bool(w) for window in windows for w in window)
        world.reduce_and_check(sources, targets, nbytes // 4)
        for window in windows:
            world.ranks.deregister(window)
        free(spacers, sources, targets)
    world.close()
    print(f"{world.n} ranks, {given} of {4 * world.n} windows given (a single rank may get none)")
    assert given in (0, 4 * world.n), "some ranks have a window, some have none"
    assert world.n == 1 or given > 0, "NCCL gave no window on weir's memory"


def blocks_freed_behind_a_collective_are_not_reused_before_it():
    world, n = World(), 4 << 20
    for _ in range(20):
        sources, targets = world.blocks(4 * n), world.blocks(4 * n)
        for rank, block in enumerate(sources):
            world.driver.write(rank, block.address, [1.0] * 8)
        world.ranks.all_reduce([b.address for b in sources], [b.address for b in targets], n)
        free(sources)  # on the stream that the collective runs on: queued behind it
        again = world.blocks(4 * n)
        for rank, block in enumerate(again):
            world.driver.select(rank)
            world.driver("cuMemsetD32Async", ctypes.c_uint64(block.address), 0x42280000, ctypes.c_size_t(n),
                         world.driver.streams[rank])  # 42.0f
        for rank, block in enumerate(targets):
            found = world.driver.read(rank, block.address, 8)
            assert list(found) == [float(world.n)] * 8, f"rank {rank}: {list(found)}"
        free(targets, again)
    world.close()


PARTS = [all_reduce_on_plain_blocks, all_reduce_through_windows,
         blocks_freed_behind_a_collective_are_not_reused_before_it]


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "--part":
        return next(p for p in PARTS if p.__name__ == sys.argv[2])()
    failed = skipped = 0
    for part in PARTS:
        try:
            run = subprocess.run([sys.executable, __file__, "--part", part.__name__], capture_output=True, text=True,
                                 timeout=SECONDS)
            code, said, trouble = run.returncode, run.stdout.strip(), run.stderr.strip()
        except subprocess.TimeoutExpired:
            code, said, trouble = "no end", "", f"{SECONDS} s have passed"
        word = {0: "ok", SKIPPED: "skipped"}.get(code, "FAILED")
        print(f"{word:8}{part.__name__:60}{said}", flush=True)
        skipped += word == "skipped"
        if word == "FAILED":
            failed += 1
            print(f"  exit code {code}\n{trouble[-3000:]}", flush=True)
    sys.exit(1 if failed else SKIPPED if skipped == len(PARTS) else 0)


if __name__ == "__main__":
    main()
