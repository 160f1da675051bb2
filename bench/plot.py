#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the README's pictures from the results: overlap.svg, fast.svg, tight.svg; and prints its table.

    python3 bench/plot.py [FOLDER]      of the *.jsonl, and for the pictures; bench/results
    python3 bench/plot.py --timeline STEM_plain.json STEM_hook.json timeline.svg
                                        what bench/jax/actor_learner.py --timeline STEM has written, one above the other

Each shows one run, the last one on a real GPU where there is one. Exits 1 where a picture has no results to draw.
"""
import json
import math
import pathlib
import statistics
import sys
from xml.sax.saxutils import escape

from check import BENCH, latest, read_results, read_targets

COLORS = {"weir": "#2f81f7", "BFC": "#d9822b", "cuMemAllocAsync+cuMemFreeAsync": "#848d97", "PyTorch": "#d1495b",
          "PyTorch, expandable": "#e0929d", "RMM pool": "#5f9e3f", "RMM arena": "#a3c585",
          "CuPy, from Python": "#9b72cf"}
OTHER = "#a0a7ae"
# Readable on its own in either mode: the ground is the picture's.
STYLE = """<style>
text { font-family: sans-serif; fill: #1f2328 } .ground { fill: #ffffff } .rail { fill: #eff1f3 } .line { stroke: #d1d9e0 }
.pale { fill: #656d76 }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .ground { fill: #0d1117 } .rail { fill: #1c2128 } .line { stroke: #3d444d } .pale { fill: #9198a1 }
}
</style>"""


class Picture:
    def __init__(self, width, height, title):
        self.rows = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                     f'height="{height}" font-size="13">', STYLE, '<rect class="ground" width="100%" height="100%"/>']
        self.text(12, 24, title, size=16)

    def text(self, x, y, text, anchor="start", size=None, kind=None):
        more = (f' font-size="{size}"' if size else "") + (f' class="{kind}"' if kind else "")
        self.rows.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>')

    def bar(self, x, y, width, height, subject=None):
        how = f'fill="{COLORS.get(subject, OTHER)}"' if subject else 'class="rail"'
        self.rows.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" {how}/>')

    def span(self, x, y, width, height, color):
        self.rows.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{color}"/>')

    def dot(self, x, y, subject):
        radius = 5 if subject == "weir" else 4
        self.rows.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{COLORS.get(subject, OTHER)}"/>')

    def line(self, x, top, bottom):
        self.rows.append(f'<line class="line" x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{bottom:.1f}"/>')

    def save(self, path):
        path.write_text("\n".join(self.rows + ["</svg>", ""]))


def run_of(results, figure):
    """The rows of the last run that has weir's `figure`, in the order in which they were printed."""
    mine = latest([r for r in results if r["figure"] == figure and r["subject"] == "weir" and "run" in r])
    return [r for r in results if mine and r.get("run") == mine["run"]]


def values_of(rows, figure):
    return {r["subject"]: r["value"] for r in rows if r["figure"] == figure}


# ---- overlap ---------------------------------------------------------------------------------------------------------


def last_shares(results):
    """(device, {subject: share}) of the last run on a GPU."""
    shares, device = {}, None
    for row in results:
        if row["figure"] != "overlap.compute_share" or row["device"].startswith("sim:"):
            continue
        if row["subject"] in shares:  # a later run begins
            shares = {}
        shares[row["subject"]] = row["value"]
        device = row["device"]
    return device, shares


def draw_overlap(results, path):
    left, width, bar, gap, top = 290, 400, 26, 14, 44
    device, shares = last_shares(results)
    if not shares:
        return False
    p = Picture(left + width + 70, top + len(shares) * (bar + gap),
                f"Share of the time in which the GPU computes ({device})")
    for i, (subject, share) in enumerate(shares.items()):
        y = top + i * (bar + gap)
        p.text(left - 10, y + 18, subject, "end")
        p.bar(left, y, width, bar)
        p.bar(left, y, share * width, bar, subject)
        p.text(left + width + 10, y + 18, f"{share:.0%}")
    p.save(path)
    return True


# ---- fast ------------------------------------------------------------------------------------------------------------

LATENCIES = [("alloc.pair_ns", "one thread, a pair"),
             ("alloc.pair_hole_ns", "one thread, a pair in a hole of its size"),
             ("alloc.mix_op_ns", "random mix of 512 live blocks, a call"),
             ("alloc.pair_16t_ns", "16 threads, each on a stream of its own, a pair"),
             ("alloc.pair_shared_8t_ns", "8 threads on one stream, a pair"),
             ("alloc.cross_thread_pair_ns", "alloc by one thread, free by another, a pair")]


def time_text(ns):
    if ns >= 1e6:
        return f"{ns / 1e6:.3g} ms"
    return f"{ns:.0f} ns" if ns < 1000 else f"{ns / 1000:.3g} us"


def draw_fast(results, path):
    left, width, bar, head, foot = 250, 400, 15, 26, 14
    rows = run_of(results, "alloc.pair_vs_bfc")
    groups = [(title, values_of(rows, figure)) for figure, title in LATENCIES]
    groups = [(title, values) for title, values in groups if values]
    if not groups:
        return False
    low = 10 ** math.floor(math.log10(min(min(v.values()) for _, v in groups)))
    decades = math.ceil(math.log10(max(max(v.values()) for _, v in groups) / low))
    bottom = 44 + sum(head + foot + bar * len(v) for _, v in groups)
    p = Picture(left + width + 80, bottom + 30,
                f"Time of alloc and free ({rows[0]['device']}); logarithmic, shorter is better")
    for i in range(decades + 1):
        p.line(left + width * i / decades, 44, bottom)
        p.text(left + width * i / decades, bottom + 16, time_text(low * 10**i), "middle", kind="pale")
    y = 44
    for title, values in groups:
        p.text(12, y + 18, title, size=14)
        y += head
        for subject, ns in values.items():
            length = width * math.log10(ns / low) / decades
            p.text(left - 8, y + 11, subject, "end", size=12)
            p.bar(left, y + 1, max(length, 1), bar - 3, subject)
            p.text(left + max(length, 1) + 6, y + 11, time_text(ns), size=12)
            y += bar
        y += foot
    p.save(path)
    return True


# ---- tight -----------------------------------------------------------------------------------------------------------

RATIOS = [("memory.min_limit", "smallest limit that is enough"), ("memory.peak_ratio", "reserved without a limit")]


def draw_panel(p, x, width, top, line, figure, title, table, names):
    """One ratio, a dot a subject and trace."""
    most = max(value for values in table.values() for value in values.values())
    step = next(s for s in (0.02, 0.05, 0.1, 0.2, 0.5, 1, 10) if (most - 1) / s <= 6)
    ticks = math.ceil((most - 1) / step) or 1
    bottom = top + line * len(names)
    p.text(x, top - 12, title, size=14)
    for i in range(ticks + 1):
        p.line(x + width * i / ticks, top - 4, bottom)
        p.text(x + width * i / ticks, bottom + 14, f"{1 + i * step:.3g}", "middle", size=12, kind="pale")
    for i, name in enumerate(names):
        values = table.get(name, {})
        for subject in sorted(values, key=lambda s: s == "weir"):  # weir's dot on top
            p.dot(x + width * (values[subject] - 1) / (ticks * step), top + line * (i + 0.5), subject)


def draw_tight(results, path):
    left, width, gap, top, line = 284, 300, 36, 98, 20
    rows = run_of(results, "memory.min_limit_geomean")
    names = list(dict.fromkeys(r["figure"].partition(":")[2] for r in rows if ":" in r["figure"])) + ["geometric mean"]
    tables = [{name: values_of(rows, f"{figure}:{name}") for name in names[:-1]} |
              {names[-1]: values_of(rows, f"{figure}_geomean")} for figure, _ in RATIOS]
    if len(names) == 1:
        return False
    p = Picture(left + 2 * width + gap + 30, top + line * len(names) + 26,
                "Memory needed over the greatest sum of live bytes; 1 is perfect")
    x = 12
    for subject in dict.fromkeys(r["subject"] for r in rows):
        p.dot(x + 5, 46, subject)
        p.text(x + 16, 50, subject)
        x += 40 + 7.5 * len(subject)
    for i, name in enumerate(names):
        p.text(left - 14, top + line * (i + 0.5) + 4, name, "end", size=12)
    for i, (figure, title) in enumerate(RATIOS):
        draw_panel(p, left + i * (width + gap), width, top, line, figure, title, tables[i], names)
    p.save(path)
    return True


# ---- timeline --------------------------------------------------------------------------------------------------------

SLOW = 1.5  # a step of so many medians stands out
SHADES = {"step": "#2f81f7", "slow step": "#d1495b", "fetch": "#d9822b", "update": "#a0a7ae"}


def read_timeline(path):
    """{name: [(begin, end)]} in milliseconds."""
    spans = {"step": [], "fetch": [], "update": []}
    for event in json.loads(pathlib.Path(path).read_text())["traceEvents"]:
        if event["ph"] == "X" and event["name"] in spans:
            spans[event["name"]].append((event["ts"] / 1e3, (event["ts"] + event["dur"]) / 1e3))
    return spans


def duration(span):
    return span[1] - span[0]


def shade(kind, span, usual):
    return SHADES["slow step" if kind == "step" and duration(span) > SLOW * usual else kind]


def draw_track(p, spans, kinds, begin, scale, x, y, width, height):
    """Of each kind what is inside of the stretch that begins at `begin`."""
    p.bar(x, y, width, height)
    usual = statistics.median(map(duration, spans["step"]))
    for kind in kinds:
        for span in spans[kind]:
            left, right = (min(max((t - begin) * scale, 0), width) for t in span)
            if right > left:
                p.span(x + left, y, max(right - left - 0.5, 0.7), height, shade(kind, span, usual))


def draw_timeline(paths, out):
    """The same program in two runs, {title: path of its trace}: actor and learner, around the fetch of median length,
    over the same stretch of time. False: a trace without steps and fetches."""
    runs = {title: read_timeline(path) for title, path in paths.items()}
    if not all(spans["step"] and spans["fetch"] for spans in runs.values()):
        return False
    left, width, track, top, panel = 80, 760, 26, 70, 118
    shown = {title: sorted(spans["fetch"], key=duration)[len(spans["fetch"]) // 2] for title, spans in runs.items()}
    stretch = 2 * max(duration(fetch) for fetch in shown.values())
    p = Picture(left + width + 30, top + panel * len(runs) + 10,
                f"An actor and a learner, {stretch:.3g} ms of each run")
    for i, (name, color) in enumerate(SHADES.items()):
        p.span(left + 190 * i, 38, 14, 14, color)
        p.text(left + 190 * i + 20, 50, name + (f" (> {SLOW} medians)" if name == "slow step" else ""), size=12)
    for i, (title, spans) in enumerate(runs.items()):
        fetch, y = shown[title], top + panel * i
        inside = [duration(s) for s in spans["step"] if s[1] > fetch[0] and s[0] < fetch[1]]
        longest = f", longest step meanwhile {max(inside):.3g} ms" if inside else ""
        p.text(left, y + 18, f"{title}: fetch {duration(fetch):.3g} ms{longest}", size=14)
        for row, (name, kinds) in enumerate((("actor", ["step"]), ("learner", ["fetch", "update"]))):
            at = y + 28 + row * (track + 8)
            p.text(left - 10, at + 18, name, "end")
            draw_track(p, spans, kinds, fetch[0] - stretch / 8, width / stretch, left, at, width, track)
    p.save(out)
    return True


def number_text(value):
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def print_table(results):
    """What fast.svg and tight.svg are of, with the targets, as Markdown."""
    runs = [run_of(results, "alloc.pair_vs_bfc"), run_of(results, "memory.min_limit_geomean")]
    rows = [r for r in sum(runs, []) if ":" not in r["figure"]]
    subjects = list(dict.fromkeys(r["subject"] for r in rows))
    targets = {figure: f"{relation} {bound:g}" for figure, relation, bound in read_targets()}
    print(f"| | target | {' | '.join(subjects)} |\n|{'---|' * (2 + len(subjects))}")
    for figure, unit in dict.fromkeys((r["figure"], r["unit"]) for r in rows):
        values = values_of(rows, figure)
        cells = [number_text(values[s]) if s in values else "-" for s in subjects]
        print(f"| `{figure}`{', ' if unit else ''}{unit} | {targets.get(figure, '-')} | {' | '.join(cells)} |")


def main():
    if sys.argv[1:2] == ["--timeline"]:
        plain, weir, out = map(pathlib.Path, sys.argv[2:])
        return not draw_timeline({"JAX": plain, "JAX with weir": weir}, out)
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else BENCH / "results"
    results = read_results(folder)
    drawn = {name: draw(results, folder / f"{name}.svg")
             for name, draw in (("overlap", draw_overlap), ("fast", draw_fast), ("tight", draw_tight))}
    print_table(results)
    for name in (name for name in drawn if not drawn[name]):
        print(f"plot: no results for {name}.svg in {folder}", file=sys.stderr)
    return not all(drawn.values())


if __name__ == "__main__":
    sys.exit(main())
