# SPDX-License-Identifier: Apache-2.0
"""The programs of bench/jax run to their end, on JAX's CPU platform and the simulated device. Exit 77: no JAX.

    WEIR_LIBRARY_PATH=BUILD python3 tests/test_jax_bench.py
"""
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCH = pathlib.Path(__file__).resolve().parents[1] / "bench" / "jax"


class Programs(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def run_program(self, name, *arguments):
        """{(figure, subject): value} of the results that it wrote."""
        results = self.folder / "results.jsonl"
        command = [sys.executable, str(BENCH / name), *arguments, "--results", str(results)]
        environment = dict(os.environ, JAX_PLATFORMS="cpu", WEIR_DEVICE="sim", WEIR_COMMIT="abc")
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        rows = [json.loads(line) for line in results.read_text().splitlines()]
        self.assertEqual({row["commit"] for row in rows}, {"abc"})
        self.assertTrue(all(row["device"].startswith("cpu:") for row in rows))  # which counts towards no target
        return {(row["figure"], row["subject"]): row["value"] for row in rows}

    def test_the_actor_and_the_learner_meet_as_often_as_there_are_rollouts(self):
        sizes = ["--environments=1", "--steps=6", "--rollouts=3"]
        figures = self.run_program("actor_learner.py", *sizes, "--timeline", str(self.folder / "t"))
        for expected in (("jax.actor_p99_ratio", "JAX"), ("jax.actor_p99_ratio_transfer", "weir"),
                         ("jax.actor_rate_ratio", "weir.jax.transfer"), ("jax.actor_fetch_ms", "JAX")):
            self.assertGreater(figures[expected], 0)
        for mode in ("plain", "transfer"):
            events = json.loads((self.folder / f"t_{mode}.json").read_text())["traceEvents"]
            count = [sum(event["name"] == name for event in events) for name in ("step", "fetch", "update")]
            self.assertEqual(count, [18, 3, 3], mode)

    def test_an_actor_that_fails_ends_the_learner_and_the_program(self):
        program = ("import actor_learner; p = object.__new__(actor_learner.Program); p.play = lambda: 1 // 0; "
                   "p.play_with_learner(1)")
        done = subprocess.run([sys.executable, "-c", program], cwd=BENCH, capture_output=True, text=True, timeout=60)
        self.assertIn("ZeroDivisionError", done.stderr)

    def test_both_models_train_and_are_timed(self):
        figures = self.run_program("train.py", "--small", "--steps=2")
        self.assertEqual(set(figures), {("jax.train_step_ms:transformer", "JAX"), ("jax.train_step_ms:resnet", "JAX")})
        self.assertTrue(all(ms > 0 for ms in figures.values()))


if __name__ == "__main__":
    if importlib.util.find_spec("jax") is None:
        print("no JAX: skipped")
        sys.exit(77)
    unittest.main()
