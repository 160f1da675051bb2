#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws bench/results/overlap.svg, the README's picture, from the last run on a real GPU in overlap.jsonl."""
import json
import pathlib
import sys
from xml.sax.saxutils import escape

RESULTS = pathlib.Path(__file__).parent / "results"
FIGURE = "overlap.compute_share"
LEFT, WIDTH, BAR, GAP, TOP = 290, 400, 26, 14, 52


def last_shares(lines):
    """{subject: share} of the last run on a GPU, in the order in which it was printed."""
    shares, device = {}, None
    for row in map(json.loads, lines):
        if row["figure"] != FIGURE or row["device"].startswith("sim:"):
            continue
        if row["subject"] in shares:  # a later run begins
            shares = {}
        shares[row["subject"]] = row["value"]
        device = row["device"]
    return device, shares


def draw(device, shares):
    height = TOP + len(shares) * (BAR + GAP) + 10
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 70}" height="{height}" '
        'font-family="sans-serif" font-size="14">',
        f'<rect width="100%" height="100%" fill="white"/>',
        f'<text x="10" y="24" font-size="16">Share of the time in which the GPU computes ({escape(device)})</text>',
    ]
    for i, (subject, share) in enumerate(shares.items()):
        y = TOP + i * (BAR + GAP)
        color = "#1f77b4" if subject == "weir" else "#b0b0b0"
        rows += [
            f'<text x="{LEFT - 10}" y="{y + 18}" text-anchor="end">{escape(subject)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{WIDTH}" height="{BAR}" fill="#f0f0f0"/>',
            f'<rect x="{LEFT}" y="{y}" width="{share * WIDTH:.1f}" height="{BAR}" fill="{color}"/>',
            f'<text x="{LEFT + WIDTH + 10}" y="{y + 18}">{share:.0%}</text>',
        ]
    return "\n".join(rows + ["</svg>", ""])


def main():
    source = RESULTS / "overlap.jsonl"
    device, shares = last_shares(source.read_text().splitlines()) if source.exists() else (None, {})
    if not shares:
        sys.exit(f"plot: no {FIGURE} of a GPU in {source}: run bench/overlap there first")
    (RESULTS / "overlap.svg").write_text(draw(device, shares))


if __name__ == "__main__":
    main()
