# SPDX-License-Identifier: Apache-2.0
"""A plug-in of pytest for tests/peer_suites.py: sets weir as a framework's allocator before the tests are read, leaves
out tests that have a result already, and writes each result down at once, so that a crash loses none.

    WEIR_PEER_FRAMEWORK   torch, cupy: served by weir; empty: by its own allocator
    WEIR_PEER_OUTCOMES    a file of lines "start|OUTCOME<TAB>TEST"
    WEIR_PEER_ONLY        a file of the tests to run, one a line; empty: all
"""
import importlib
import os

framework = os.environ.get("WEIR_PEER_FRAMEWORK")
outcomes = os.environ["WEIR_PEER_OUTCOMES"]
only = os.environ.get("WEIR_PEER_ONLY")


def note(word, test):
    with open(outcomes, "a") as file:
        file.write(f"{word}\t{test}\n")


def known():
    if not os.path.exists(outcomes):
        return set()
    with open(outcomes) as file:
        return {line.rstrip("\n").split("\t", 1)[1] for line in file if not line.startswith("start\t")}


def pytest_configure(config):
    if framework:
        served = importlib.import_module(f"weir.{framework}").install()
        if not served:
            raise RuntimeError(f"weir does not serve {framework} here")


def pytest_collection_modifyitems(config, items):
    done = known()
    wanted = None
    if only:
        with open(only) as file:
            wanted = set(file.read().splitlines())
    items[:] = [item for item in items if item.nodeid not in done and (wanted is None or item.nodeid in wanted)]


def pytest_runtest_logstart(nodeid, location):
    note("start", nodeid)


def pytest_runtest_logreport(report):
    if report.when == "call" or report.outcome != "passed":
        word = "failed" if report.failed else "skipped" if report.skipped else "passed"
        note("failed in " + report.when if report.failed and report.when != "call" else word, report.nodeid)


def pytest_sessionfinish(session, exitstatus):
    note("end", f"{int(exitstatus)}")
