#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The frameworks' own tests, on their own allocator and on weir's memory: which have another result?

    python3 tests/peer_suites.py [--torch FOLDER] [--cupy FOLDER] [--results FILE] [--seconds N] [-k EXPRESSION]

FOLDER: of PyTorch's source, its `test`; of CuPy's, its `tests`; both of the installed versions. Each run has N seconds (240);
tests that one of the runs did not reach are said and left out. A test with two results is run again, alone with the others
like it, on both: only what differs again counts. A crash is the result of the test that was running; the others go on.
Prints the names, and torch.own_tests_diff and cupy.own_tests_diff. Exit code 0: no difference; 1: some; 77: no folder given,
or no pytest.
"""
import argparse
import datetime
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "bench" / "jax"))
import common  # noqa: E402

SKIPPED = 77
MOST_CRASHES = 25  # of a run; more is no result
# PyTorch's file about CUDA has thousands of tests that never allocate otherwise than all others do.
SUITES = {
    "torch": [(["test_cuda.py"], "memory or alloc or stream or graph or pool or oom or cache or record or event"),
              (["test_torch.py"], "cuda or CUDA")],
    "cupy": [(["cupy_tests/core_tests", "cupy_tests/cuda_tests/test_memory.py", "cupy_tests/cuda_tests/test_stream.py",
               "cupy_tests/creation_tests"], "")],
}


class Run:
    """The outcomes of one suite, served by weir or not. What has one is not run again."""

    def __init__(self, framework, folder, served, scratch, expression):
        self.framework, self.folder, self.expression = framework, pathlib.Path(folder).resolve(), expression
        self.name = f"{framework} {'on weir' if served else 'on its own'}"
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
                            "WEIR_PEER_FRAMEWORK": framework if served else ""}
        self.scratch, self.n = scratch, 0

    def outcomes(self, seconds, only=None):
        """{test: outcome} of all, or of those named, as far as the time reaches."""
        self.n += 1
        file = self.scratch / f"{self.name.replace(' ', '-')}-{self.n}"
        environment = {**self.environment, "WEIR_PEER_OUTCOMES": str(file)}
        if only is not None:
            listed = file.with_suffix(".only")
            listed.write_text("\n".join(only))
            environment["WEIR_PEER_ONLY"] = str(listed)
        until = time.monotonic() + seconds
        for number, (files, expression) in enumerate(SUITES[self.framework]):
            left = len(SUITES[self.framework]) - number
            self._run_files(files, self.expression or expression, environment, file, (until - time.monotonic()) / left)
        return read_outcomes(file)

    def _run_files(self, files, expression, environment, file, seconds):
        missing = [f for f in files if not (self.folder / f).exists()]
        if missing:
            print(f"{self.name}: no {', '.join(missing)} in {self.folder}", flush=True)
        words = [sys.executable, "-m", "pytest", "-p", "peer_plugin", "-p", "no:cacheprovider", "-q", "--no-header",
                 "--tb=no", *[f for f in files if f not in missing]] + (["-k", expression] if expression else [])
        if len(missing) == len(files):
            return
        until = time.monotonic() + seconds
        for _ in range(MOST_CRASHES):
            has_ended, said = self._run_once(words, environment, file, until - time.monotonic())
            if has_ended or time.monotonic() >= until:
                return
            if not mark_crash(file):
                sys.exit(f"{self.name}: pytest ran no test\n{said[-3000:]}")
        print(f"{self.name}: {MOST_CRASHES} crashes, the rest of {files} was not run", flush=True)

    def _run_once(self, words, environment, file, seconds):
        """Whether the session came to its end, and what pytest said."""
        before = count_ends(file)
        try:
            done = subprocess.run(words, cwd=self.folder, env=environment, capture_output=True, text=True,
                                  timeout=max(seconds, 1))
            said = done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            said = "no time left"
        return count_ends(file) > before, said


def lines_of(file):
    if not file.exists():
        return []
    return [line.split("\t", 1) for line in file.read_text().splitlines()]


def count_ends(file):
    return sum(word == "end" for word, _ in lines_of(file))


def read_outcomes(file):
    """{test: outcome}; the last one counts, since a test may pass and then fail when it is torn down."""
    return {test: word for word, test in lines_of(file) if word not in ("start", "end")}


def mark_crash(file):
    """The test that had begun and has no outcome gets one. False: there is none."""
    begun = [test for word, test in lines_of(file) if word == "start"]
    if not begun or begun[-1] in read_outcomes(file):
        return False
    with open(file, "a") as out:
        out.write(f"crashed\t{begun[-1]}\n")
    return True


def differences(own, ours):
    """{test: (own outcome, ours)} of those that both have."""
    return {test: (own[test], ours[test]) for test in own if test in ours and own[test] != ours[test]}


def compare(framework, folder, seconds, expression):
    """How many tests differ. Says which."""
    with tempfile.TemporaryDirectory() as scratch:
        own, ours = (Run(framework, folder, served, pathlib.Path(scratch), expression) for served in (False, True))
        results = [run.outcomes(seconds) for run in (own, ours)]
        first = differences(*results)
        print(f"{framework}: {len(results[0])} tests on its own allocator, {len(results[1])} on weir, "
              f"{len(set(results[0]) & set(results[1]))} on both; {len(first)} with two results", flush=True)
        again = differences(own.outcomes(seconds, first), ours.outcomes(seconds, first)) if first else {}
    for test in sorted(first):
        word = "differs" if test in again else "differed once"
        print(f"  {word:14}{' / '.join(again.get(test, first[test])):24} {test}")
    if not set(results[0]) & set(results[1]):
        sys.exit(f"{framework}: no test ran on both")
    return len(again)


def name_gpu():
    """The GPU, and its driver."""
    try:
        said = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                              capture_output=True, text=True).stdout
    except OSError:
        said = ""
    words = said.partition("\n")[0].split(", ")
    return words if len(words) == 2 else ("unknown", "unknown")


def write(file, figure, value):
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    device, driver = name_gpu()
    row = {"figure": figure, "subject": "weir", "value": value, "unit": "tests", "device": device, "driver": driver,
           "date": stamp, "commit": common.commit_name(), "command": "peer_suites.py", "run": f"{stamp}-{os.getpid()}"}
    with open(file, "a") as out:
        out.write(json.dumps(row) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for framework in SUITES:
        parser.add_argument(f"--{framework}", metavar="FOLDER")
    parser.add_argument("--results")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("-k", dest="expression", default="")
    options = parser.parse_args()
    folders = {f: getattr(options, f) for f in SUITES if getattr(options, f)}
    missing = [name for name in ("pytest",) if importlib.util.find_spec(name) is None]
    if missing or not folders:
        print(f"no {' '.join(missing) or 'folder of tests'}")
        sys.exit(SKIPPED)
    total = 0
    for framework, folder in folders.items():
        n = compare(framework, folder, options.seconds, options.expression)
        print(f"{framework}.own_tests_diff {n}", flush=True)
        if options.results:
            write(options.results, f"{framework}.own_tests_diff", n)
        total += n
    sys.exit(1 if total else 0)


if __name__ == "__main__":
    main()
