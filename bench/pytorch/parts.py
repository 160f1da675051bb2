# SPDX-License-Identifier: Apache-2.0
"""What bench/pytorch/train.py measures, a function each: (place, tiny) -> figures by name."""
import contextlib
import itertools
import queue
import statistics
import sys
import threading
import time

import models
import torch
from torch.nn import functional


class Place:
    """Where a run computes, and what it asks of there. On a processor there are no streams, and no memory is counted."""

    def __init__(self, cpu):
        self.device, self.is_gpu = torch.device("cpu" if cpu else "cuda"), not cpu

    def wait(self):
        if self.is_gpu:
            torch.cuda.synchronize()

    def autocast(self):
        return torch.autocast(self.device.type, torch.bfloat16)

    def on_new_stream(self):
        """The stream, and the context in which work goes there."""
        stream = torch.cuda.Stream() if self.is_gpu else None
        return stream, torch.cuda.stream(stream) if self.is_gpu else contextlib.nullcontext()

    def pin(self, tensor):
        return tensor.pin_memory() if self.is_gpu else tensor

    def peak_reserved(self):
        return torch.cuda.max_memory_reserved() if self.is_gpu else 0


class Clock:
    """Times of steps, each until the device is done with it. The first of them warm up."""

    def __init__(self, place, warm_up):
        self.place, self.warm_up, self.times = place, warm_up, []

    @contextlib.contextmanager
    def step(self):
        started = time.perf_counter()
        yield
        self.place.wait()
        self.times.append(time.perf_counter() - started)

    def seconds(self):
        return statistics.median(self.times[self.warm_up:])


