# SPDX-License-Identifier: Apache-2.0
"""A file includes only headers of its own or a lower layer, as the design's map says. Every file has a layer.

    python3 tests/check_layers.py
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Lowest first. A name without an ending stands for the .c and the .h.
LAYERS = [
    "alloc/weir.h alloc/base alloc/nvtx",
    "alloc/device alloc/edges alloc/device_cuda alloc/device_cuda_memory alloc/device_cuda_stream alloc/device_cuda_graph alloc/cuda_driver alloc/device_sim alloc/sim alloc/sim_engine alloc/sim_stream"
    " alloc/sim_memory alloc/sim_ranges alloc/sim_oracle alloc/sim_graph alloc/sim_doze",
    "alloc/size alloc/range alloc/table alloc/index alloc/spans",
    "alloc/captures alloc/fence alloc/pages alloc/segments alloc/import",
    "alloc/stream alloc/uses alloc/heap alloc/pinned",
    "alloc/pool alloc/life alloc/heaps alloc/capture alloc/ladder alloc/report alloc/policy alloc/stats alloc/snapshot alloc/record"
    " alloc/watch alloc/place",
    "alloc/weir.c",
    "queue/weir_queue.h queue/weir_copy.h queue/line queue/timeline queue/crew queue/move queue/gather queue/pieces queue/slots queue/copy queue/fetch"
    " queue/engine queue/slabs queue/locate queue/stage queue/transfer queue/ways queue/peers queue/gates queue/bell queue/queue"
    " queue/order queue/produce queue/borrow queue/consume queue/consumers queue/ends queue/staging queue/queue_stats queue/weir_diagnose.h queue/diagnose queue/weir_ring.h queue/ring queue/weir_graph.h queue/seat queue/seat_life",
    "interpose/weir_shared.h interpose/shared interpose/notes interpose/ledger",
    "interpose/pjrt/weir_pjrt.h interpose/pjrt/abi interpose/pjrt/hook interpose/pjrt/calls interpose/pjrt/sites"
    " interpose/pjrt/arrays interpose/pjrt/deliver interpose/pjrt/from_host interpose/pjrt/across interpose/pjrt/to_host"
    " interpose/pjrt/holds interpose/pjrt/donation interpose/pjrt/workers interpose/pjrt/status interpose/pjrt/install",
    "interpose/torch/weir_torch interpose/torch/graphs interpose/torch/failure interpose/torch/native interpose/cupy/weir_cupy interpose/onnxruntime/weir_ort",
    "interpose/python/lease interpose/python/lease_count interpose/python/dlpack interpose/python/batch interpose/python/cupy_alloc",
]


def layer_of(path):
    for names in (path, path.rsplit(".", 1)[0]):
        for number, layer in enumerate(LAYERS):
            if names in layer.split():
                return number
    return None


def includes_of(file):
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', file.read_text(), re.MULTILINE)


def find_header(file, name):
    """As the build does: beside the file, then in the folders of the public headers."""
    for folder in (file.parent, ROOT / "alloc", ROOT / "queue", ROOT / "interpose", ROOT / "interpose" / "cupy"):
        if (folder / name).is_file():
            return (folder / name).relative_to(ROOT).as_posix()
    return None


def check(file):
    path = file.relative_to(ROOT).as_posix()
    own = layer_of(path)
    if own is None:
        return [f"{path}: has no layer in tests/check_layers.py"]
    broken = []
    for name in includes_of(file):
        header = find_header(file, name)
        layer = layer_of(header) if header else None
        if layer is None:
            broken.append(f"{path}: includes {name}, which is in no layer")
        elif layer > own:
            broken.append(f"{path}: includes {header}, of a higher layer")
    return broken


def main():
    files = [f for folder in ("alloc", "queue", "interpose") for f in sorted((ROOT / folder).rglob("*.[ch]"))]
    broken = [line for file in files for line in check(file)]
    print("\n".join(broken) if broken else f"{len(files)} files keep to their layers")
    return 1 if broken or not files else 0


sys.exit(main())
