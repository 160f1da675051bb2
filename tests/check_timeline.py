# SPDX-License-Identifier: Apache-2.0
"""Is a timeline what it should be? For test_timeline.c.

    python3 tests/check_timeline.py FILE pipeline START_NS COPY_NS COMPUTE_NS STEPS
    python3 tests/check_timeline.py FILE tracks ITEMS MOST_AT_ONCE
    python3 tests/check_timeline.py FILE lost SPANS
    python3 tests/check_timeline.py FILE begins NS
    python3 tests/check_timeline.py FILE overlap        of a run on a GPU: says how much of the copying ran beside a use
"""
import collections
import json
import sys


def ns(us):
    """Times are microseconds with three digits behind the point."""
    return round(us * 1000)


def read(path):
    with open(path) as file:
        timeline = json.load(file)
    events = timeline["traceEvents"]
    spans = sorted((e for e in events if e["ph"] == "X"), key=lambda e: (e["ts"], e["args"]["ticket"]))
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert any(e["ph"] == "M" and e["name"] == "process_name" for e in events), "the device has no name"
    assert all(e["tid"] in names for e in spans), "a track has no name"
    check_tracks(spans)
    return timeline, spans, names


def check_tracks(spans):
    ends = collections.defaultdict(int)
    for span in spans:
        start, track = ns(span["ts"]), (span["pid"], span["tid"])
        assert start >= ends[track], f"{span['name']} overlaps another on its track"
        ends[track] = start + ns(span["dur"])


def by_kind(spans, kind):
    return [(ns(s["ts"]), ns(s["ts"]) + ns(s["dur"])) for s in spans if s["cat"] == kind]


def check_pipeline(path, start, copy, compute, steps):
    """Double buffering, to the nanosecond: a copy waits for the copy before, and for the use of its slot."""
    timeline, spans, names = read(path)
    copies, uses = by_kind(spans, "copy"), by_kind(spans, "use")
    assert timeline["otherData"]["lost"] == 0
    assert len(names) == 2 and len(copies) == len(uses) == steps
    copied = used = start
    for i in range(steps):
        begin = max(copied, uses[i - 2][1] if i >= 2 else start)
        assert copies[i] == (begin, begin + copy), f"copy {i}: {copies[i]}, not from {begin} for {copy}"
        copied = begin + copy
        begin = max(copied, used)
        assert uses[i] == (begin, begin + compute), f"use {i}: {uses[i]}, not from {begin} for {compute}"
        used = begin + compute


def check_items(path, items, at_once):
    timeline, spans, names = read(path)
    assert timeline["otherData"]["lost"] == 0
    assert len(by_kind(spans, "copy")) == len(by_kind(spans, "use")) == items
    assert len(names) == 1 + at_once, f"tracks: {sorted(names.values())}"


def check_lost(path, lost):
    timeline, _, _ = read(path)
    assert timeline["otherData"]["lost"] == lost, f"lost: {timeline['otherData']['lost']}, not {lost}"


def check_begins(path, expected):
    timeline, spans, _ = read(path)
    copies = by_kind(spans, "copy")
    assert timeline["otherData"]["lost"] == 0 and len(copies) == 1
    begin, end = copies[0]
    assert begin == expected, f"the copy begins at {begin}, not at {expected}"
    assert end > begin


def check_overlap(path):
    timeline, spans, names = read(path)
    copies, uses = by_kind(spans, "copy"), by_kind(spans, "use")
    both = sum(max(0, min(c[1], u[1]) - max(c[0], u[0])) for c in copies for u in uses)
    copying = sum(end - begin for begin, end in copies)
    print(f"{len(copies)} copies and {len(uses)} uses on {len(names)} tracks, {timeline['otherData']['lost']} lost;",
          f"{both / copying:.1%} of {copying / 1e6:.1f} ms of copying ran beside a use")
    assert copies and uses


CHECKS = {"overlap": check_overlap, "pipeline": check_pipeline, "tracks": check_items, "lost": check_lost,
          "begins": check_begins}
CHECKS[sys.argv[2]](sys.argv[1], *map(int, sys.argv[3:]))
