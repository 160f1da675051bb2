#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training and generation in PyTorch, on weir's memory and on PyTorch's own with expandable segments.

    python3 bench/pytorch/train.py [PART...] [--results FILE] [--repeats N] [--tiny] [--cpu]

Parts: resnet    ResNet-50 on images, a short last batch and an evaluation each epoch
       gpt       a transformer of GPT-2's size, on sequences of varying length
       streams   a prefetch loop by hand, which opens a new side stream each epoch
       decode    a small decoder that generates tokens at batch 1, its cache growing token by token
       pageable  AlexNet, batch 1024, over pageable batches: weir.torch.prefetch beside what PyTorch offers
Each run is a process of its own; of repeated ones, which take turns, the faster counts. Needs the package weir (PYTHONPATH,
WEIR_LIBRARY_PATH), but for --cpu, which runs the logic without a GPU, and PyTorch itself in the place of weir.
torch.peak_reserved_ratio and torch.step_time_ratio are the worst of the first three parts: of those that were asked for. Where
one of them fails there is no worst; the other figures are written all the same. Exit code 1: a part failed.
"""
import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys

import torch
from parts import PARTS, Place

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "jax"))
import common  # noqa: E402

SECONDS = 180  # of one process, at most


class PartFailed(Exception):
    pass


def work(part, allocator, tiny, cpu):
    """In a process of its own: prints what the part measured."""
    if allocator == "weir" and not cpu:
        import weir.torch
        if not weir.torch.install("native"):
            sys.exit("weir does not serve PyTorch here")
    torch.manual_seed(1)
    place = Place(cpu)
    if place.is_gpu:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    measured = PARTS[part](place, tiny)
    measured["device"] = torch.cuda.get_device_name() if place.is_gpu else "cpu: torch " + torch.__version__
    print(json.dumps(measured))


def run(part, allocator, options):
    environment = dict(os.environ)
    if allocator == "native":
        environment["PYTORCH_CUDA_ALLOC_CONF"] = environment["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    words = [sys.executable, __file__, "--worker", part, allocator]
    words += [name for name, on in (("--tiny", options.tiny), ("--cpu", options.cpu)) if on]
    try:
        done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        raise PartFailed(f"{part} on {allocator}: no end after {SECONDS} s") from None
    if done.returncode:
        raise PartFailed(f"{part} on {allocator}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def best(runs):
    """Of repeated runs: the fastest time, the highest rate and peak."""
    pick = {"step_s": min, "tokens_per_s": max, "peak_reserved": max}
    return {key: pick[key](r[key] for r in runs) if key in pick else runs[0][key] for key in runs[0]}


def rows_of(measured, subject="weir", failed=()):
    """[(figure, subject, value, unit)] of {part: {allocator: best}}, with no worst where a part failed that counts in it.
    `subject` names what the allocator "weir" was."""
    rows, ratios = [], {"torch.step_time_ratio": [], "torch.peak_reserved_ratio": []}
    for part, by in measured.items():
        if part == "pageable":
            rows += [("torch.pageable_compute_share", name, share, "ratio") for name, share in by["weir"]["share"].items()]
            continue
        native, ours = by["native"], by["weir"]
        if part == "decode":
            rows.append(("torch.decode_ratio", subject, ours["tokens_per_s"] / native["tokens_per_s"], "ratio"))
            continue
        ratios["torch.step_time_ratio"].append(ours["step_s"] / native["step_s"])
        if native["peak_reserved"]:
            ratios["torch.peak_reserved_ratio"].append(ours["peak_reserved"] / native["peak_reserved"])
    if set(failed) - {"pageable", "decode"}:
        return rows
    return rows + [(figure, subject, max(all_of), "ratio") for figure, all_of in ratios.items() if all_of]


def say(part, by):
    for allocator, b in by.items():
        if part == "pageable":
            shares = ", ".join(f"{name} {share:.3f}" for name, share in b["share"].items())
            print(f"{part:10}compute {b['compute_s'] * 1e3:.1f} ms a step; its share with {shares}", flush=True)
        elif part == "decode":
            print(f"{part:10}{allocator:8}{b['tokens_per_s']:.0f} tokens/s", flush=True)
        else:
            print(f"{part:10}{allocator:8}{b['step_s'] * 1e3:8.2f} ms a step, {b['peak_reserved'] / 2**20:8.0f} MiB reserved at"
                  f" most, last loss {b['loss']:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=" ".join(PARTS))
    parser.add_argument("--results", help="a .jsonl file to append to")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="small networks, few steps")
    parser.add_argument("--cpu", action="store_true", help="on the processor, without weir")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(*options.worker, options.tiny, options.cpu)
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {' '.join(unknown)}")
    begun, measured, failed = datetime.datetime.now(datetime.timezone.utc), {}, []
    for part in options.parts or PARTS:
        try:
            measured[part] = measure(part, options)
        except PartFailed as error:
            failed.append(part)
            print(error, flush=True)
        else:
            say(part, measured[part])
    if measured:
        write(measured, failed, options, begun)
    return 1 if failed else 0


def measure(part, options):
    """{allocator: best}"""
    allocators = ["weir"] if part == "pageable" else ["native", "weir"]
    runs = [(a, run(part, a, options)) for _ in range(1 if part == "pageable" else options.repeats) for a in allocators]
    return {a: best([r for name, r in runs if name == a]) for a in allocators}


def write(measured, failed, options, begun):
    device = next(iter(next(iter(measured.values())).values()))["device"]
    stamp = begun.strftime("%Y-%m-%dT%H:%M:%SZ")
    for figure, subject, value, unit in rows_of(measured, "PyTorch, again" if options.cpu else "weir", failed):
        print(f"{figure:32}{subject:20}{value:.4f}")
        if options.results:
            row = {"figure": figure, "subject": subject, "value": value, "unit": unit, "device": device,
                   "driver": f"PyTorch {torch.__version__}", "date": stamp, "commit": common.commit_name(),
                   "command": " ".join(["pytorch/train.py", *sys.argv[1:]]), "run": f"{stamp}-{os.getpid()}"}
            with open(options.results, "a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    sys.exit(main())
