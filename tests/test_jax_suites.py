# SPDX-License-Identifier: Apache-2.0
"""tests/gpu_jax_suites.sh names the tests that end differently with the hook, over stand-ins for JAX's own tests.

    python3 tests/test_jax_suites.py
"""
import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent / "gpu_jax_suites.sh"
SUITES = ["array_test", "array_interoperability_test", "memories_test", "api_test", "pjit_test"]
# Says what absl's runner says; each process runs its share, as there.
STAND_IN = """
import os
hooked = os.environ.get("WEIR_JAX") == "1"
for number, (test, result) in enumerate({tests!r}):
    if number % int(os.environ["TEST_TOTAL_SHARDS"]) != int(os.environ["TEST_SHARD_INDEX"]):
        continue
    print(f"[ RUN      ] Some.{{test}}", flush=True)
    if result == "crash when hooked" and hooked:
        os._exit(1)
    word = "FAILED" if result == "fail" or (result == "fail when hooked" and hooked) else "OK"
    print(f"[{{word:^10s}}] Some.{{test}}" + (" - a reason" if word == "SKIPPED" else ""), flush=True)
"""


class Suites(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def run_suites(self, **tests):
        """(exit status, what was said) over stand-ins with these tests by suite: [(name, how it ends)]"""
        for suite in SUITES:
            listed = tests.get(suite, [("test_fine", "pass"), ("test_bad", "fail")])
            (self.folder / f"{suite}.py").write_text(STAND_IN.format(tests=listed))
        done = subprocess.run(["bash", str(SCRIPT)], capture_output=True, text=True, timeout=100,
                              env=dict(os.environ, JAX_TESTS=str(self.folder), JAX_PLATFORMS="cpu"))
        return done.returncode, done.stdout + done.stderr

    def test_a_test_that_fails_either_way_is_no_difference(self):
        status, said = self.run_suites()
        self.assertIn("jax.own_tests_diff 0", said)
        self.assertIn("plain: 5 FAILED 5 OK", said)
        self.assertEqual(status, 0)

    def test_a_test_that_the_hook_breaks_is_named(self):
        status, said = self.run_suites(memories_test=[("test_a", "pass"), ("test_b", "pass"), ("test_c", "fail when hooked")])
        self.assertIn("jax.own_tests_diff 1", said)
        self.assertIn("memories_test.Some.test_c: plain OK, hooked FAILED", said)
        self.assertEqual(status, 1)

    def test_a_process_that_dies_loses_no_test(self):
        tests = [("test_a", "crash when hooked"), ("test_other_shard", "pass"), ("test_after", "pass")]
        status, said = self.run_suites(array_test=tests)
        self.assertIn("array_test.Some.test_a: plain OK, hooked UNFINISHED", said)
        self.assertIn("array_test.Some.test_after: plain OK, hooked absent", said)
        self.assertEqual((status, said.count("hooked ")), (1, 2))

    def test_a_folder_without_the_tests_is_skipped(self):
        done = subprocess.run(["bash", str(SCRIPT)], capture_output=True, text=True,
                              env=dict(os.environ, JAX_TESTS=str(self.folder), JAX_PLATFORMS="cpu"))
        self.assertEqual(done.returncode, 77)


if __name__ == "__main__":
    unittest.main()
