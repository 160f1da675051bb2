# SPDX-License-Identifier: Apache-2.0
"""bench/peers.py: a package that is missing costs its rows alone, and an allocator's memory over a trace is found.

    python3 tests/test_peers.py
"""
import contextlib
import gzip
import io
import math
import pathlib
import sys
import tempfile
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import peers  # noqa: E402

MIB = 1 << 20


class RoundingAllocator:
    """Stands for torch.cuda: takes memory in whole 20 MiB, gives it back when emptied, and knows its limit."""

    class OutOfMemoryError(Exception):
        pass

    def __init__(self, total):
        self.total, self.limit, self.reserved, self.peak, self.live, self.least = total, total, 0, 0, {}, math.inf

    def get_device_properties(self, _):
        return types.SimpleNamespace(total_memory=self.total)

    def set_per_process_memory_fraction(self, fraction):
        self.limit = int(fraction * self.total)
        self.least = min(self.least, self.limit)

    def reset_peak_memory_stats(self):
        self.peak = self.reserved

    def memory_stats(self):
        return {"reserved_bytes.all.peak": self.peak}

    def caching_allocator_alloc(self, size):
        need = -(-(sum(self.live.values()) + size) // (20 * MIB)) * 20 * MIB
        if need > self.limit:
            raise self.OutOfMemoryError
        self.reserved = max(self.reserved, need)
        self.peak = max(self.peak, self.reserved)
        address = len(self.live) + 1
        self.live[address] = size
        return address

    def caching_allocator_delete(self, address):
        del self.live[address]

    def empty_cache(self):
        assert not self.live
        self.reserved = 0


class PeersTest(unittest.TestCase):
    def write_trace(self, name):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / name
        with gzip.open(path, "wt") as file:
            file.write("t_us,op,id,bytes,stream\n" + "".join(f"0,{op},{block},{mib * MIB},0\n" for op, block, mib in (
                ("alloc", 0, 10), ("alloc", 1, 15), ("free", 1, 15), ("alloc", 2, 14), ("alloc", 3, 2), ("free", 0, 10))))
        return path

    def test_a_trace_is_read_with_its_greatest_load(self):
        events, load = peers.read_trace(self.write_trace("a.csv.gz"))
        self.assertEqual(load, 26 * MIB)
        self.assertEqual(events[2], (False, "1", 15 * MIB))

    def test_the_smallest_limit_and_the_peak_of_a_trace(self):
        cuda = RoundingAllocator(1 << 30)
        rows = {figure: value for figure, _, value, _ in
                peers.measure_torch(cuda, "PyTorch", [self.write_trace("torch_a.1.csv.gz")])}
        self.assertEqual(rows["memory.peak_ratio:torch_a.1"], 40 / 26)
        self.assertEqual(rows["memory.min_limit:torch_a.1"], 40 / 26)
        self.assertEqual(rows["memory.min_limit_worst"], 40 / 26)
        self.assertLess(cuda.least, 40 * MIB)  # it was tried
        self.assertEqual(cuda.live, {})

    def test_a_limit_is_the_smallest_that_is_enough(self):
        for enough in (102, 116, 150):
            found = peers.find_min_limit(lambda limit: limit if limit >= enough * MIB else None, 101 * MIB, 150 * MIB)
            self.assertEqual(found, enough * MIB)

    def test_a_trace_that_the_gpu_cannot_hold_is_left_out_and_named(self):
        traces = [self.write_trace("torch_small.csv.gz"), self.write_trace("torch_large.csv.gz")]
        cuda = RoundingAllocator(1 << 30)
        replay, said = peers.replay_torch, io.StringIO()
        sizes = iter([None])  # the first trace's peak
        peers.replay_torch = lambda *arguments: next(sizes, replay(*arguments))
        self.addCleanup(setattr, peers, "replay_torch", replay)
        with contextlib.redirect_stderr(said):
            figures = [figure for figure, *_ in peers.measure_torch(cuda, "PyTorch", traces)]
        self.assertNotIn("memory.min_limit:torch_small", figures)
        self.assertIn("memory.min_limit:torch_large", figures)
        self.assertIn("torch_small", said.getvalue())

    def test_what_is_missing_is_said_and_left_out(self):
        said = io.StringIO()

        def bring():
            import no_such_package_as_this  # noqa: F401
        with contextlib.redirect_stderr(said):
            self.assertEqual(peers.find("Such", bring), [])
        self.assertIn("no Such: ModuleNotFoundError", said.getvalue())

    def test_more_rows_are_of_the_benchs_run(self):
        mine = {"figure": "f", "subject": "weir", "value": 1, "unit": "ns", "device": "d", "driver": "v", "date": "", "commit": "c",
                "command": "alloc", "run": "r"}
        with contextlib.redirect_stdout(io.StringIO()):
            rows = peers.merge([mine], [("f", "peer", 2.0, "ns", "gpu")])
        self.assertEqual([rows[1][k] for k in ("subject", "value", "device", "commit", "run")], ["peer", 2.0, "gpu", "c", "r"])


if __name__ == "__main__":
    unittest.main()