def train_step(place, model, optimizer, x, y):
    with place.autocast():
        out = model(x)
        out = out[0] if isinstance(out, tuple) else out
        loss = functional.cross_entropy(out.flatten(0, -2).float(), y.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss


def report(place, clock, loss):
    value = float(loss.detach())
    if value != value or value in (float("inf"), float("-inf")):
        sys.exit(f"the loss became {value}")
    return {"step_s": clock.seconds(), "peak_reserved": place.peak_reserved(), "loss": value}


def images(place, n, side):
    return torch.randn(n, 3, side, side, device=place.device), torch.randint(0, 10, (n,), device=place.device)


def resnet(place, tiny):
    batch, side, epochs, steps = (4, 32, 2, 2) if tiny else (128, 224, 4, 25)
    model = (models.resnet((1, 1, 1, 1), 8, 10) if tiny else models.resnet()).to(place.device)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
    clock = Clock(place, 2 if tiny else 10)
    for _ in range(epochs):
        model.train()
        for step in range(steps):
            x, y = images(place, batch if step < steps - 1 else batch // 2 + 1, side)
            with clock.step():
                loss = train_step(place, model, optimizer, x, y)
        model.eval()
        with torch.no_grad(), place.autocast():
            model(images(place, 2 * batch, side)[0])
    return report(place, clock, loss)


def gpt(place, tiny):
    batch, longest, steps = (2, 16, 4) if tiny else (8, 1024, 90)
    model = (models.Gpt(2, 32, 2, 64, longest) if tiny else models.Gpt()).to(place.device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    clock = Clock(place, 2 if tiny else 10)
    lengths = torch.randint(longest // 8, longest + 1, (steps,), generator=torch.Generator().manual_seed(7)).tolist()
    for length in lengths:
        tokens = torch.randint(0, model.vocabulary, (batch, length), device=place.device)
        with clock.step():
            loss = train_step(place, model, optimizer, tokens[:, :-1], tokens[:, 1:])
    return report(place, clock, loss)


def streams(place, tiny):
    batch, side, epochs, steps = (2, 64, 2, 2) if tiny else (256, 224, 24, 6)
    model = models.alexnet(10, 2 if tiny else 64).to(place.device)
    host = [(place.pin(x.cpu()), place.pin(y.cpu())) for x, y in (images(place, batch, side) for _ in range(steps))]
    model(host[0][0].to(place.device))  # it finds its sizes
    optimizer = torch.optim.SGD(model.parameters(), 0.001)
    clock = Clock(place, 2 if tiny else 4 * steps)
    for epoch in range(epochs):
        stream, context = place.on_new_stream()
        rows = batch - epoch % 4 * batch // 8  # as epochs with other crops, or buckets, have

        def fetch(pair):
            with context:
                return [part[:rows].to(place.device, non_blocking=True) for part in pair]
        ahead = fetch(host[0])
        for following in host[1:] + [None]:
            with clock.step():
                if stream is not None:
                    torch.cuda.current_stream().wait_stream(stream)
                    for part in ahead:
                        part.record_stream(torch.cuda.current_stream())
                x, y = ahead
                ahead = fetch(following) if following is not None else None
                loss = train_step(place, model, optimizer, x, y)
    return report(place, clock, loss)


@torch.no_grad()
def decode(place, tiny):
    tokens, longest = (6, 8) if tiny else (384, 400)
    model = (models.Gpt(2, 32, 2, 64, longest) if tiny else models.Gpt(6, 512, 8, 32000, longest)).to(place.device)
    rates = []
    for _ in range(2 if tiny else 6):
        token, pasts = torch.zeros(1, 1, dtype=torch.long, device=place.device), None
        place.wait()
        started = time.perf_counter()
        for at in range(tokens):
            with place.autocast():
                logits, pasts = model(token, pasts, at)
            token = logits[:, -1:].argmax(-1)
        place.wait()
        rates.append(tokens / (time.perf_counter() - started))
    return {"tokens_per_s": statistics.median(rates[1:])}


# ---- pageable batches


def by_cuda(place, batches):
    for x, y in batches:
        yield x.to(place.device), y.to(place.device)


def by_pinning_thread(place, batches):
    pinned = queue.Queue(2)

    def fill():
        for x, y in batches:
            pinned.put((place.pin(x), place.pin(y)))
        pinned.put(None)
    threading.Thread(target=fill, daemon=True).start()
    while (pair := pinned.get()) is not None:
        yield [part.to(place.device, non_blocking=True) for part in pair]


class Items(torch.utils.data.Dataset):
    def __init__(self, batches):
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, i):
        return self.batches[i]


def by_data_loader(place, batches):
    loader = torch.utils.data.DataLoader(Items(batches), batch_size=None, num_workers=0 if not place.is_gpu else 2,
                                         pin_memory=place.is_gpu)
    for pair in loader:
        yield [part.to(place.device, non_blocking=True) for part in pair]


def by_weir(place, batches):
    import weir.torch
    with weir.torch.prefetch(batches, place.device, depth=2) as fetched:
        yield from fetched


def pageable(place, tiny):
    batch, side, steps, warm_up = (2, 64, 4, 1) if tiny else (1024, 224, 24, 8)
    model = models.alexnet(10, 2 if tiny else 64).to(place.device)
    kept = [(torch.randn(batch, 3, side, side), torch.randint(0, 10, (batch,))) for _ in range(2 if tiny else 4)]
    batches = list(itertools.islice(itertools.cycle(kept), steps))
    model(kept[0][0][:2].to(place.device))  # it finds its sizes
    optimizer = torch.optim.SGD(model.parameters(), 0.001)

    def seconds(source):
        """A step, of those after the warm-up: the whole time over their number, since steps overlap with copies."""
        done = 0
        for x, y in source:
            train_step(place, model, optimizer, x, y)
            done += 1
            if done in (warm_up, steps):
                place.wait()
            if done == warm_up:
                started = time.perf_counter()
        return (time.perf_counter() - started) / (steps - warm_up)
    resident = [part.to(place.device) for part in kept[0]]
    compute = seconds(iter([resident] * steps))
    ways = {".cuda()": by_cuda, "a pinning thread": by_pinning_thread, "DataLoader, pinned": by_data_loader}
    if place.is_gpu:
        ways["weir"] = by_weir
    return {"compute_s": compute, "share": {name: compute / seconds(way(place, batches)) for name, way in ways.items()}}


PARTS = {"resnet": resnet, "gpt": gpt, "streams": streams, "decode": decode, "pageable": pageable}
