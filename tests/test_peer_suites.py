# SPDX-License-Identifier: Apache-2.0
"""tests/peer_suites.py over a small suite of its own: equal results, one that differs, one that crashes, one that differs
once.

    python3 tests/test_peer_suites.py

Exit code 77: no pytest.
"""
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import peer_suites  # noqa: E402

if importlib.util.find_spec("pytest") is None:
    print("no pytest")
    sys.exit(77)

SUITE = """
import os, pathlib
import pytest
served = bool(os.environ["WEIR_PEER_FRAMEWORK"])
def test_passes(): pass
def test_fails(): assert False
def test_is_skipped(): pytest.skip("as ever")
def test_crashes_on_weir():
    if served: os._exit(3)
def test_comes_after_the_crash(): pass
def test_fails_on_weir(): assert not served
def test_fails_on_weir_once():
    mark = pathlib.Path(__file__).with_suffix(".mark")
    if served and not mark.exists():
        mark.touch()
        assert False
@pytest.fixture
def broken(): assert not served
def test_with_a_fixture_that_fails_on_weir(broken): pass
"""
STAND_IN = "def install(): return True\n"


class TheSuites(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "test_small.py").write_text(SUITE)
        package = self.folder / "weir"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "small.py").write_text(STAND_IN)
        peer_suites.SUITES["small"] = [(["test_small.py"], "")]

    def compare(self):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            n = peer_suites.compare("small", self.folder, 120, "")
        return n, said.getvalue()

    def test_differences_are_counted_and_named_and_what_differs_once_is_not_one(self):
        n, said = self.compare()
        self.assertEqual(n, 3, said)
        lines = {line.split("::")[1]: line.split() for line in said.splitlines() if "::" in line}
        self.assertEqual(lines["test_crashes_on_weir"][1:4], ["passed", "/", "crashed"])
        self.assertEqual(lines["test_fails_on_weir"][1:4], ["passed", "/", "failed"])
        self.assertEqual(lines["test_with_a_fixture_that_fails_on_weir"][1:6], ["passed", "/", "failed", "in", "setup"])
        self.assertEqual(lines["test_fails_on_weir_once"][:2], ["differed", "once"])
        self.assertEqual(len(lines), 4)
        self.assertIn("8 tests on its own allocator, 8 on weir, 8 on both", said)

    def test_weir_that_does_not_serve_is_no_result(self):
        (self.folder / "weir" / "small.py").write_text("def install(): return False\n")
        with self.assertRaises(SystemExit) as ended:
            self.compare()
        self.assertIn("does not serve small", str(ended.exception.code))

    def test_a_figure_is_written_where_neither_git_nor_nvidia_smi_is_there(self):
        results = self.folder / "rows"
        with mock.patch.dict(os.environ, PATH=str(self.folder)):
            os.environ.pop("WEIR_COMMIT", None)
            peer_suites.write(results, "small.own_tests_diff", 3)
        row = json.loads(results.read_text())
        self.assertEqual((row["value"], row["device"], row["commit"]), (3, "unknown", "unknown"))

    def test_a_suite_that_is_not_there_is_no_result(self):
        (self.folder / "test_small.py").unlink()
        with self.assertRaises(SystemExit):
            self.compare()


if __name__ == "__main__":
    unittest.main()
