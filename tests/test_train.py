# SPDX-License-Identifier: Apache-2.0
"""bench/pytorch/train.py: the worst run counts, repeats count by their best, and the parts run without a GPU.

    python3 tests/test_train.py

Exit code 77: no PyTorch.
"""
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "bench" / "pytorch"
sys.path.insert(0, str(FOLDER))
try:
    import train
except ModuleNotFoundError as error:
    print(error)
    sys.exit(77)


def trained(step_s, peak_reserved):
    return {"step_s": step_s, "peak_reserved": peak_reserved, "loss": 1.0, "device": "a GPU"}


class TheRows(unittest.TestCase):
    def test_of_several_training_runs_the_worst_counts_in_each_figure(self):
        measured = {"resnet": {"native": trained(1.0, 100), "weir": trained(0.9, 80)},
                    "gpt": {"native": trained(2.0, 100), "weir": trained(2.2, 70)},
                    "streams": {"native": trained(1.0, 50), "weir": trained(1.0, 45)}}
        rows = {figure: value for figure, subject, value, unit in train.rows_of(measured)}
        self.assertAlmostEqual(rows["torch.step_time_ratio"], 1.1)
        self.assertAlmostEqual(rows["torch.peak_reserved_ratio"], 0.9)

    def test_where_no_memory_is_counted_no_ratio_of_memory_is_given(self):
        rows = train.rows_of({"gpt": {"native": trained(1.0, 0), "weir": trained(1.0, 0)}})
        self.assertEqual([row[0] for row in rows], ["torch.step_time_ratio"])

    def test_decoding_is_a_ratio_of_rates_and_each_way_of_loading_has_a_row(self):
        rows = train.rows_of({"decode": {"native": {"tokens_per_s": 50}, "weir": {"tokens_per_s": 60}},
                              "pageable": {"weir": {"compute_s": 1, "share": {".cuda()": 0.3, "weir": 0.99}}}})
        self.assertEqual(rows, [("torch.decode_ratio", "weir", 1.2, "ratio"),
                                ("torch.pageable_compute_share", ".cuda()", 0.3, "ratio"),
                                ("torch.pageable_compute_share", "weir", 0.99, "ratio")])

    def test_of_repeats_the_fastest_time_and_the_highest_peak_count(self):
        best = train.best([trained(1.0, 70), trained(0.8, 90), trained(0.9, 60)])
        self.assertEqual((best["step_s"], best["peak_reserved"]), (0.8, 90))


class AFailure(unittest.TestCase):
    def run_with_one_that_fails(self, failing):
        """The exit code, and the figures that were written."""
        def run(part, allocator, options):
            if part == failing:
                raise train.PartFailed(f"{part} failed")
            measured = {"decode": {"tokens_per_s": 50, "device": "a GPU"},
                        "pageable": {"compute_s": 1, "share": {"weir": 0.99}, "device": "a GPU"}}
            return measured.get(part, trained(1.0, 100))
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder, "rows.jsonl")
            with mock.patch.object(train, "run", run), mock.patch.object(sys, "argv", ["train.py", "--results", str(results)]), \
                    mock.patch.dict(os.environ, PATH=folder), \
                    contextlib.redirect_stdout(io.StringIO()) as said:
                code = train.main()
            self.assertIn(f"{failing} failed", said.getvalue())
            return code, {json.loads(line)["figure"] for line in results.read_text().splitlines()}

    def test_a_part_that_fails_takes_no_other_figures_with_it(self):
        ratios = {"torch.step_time_ratio", "torch.peak_reserved_ratio"}
        self.assertEqual(self.run_with_one_that_fails("decode"), (1, ratios | {"torch.pageable_compute_share"}))

    def test_where_a_training_run_fails_there_is_no_worst_of_them(self):
        others = {"torch.decode_ratio", "torch.pageable_compute_share"}
        self.assertEqual(self.run_with_one_that_fails("gpt"), (1, others))


class TheParts(unittest.TestCase):
    def run_parts(self, *words):
        return subprocess.run([sys.executable, FOLDER / "train.py", "--tiny", "--cpu", "--repeats", "1", *words],
                              capture_output=True, text=True, timeout=550)

    def test_all_parts_run_on_a_processor_and_their_rows_are_not_called_weirs(self):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder, "rows.jsonl")
            done = self.run_parts("--results", str(results))
            self.assertEqual(done.returncode, 0, done.stderr)
            rows = [json.loads(line) for line in results.read_text().splitlines()]
        figures = {row["figure"] for row in rows}
        self.assertEqual(figures, {"torch.step_time_ratio", "torch.decode_ratio", "torch.pageable_compute_share"})
        self.assertTrue(all(row["value"] > 0 and row["device"].startswith("cpu") for row in rows))
        self.assertNotIn("weir", {row["subject"] for row in rows})
        losses = [line.split()[-1] for line in done.stdout.splitlines() if "last loss" in line]
        self.assertEqual(losses[0::2], losses[1::2], "the same seed gives the same training")

    def test_a_part_that_is_none_is_said(self):
        done = self.run_parts("resnet51")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no part resnet51", done.stderr)


if __name__ == "__main__":
    unittest.main()
