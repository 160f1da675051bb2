# SPDX-License-Identifier: Apache-2.0
"""Prints each target of bench/targets.tsv beside the latest value measured, and beside its peers of the same run.

Only results of a real device count towards a target; a figure that only a simulated device or a processor without a GPU
has yet is shown as such. What a replay needs (memory.*) is arithmetic, the same on any machine: it counts. So does what
is about the simulated device itself (queue.knee_*, queue.shutdown_*).
Exits 1 where a measured target is missed.
"""
import json
import operator
import pathlib
import sys

BENCH = pathlib.Path(__file__).resolve().parent
RELATIONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq}


def read_targets():
    for line in (BENCH / "targets.tsv").read_text().splitlines():
        if line and not line.startswith("#"):
            figure, relation, bound = line.split("\t")[:3]
            yield figure, relation, float(bound)


def read_results(folder):
    results = []
    for file in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            try:
                results.append(json.loads(line))
            except ValueError as error:
                sys.exit(f"{file}:{number}: {error}")
    return results


def stand_in(result):
    """What a result is of, where not of a GPU."""
    kind = result["device"].split(":")[0]
    if kind == "cpu" and result["figure"].startswith("memory."):
        return None
    if kind == "sim" and result["figure"].startswith(("queue.knee_", "queue.shutdown_")):
        return None
    return {"sim": "simulated", "cpu": "no GPU"}.get(kind)


def latest(results):
    """The last one by date; of one date, the last written. Real devices before stand-ins."""
    return max(reversed(results), key=lambda r: (stand_in(r) is None, r["date"]), default=None)


def value_text(result):
    return f"{result['value']:.4g} {result['unit']}".rstrip()


def peers_of(mine, results):
    """The results of the other subjects for this figure, of the same run; of before runs had names, the latest on the
    same device."""
    same = [r for r in results if r.get("run") == mine.get("run") and ("run" in mine or r["device"] == mine["device"])]
    names = dict.fromkeys(r["subject"] for r in same if r["subject"] != "weir")
    return [latest([r for r in same if r["subject"] == name]) for name in names]


def row_of(figure, relation, bound, results):
    results = [r for r in results if r["figure"] == figure]
    mine = latest([r for r in results if r["subject"] == "weir"])
    target = f"{relation} {bound:g}"
    if mine is None:
        return [figure, target, "-", "not measured", "", ""]
    verdict = "met" if RELATIONS[relation](mine["value"], bound) else "missed"
    verdict = stand_in(mine) or verdict
    where = f"{mine['device']}, {mine['date']}, {mine['commit']}"
    peers = ", ".join(f"{r['subject']} {value_text(r)}" for r in peers_of(mine, results))
    return [figure, target, value_text(mine), verdict, peers, where]


def main():
    results = read_results(BENCH / "results")
    rows = [["figure", "target", "latest", "verdict", "peers", "where"]]
    rows += [row_of(*target, results) for target in read_targets()]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
    return any(row[3] == "missed" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
