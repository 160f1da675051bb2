# SPDX-License-Identifier: Apache-2.0
"""tests/gpu_all.sh over stand-ins for the programs: their outcomes, the time limit, parts, and that it knows all GPU tests.

    python3 tests/test_gpu_all.py
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
SCRIPT = HERE / "gpu_all.sh"


class All(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.build, self.out = pathlib.Path(scratch.name, "build"), pathlib.Path(scratch.name, "out")
        (self.build / "tests").mkdir(parents=True)

    def run_all(self, *words, **programs):
        """(exit code, {program: outcome}) over stand-ins: what a shell does in each."""
        for name, does in programs.items():
            program = self.build / "tests" / name
            program.write_text(f"#!/bin/sh\n{does}\n")
            program.chmod(0o755)
        done = subprocess.run(["bash", SCRIPT, self.build, self.out, *words], capture_output=True, text=True, timeout=50)
        self.said = done.stdout + done.stderr
        rows = re.findall(r"^(\w+) +(ok|failed|skipped|timed out) +\d+ s", done.stdout, re.MULTILINE)
        self.assertEqual(len(rows), len(dict(rows)))
        return done.returncode, dict(rows)

    def test_each_program_has_its_outcome_and_what_it_said_is_kept(self):
        code, outcomes = self.run_all("40", "gpu_pool", "gpu_memory", "gpu_graphs", "gpu_copy", gpu_pool="echo said $((6 * 7))",
                                      gpu_memory="exit 3", gpu_graphs="echo no GPU here; exit 77")
        self.assertEqual(outcomes, {"gpu_pool": "ok", "gpu_memory": "failed", "gpu_graphs": "skipped", "gpu_copy": "skipped"})
        self.assertEqual(code, 1)
        self.assertIn("exit code 3", self.said)
        self.assertIn("no GPU here", self.said)
        self.assertIn("said 42", (self.out / "log.txt").read_text())

    def test_one_that_hangs_ends_with_the_time_and_what_follows_is_skipped(self):
        code, outcomes = self.run_all("10", "gpu_memory", "gpu_graphs", gpu_memory="sleep 1000", gpu_graphs="exit 0")
        self.assertEqual((code, outcomes), (1, {"gpu_memory": "timed out", "gpu_graphs": "skipped"}))
        self.assertIn("no time left", self.said)

    def test_a_part_is_chosen_by_name_and_one_that_is_none_is_said(self):
        code, outcomes = self.run_all("40", "core", gpu_pool="exit 0", gpu_copy="exit 1")
        self.assertEqual((code, outcomes["gpu_pool"]), (0, "ok"))
        self.assertNotIn("gpu_copy", outcomes)
        code, outcomes = self.run_all("40", "gpu_pol", gpu_pool="exit 0")
        self.assertEqual((code, outcomes), (1, {}))
        self.assertIn("gpu_pol", self.said)

    def test_where_nothing_is_there_it_is_skipped_as_a_whole(self):
        code, outcomes = self.run_all("40", "core")
        self.assertEqual((code, set(outcomes.values())), (77, {"skipped"}))

    def test_a_jax_without_a_plugin_for_gpus_is_skipped(self):
        (self.build / "jax.py").touch()
        done = subprocess.run([sys.executable, "-S", HERE / "gpu_jax.py"], capture_output=True, text=True, timeout=50,
                              env={"PYTHONPATH": str(self.build)})
        self.assertEqual((done.returncode, done.stderr), (77, ""))

    def test_it_runs_every_test_that_is_labelled_gpu(self):
        text, script = (HERE / "CMakeLists.txt").read_text(), SCRIPT.read_text()

        def listed(variable):
            return re.search(rf"set\({variable} ([^)]*)\)", text).group(1).split()
        labelled = listed("gpu_tests") + [name + "_cuda" for name in listed("conformance_tests")]
        labelled += [name for name in re.findall(r"add_program_test\((\w+) gpu ", text)]
        self.assertGreater(len(labelled), 15)
        self.assertEqual([name for name in labelled if not re.search(rf"\b{name}\b", script)], [])


if __name__ == "__main__":
    unittest.main()
