# SPDX-License-Identifier: Apache-2.0
"""bench/queue_peers.py without PyTorch: its figures, the order in which a prefetcher works, and what is run where.

    python3 tests/test_queue_peers.py
"""
import contextlib
import io
import json
import os
import pathlib
import stat
import sys
import tempfile
import types
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import peers  # noqa: E402
import queue_peers  # noqa: E402

MIB = 1 << 20


class Batch:
    """A tensor that writes down what becomes of it."""

    def __init__(self, log, name, place="host"):
        self.log, self.name, self.place = log, name, place

    def note(self, what, place):
        self.log.append(f"{what} {self.name}")
        return Batch(self.log, self.name, place)

    def pin_memory(self):
        return self.note("pin", "pinned")

    def to(self, _, non_blocking):
        assert non_blocking and self.place != "host", "a copy of pageable memory that waits"
        return self.note("copy", "device")

    def cuda(self):
        return self.note("copy and wait", "device")

    def record_stream(self, _):
        self.log.append(f"record {self.name}")


def fake_torch(log):
    stream = types.SimpleNamespace(wait_stream=lambda _: log.append("wait"))
    return types.SimpleNamespace(cuda=types.SimpleNamespace(
        Stream=lambda: "side", stream=lambda _: contextlib.nullcontext(), current_stream=lambda: stream))


class FakeBench:
    """Copies of 1 ms a MiB; a way is the factor by which it is too slow."""

    def time_alone(self, nbytes, share):
        copy_ms = nbytes / MIB
        return copy_ms, share * copy_ms

    def time_way(self, way, nbytes):
        return way(nbytes)


class QueuePeersTest(unittest.TestCase):
    def test_sizes_and_steps_are_those_of_the_bench(self):
        self.assertEqual([n // MIB for n in queue_peers.sizes_of(16, 1024)], [16, 64, 256, 1024])
        self.assertEqual([n // MIB for n in queue_peers.sizes_of(16, 100)], [16, 64])
        self.assertEqual([queue_peers.steps_for(mib * MIB) for mib in (1, 16, 64, 1024)], [512, 512, 128, 24])
        self.assertEqual(queue_peers.steps_for(MIB, 7), 7)

    def test_a_ratio_is_of_the_longer_and_the_worst_counts(self):
        ways = {"overlaps": lambda nbytes: 1.5 * nbytes / MIB, "waits": lambda nbytes: (2.4 if nbytes > 16 * MIB else 2) * nbytes / MIB}
        with contextlib.redirect_stdout(io.StringIO()):
            worst = queue_peers.worst_ratios(FakeBench(), ways, [16 * MIB, 64 * MIB])
        self.assertEqual(worst, {"overlaps": 1.5, "waits": 2.4})  # over the copy where compute is the shorter

    def test_a_share_is_of_the_steps_behind_those_that_warm_up(self):
        clock, log = iter([10.0, 10.5]), []
        share = queue_peers.compute_share(iter(range(queue_peers.WARM + 8)), lambda: log.append("step"),
                                          lambda: log.append("finish"), 30, 8, clock=lambda: next(clock))
        self.assertEqual(share, 8 * 30 / 500)
        self.assertEqual(log, ["step"] * queue_peers.WARM + ["finish"] + ["step"] * 8 + ["finish"])

    def test_a_busy_ratio_is_of_medians_and_warm(self):
        times = iter([99.0, 2.0, 1.0, 50.0, 6.0, 3.0, 4.0])
        self.assertEqual(queue_peers.busy_ratio(lambda _: next(times), rounds=3), 4.0 / 2.0)

    def test_the_prefetcher_copies_the_next_batch_before_it_hands_one_out(self):
        log = []
        for batch in queue_peers.on_side_stream(fake_torch(log), (Batch(log, i, "pinned") for i in range(3))):
            log.append(f"compute {batch.name}")
        self.assertEqual(log, ["copy 0", "wait", "record 0", "copy 1", "compute 0", "wait", "record 1", "copy 2",
                               "compute 1", "wait", "record 2", "compute 2"])

    def test_every_way_brings_every_batch_in_order(self):
        for name, way in {**queue_peers.PINNED_WAYS, **queue_peers.PAGEABLE_WAYS}.items():
            place = "pinned" if way is queue_peers.on_side_stream else "host"
            found = list(way(fake_torch([]), (Batch([], i, place) for i in range(5))))
            self.assertEqual([(b.name, b.place) for b in found], [(i, "device") for i in range(5)], name)

    def test_the_pin_thread_is_a_few_batches_ahead_and_its_error_is_raised(self):
        log = []

        def batches():
            yield from (Batch(log, i) for i in range(9))
            raise OSError("the disk is gone")
        feed = queue_peers.pin_ahead(batches(), depth=2)
        self.assertEqual(next(feed).name, 0)
        self.assertLessEqual(len(log), 4)  # one is here, two wait, one is being put
        with self.assertRaisesRegex(OSError, "the disk"):
            list(feed)
        self.assertEqual(len(log), 9)

    def run_main(self, bench, rows, *arguments):
        """What is said, and the rows in the end, of a bench that has those."""
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            (folder / "rows").write_text("".join(json.dumps(row) + "\n" for row in rows))
            (folder / bench).write_text(f'#!/bin/sh\nfor last; do :; done\ncat {folder}/rows > "$last"\n')
            os.chmod(folder / bench, stat.S_IRWXU)
            self.addCleanup(setattr, peers, "BUILD", peers.BUILD)
            self.addCleanup(setattr, sys, "argv", sys.argv)
            peers.BUILD, results, said = folder, folder / "results.jsonl", io.StringIO()
            sys.argv = ["queue_peers.py", bench, "--results", str(results), *arguments]
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
                peers.main({"queue": queue_peers.run_queue, "transfer": queue_peers.run_transfer}, "")
            return said.getvalue(), peers.read_rows(results)

    def bring(self, name, *rows):
        self.addCleanup(setattr, queue_peers, name, getattr(queue_peers, name))
        setattr(queue_peers, name, lambda *_: list(rows))

    def test_a_simulated_device_has_no_peers(self):
        mine = {"figure": "queue.wall_ratio_1m", "subject": "weir", "value": 1, "device": "sim:h200-pcie5", "run": "r"}
        self.bring("bring_pinned", ("f", "peer", 2.0, "", "sim:h200-pcie5"))
        said, rows = self.run_main("queue", [mine])
        self.assertEqual(rows, [mine])
        self.assertIn("a simulated device has none", said)

    def test_peers_are_of_the_benchs_run_and_two_gpus_bring_more(self):
        pageable = {"figure": "queue.pageable_compute_share", "subject": "weir", "value": 1, "device": "GPU", "run": "r"}
        across = {**pageable, "figure": "queue.d2d_busy_ratio"}
        self.bring("bring_pageable", ("queue.pageable_compute_share", "a", 0.5, "", "GPU"))
        self.bring("bring_torch_across", ("queue.d2d_busy_ratio", "b", 40.0, "", "GPU"))
        self.bring("bring_jax_across", ("queue.d2d_busy_ratio", "c", 50.0, "", "GPU"))
        for mine, subjects in (([pageable], ["weir", "a"]), ([pageable, across], ["weir", "weir", "a", "b", "c"])):
            _, rows = self.run_main("transfer", mine)
            self.assertEqual([row["subject"] for row in rows], subjects)
            self.assertEqual({row["run"] for row in rows}, {"r"})


if __name__ == "__main__":
    unittest.main()
