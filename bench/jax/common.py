# SPDX-License-Identifier: Apache-2.0
"""What the benches of JAX share: a process for each way of running, and results in the form of bench/harness.c."""
import datetime
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "interpose" / "python"
ON_CPU = os.environ.get("JAX_PLATFORMS") == "cpu"  # the programs' logic, without a GPU: two devices of JAX's CPU platform
SKIPPED = 77


def missing():
    """What keeps the benches from running here; None: nothing."""
    if importlib.util.find_spec("jax") is None:
        return "no JAX"
    if not ON_CPU and not pathlib.Path("/dev/nvidia0").exists():
        return "no GPU (JAX_PLATFORMS=cpu tries the program out without one)"
    return None


def skip_where_missing():
    if missing():
        print(f"{pathlib.Path(sys.argv[0]).name}: {missing()}: skipped")
        sys.exit(SKIPPED)


def child_environment():
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(
        [str(PACKAGE)] + [p for p in [os.environ.get("PYTHONPATH")] if p]))
    environment.setdefault("WEIR_LIBRARY_PATH", str(ROOT / "build" / "release"))
    if ON_CPU:
        environment["XLA_FLAGS"] = environment.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
        environment.setdefault("WEIR_DEVICE", "sim")
    return environment


def run_child(script, mode, arguments, timeout_s=240):
    """What a process of this mode reports, as `report` printed it. Ends this process where that one fails."""
    command = [sys.executable, str(pathlib.Path(script).resolve()), "--mode", mode, *arguments]
    try:
        done = subprocess.run(command, env=child_environment(), stdout=subprocess.PIPE, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        sys.exit(f"{mode}: not over after {timeout_s} s")
    lines = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    if done.returncode != 0 or not lines:
        sys.exit(f"{mode}: exit {done.returncode} of {' '.join(command)}\n{done.stdout[-2000:]}")
    return json.loads(lines[-1].removeprefix("REPORT "))


def report(values):
    print("REPORT " + json.dumps(values), flush=True)


def hook():
    """In a child, before JAX's first use of a device. False: not where there is no GPU."""
    import weir.jax
    if not ON_CPU and not weir.jax.install():
        sys.exit("not hooked: " + weir.jax.status()["message"])
    return not ON_CPU


def served():
    """How many transfers the hook has served so far, and how many it has forwarded."""
    import weir.jax
    status = weir.jax.status()
    return [sum(kind["count"] for kind in status["served"].values()), sum(status["forwarded"].values())]


def device_name():
    import jax
    device = jax.devices()[0]
    return f"cpu: {len(jax.devices())} devices of JAX's" if device.platform == "cpu" else device.device_kind


def driver_name():
    try:
        first = pathlib.Path("/proc/driver/nvidia/version").read_text().partition("\n")[0]
    except OSError:
        return "none"
    found = re.search(r"\s(\d+\.[\d.]+)\s", first)
    return found.group(1) if found else "unknown"


def commit_name():
    """$WEIR_COMMIT names what was built, where that is not what is checked out."""
    given = os.environ.get("WEIR_COMMIT")
    if given:
        return given
    try:
        answer = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    except OSError:
        return "unknown"
    return answer.stdout.strip() or "unknown"


class Results:
    """Prints each figure, and appends it to a file if there is one."""

    def __init__(self, path, command, device):
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._path = path
        self._more = {"device": device, "driver": driver_name(), "date": now, "commit": commit_name(), "command": command,
                      "run": f"{now}-{os.getpid()}"}

    def add(self, figure, subject, value, unit=""):
        print(f"| {figure} | {subject} | {value:.4g} {unit} |", flush=True)
        if self._path:
            row = {"figure": figure, "subject": subject, "value": float(f"{value:.6g}"), "unit": unit, **self._more}
            with open(self._path, "a") as file:
                file.write(json.dumps(row) + "\n")
