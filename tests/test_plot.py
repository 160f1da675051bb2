# SPDX-License-Identifier: Apache-2.0
"""bench/plot.py draws what the last run measured, each subject by its name, and says what it has no results for.

    python3 tests/test_plot.py
"""
import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
import check  # noqa: E402
import plot  # noqa: E402

SVG = "{http://www.w3.org/2000/svg}"


def row(figure, subject, value, run="1", device="NVIDIA H200", date="2026-01-01T00:00:00Z"):
    return {"figure": figure, "subject": subject, "value": value, "unit": "", "device": device, "driver": "", "date": date,
            "commit": "0", "command": "", "run": run}


RUN = [row("alloc.pair_ns", "weir", 40), row("alloc.pair_ns", "B<C", 4000), row("alloc.pair_vs_bfc", "weir", 100),
       row("memory.min_limit:some_trace", "weir", 1.01), row("memory.min_limit:some_trace", "B<C", 1.5),
       row("memory.peak_ratio:some_trace", "weir", 1.02), row("memory.min_limit_geomean", "weir", 1.01),
       row("memory.peak_ratio_geomean", "weir", 1.02), row("overlap.compute_share", "weir", 0.98)]


class PlotTest(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def draw(self, rows):
        """The exit status, and what was said."""
        (self.folder / "results.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
        said, before = io.StringIO(), sys.argv
        sys.argv = ["plot.py", str(self.folder)]
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()) as self.printed:
                return plot.main(), said.getvalue()
        finally:
            sys.argv = before

    def shapes(self, name, kind):
        return list(xml.parse(self.folder / f"{name}.svg").getroot().iter(SVG + kind))

    def texts(self, name):
        return [shape.text for shape in self.shapes(name, "text")]

    def test_each_picture_names_its_subjects(self):
        self.assertEqual(self.draw(RUN), (False, ""))
        for name, subjects in (("fast", {"weir", "B<C"}), ("tight", {"weir", "B<C", "some_trace"}), ("overlap", {"weir"})):
            self.assertLessEqual(subjects, set(self.texts(name)))

    def test_a_hundred_times_the_time_is_two_decades(self):
        self.draw(RUN)
        mine, other = (float(bar.get("width")) for bar in self.shapes("fast", "rect") if "fill" in bar.attrib)
        ticks = [float(line.get("x1")) for line in self.shapes("fast", "line")]
        self.assertAlmostEqual(other - mine, 2 * (ticks[1] - ticks[0]), delta=0.2)

    def test_a_dot_stands_at_its_value(self):
        self.draw([r for r in RUN if not r["figure"].startswith("memory.peak_ratio")] + [row("memory.peak_ratio_geomean", "weir", 1)])
        ticks = [(float(line.get("x1"))) for line in self.shapes("tight", "line")]
        dots = [float(dot.get("cx")) for dot in self.shapes("tight", "circle") if dot.get("fill") == plot.OTHER]
        self.assertAlmostEqual(dots[-1], ticks[5], delta=0.2)  # 1.5, and the lines are 0.1 apart

    def test_the_table_has_a_column_a_subject_and_the_targets(self):
        self.draw(RUN)
        lines = self.printed.getvalue().splitlines()
        self.assertEqual(lines[0], "| | target | weir | B<C |")
        self.assertIn("| `alloc.pair_ns` | <= 40 | 40 | 4000 |", lines)
        self.assertIn("| `alloc.pair_vs_bfc` | >= 3 | 100 | - |", lines)

    def test_another_run_is_not_drawn(self):
        old = [row("alloc.pair_ns", "gone", 7, run="0", date="2025-01-01T00:00:00Z"),
               row("alloc.pair_vs_bfc", "weir", 7, run="0", date="2025-01-01T00:00:00Z")]
        self.draw(old + RUN)
        self.assertNotIn("gone", self.texts("fast"))

    def test_a_picture_without_results_is_named(self):
        status, said = self.draw([r for r in RUN if not r["figure"].startswith("memory.")])
        self.assertTrue(status)
        self.assertIn("tight.svg", said)
        self.assertNotIn("fast.svg", said)
        self.assertFalse((self.folder / "tight.svg").exists())

    def write_trace(self, name, fetch_ms, slow_ms):
        """Steps of 1 ms, one of which is slow while the learner fetches, at 100 ms; times in microseconds."""
        events = [{"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "actor"}}]
        at = 0
        for i in range(200):
            took = slow_ms * 1000 if i == 101 else 1000
            events.append({"ph": "X", "pid": 1, "tid": 1, "name": "step", "ts": at, "dur": took})
            at += took
        for kind, begin, took in (("fetch", 100, fetch_ms), ("update", 100 + fetch_ms, 5)):
            events.append({"ph": "X", "pid": 1, "tid": 2, "name": kind, "ts": begin * 1000, "dur": took * 1000})
        path = self.folder / name
        path.write_text(json.dumps({"traceEvents": events}))
        return path

    def test_the_timeline_shows_both_runs_over_the_same_time_and_their_slow_steps(self):
        paths = {"JAX": self.write_trace("a.json", 40, 8), "with weir": self.write_trace("b.json", 10, 1)}
        self.assertTrue(plot.draw_timeline(paths, self.folder / "timeline.svg"))
        texts = self.texts("timeline")
        self.assertIn("JAX: fetch 40 ms, longest step meanwhile 8 ms", texts)
        self.assertIn("with weir: fetch 10 ms, longest step meanwhile 1 ms", texts)
        by_shade = {}
        for bar in (bar for bar in self.shapes("timeline", "rect") if "fill" in bar.attrib):
            by_shade.setdefault(bar.get("fill"), []).append(float(bar.get("width")))
        key = 1  # one bar of each shade explains it
        self.assertEqual(len(by_shade[plot.SHADES["slow step"]]) - key, 1)
        fetches = by_shade[plot.SHADES["fetch"]][key:]
        self.assertAlmostEqual(fetches[0] / fetches[1], 4, delta=0.05)
        self.assertAlmostEqual(by_shade[plot.SHADES["slow step"]][key], fetches[0] / 5, delta=1)

    def test_a_trace_without_a_fetch_draws_nothing(self):
        paths = {"JAX": self.write_trace("a.json", 40, 8), "with weir": self.folder / "b.json"}
        paths["with weir"].write_text('{"traceEvents": []}')
        self.assertFalse(plot.draw_timeline(paths, self.folder / "timeline.svg"))
        self.assertFalse((self.folder / "timeline.svg").exists())

    def test_the_committed_results_can_be_drawn(self):
        results = check.read_results(check.BENCH / "results")
        for name, draw in (("overlap", plot.draw_overlap), ("fast", plot.draw_fast), ("tight", plot.draw_tight)):
            self.assertTrue(draw(results, self.folder / f"{name}.svg"), name)


if __name__ == "__main__":
    unittest.main()
