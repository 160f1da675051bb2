# SPDX-License-Identifier: Apache-2.0
"""Training loops fed with numpy batches, one ahead: a transformer and a ResNet, JAX as it is and with weir's hook.

    python3 bench/jax/train.py [--results FILE] [--steps N] [--small]

    jax.train_step_ms:<model>   a step, the median of rounds of N steps
    jax.train_step_ratio        hooked / plain, the worse of the two models

A process for each way. While a step runs, the batch of the next is put on the device; then the loss of the step
before is awaited, as a program does that prints it. --small, for trying it out: models of toy size.
JAX_PLATFORMS=cpu tries it without a GPU, and without the hook.
"""
import argparse
import itertools
import math
import statistics
import sys
import time

import common

ROUNDS = 5
RATE, MOMENTUM = 1e-3, 0.9


class Transformer:
    """A decoder that guesses the next token."""

    def __init__(self, jax, small):
        self.jax = jax
        self.batch, self.length, self.tokens = (2, 16, 64) if small else (32, 512, 8192)
        self.layers, self.width, self.heads = (1, 32, 2) if small else (8, 768, 12)

    def make_batch(self, np, draw):
        return draw.integers(0, self.tokens, (self.batch, self.length + 1), np.int32)

    def initial(self, key):
        random, n, d = self.jax.random, self.layers, self.width
        shapes = {"embed": (self.tokens, d), "place": (self.length, d), "qkv": (n, d, 3 * d), "out": (n, d, d),
                  "up": (n, d, 4 * d), "down": (n, 4 * d, d)}
        keys = random.split(key, len(shapes))
        return {name: random.normal(k, shape) * shape[-2] ** -0.5 for k, (name, shape) in zip(keys, shapes.items())}

    def loss(self, parameters, batch):
        jax, jnp = self.jax, self.jax.numpy
        parameters = jax.tree.map(lambda p: p.astype(jnp.bfloat16), parameters)
        seen, wanted = batch[:, :-1], batch[:, 1:]

        def normalize(x):
            return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-5)

        def layer(x, w):
            b, t, d = x.shape
            q, k, v = jnp.moveaxis((normalize(x) @ w["qkv"]).reshape(b, t, 3, self.heads, -1), 2, 0)
            scores = jnp.einsum("bthd,bshd->bhts", q, k) * (d // self.heads) ** -0.5
            scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9)
            weights = jax.nn.softmax(scores.astype(jnp.float32)).astype(x.dtype)
            x += jnp.einsum("bhts,bshd->bthd", weights, v).reshape(b, t, d) @ w["out"]
            return x + jax.nn.gelu(normalize(x) @ w["up"]) @ w["down"], None

        embed = parameters.pop("embed")
        x = embed[seen] + parameters.pop("place")
        x, _ = jax.lax.scan(layer, x, parameters)
        logits = jax.nn.log_softmax((normalize(x) @ embed.T).astype(jnp.float32))
        return -jnp.mean(jnp.take_along_axis(logits, wanted[..., None], -1))


class ResNet:
    """Eighteen layers, for pictures as bytes. A batch is normalized by its own mean and deviation."""

    CLASSES = 1000

    def __init__(self, jax, small):
        self.jax = jax
        self.batch, self.side, base = (2, 32, 8) if small else (256, 224, 64)
        self.widths = [base << stage for stage in range(4)]

    def make_batch(self, np, draw):
        return (draw.integers(0, 255, (self.batch, self.side, self.side, 3), np.uint8),
                draw.integers(0, self.CLASSES, self.batch, np.int32))

    def blocks(self):
        """(name, channels in, channels out, stride)"""
        last = self.widths[0]
        for stage, width in enumerate(self.widths):
            for part in range(2):
                yield f"block{stage}{part}", last, width, 2 if stage and not part else 1
                last = width

    def initial(self, key):
        random = self.jax.random
        shapes = {"stem": (7, 7, 3, self.widths[0]), "head": (self.widths[-1], self.CLASSES)}
        for name, before, after, _ in self.blocks():
            shapes |= {name + "a": (3, 3, before, after), name + "b": (3, 3, after, after)}
            if before != after:
                shapes[name + "skip"] = (1, 1, before, after)
        keys = random.split(key, len(shapes))
        return {name: random.normal(k, shape) * (2 / math.prod(shape[:-1])) ** 0.5
                for k, (name, shape) in zip(keys, shapes.items())}

    def loss(self, parameters, batch):
        jax, jnp, lax = self.jax, self.jax.numpy, self.jax.lax
        pictures, classes = batch

        def convolve(x, name, stride):
            kernel = parameters[name].astype(jnp.bfloat16)
            x = lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
            wide = x.astype(jnp.float32)
            centred = wide - jnp.mean(wide, (0, 1, 2))
            return (centred * lax.rsqrt(jnp.mean(centred**2, (0, 1, 2)) + 1e-5)).astype(x.dtype)

        x = jax.nn.relu(convolve(pictures.astype(jnp.bfloat16) / 255, "stem", 2))
        x = lax.reduce_window(x, x.dtype.type(-math.inf), lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
        for name, before, after, stride in self.blocks():
            y = convolve(jax.nn.relu(convolve(x, name + "a", stride)), name + "b", 1)
            x = jax.nn.relu(y + (x if before == after else convolve(x, name + "skip", stride)))
        logits = jax.nn.log_softmax(jnp.mean(x.astype(jnp.float32), (1, 2)) @ parameters["head"])
        return -jnp.mean(jnp.take_along_axis(logits, classes[:, None], -1))


MODELS = {"transformer": Transformer, "resnet": ResNet}


def make_step(jax, model):
    def step(state, batch):
        parameters, speed = state
        loss, slope = jax.value_and_grad(model.loss)(parameters, batch)
        speed = jax.tree.map(lambda v, g: MOMENTUM * v + g, speed, slope)
        return (jax.tree.map(lambda p, v: p - RATE * v, parameters, speed), speed), loss

    return jax.jit(step, donate_argnums=0)


def train(jax, step, state, batches, n):
    """(state, milliseconds a step)"""
    began, ahead, before = time.perf_counter(), jax.device_put(next(batches)), None
    for _ in range(n):
        state, loss = step(state, ahead)
        ahead = jax.device_put(next(batches))
        jax.block_until_ready(before)
        before = loss
    jax.block_until_ready(state)
    return state, (time.perf_counter() - began) / n * 1e3


def measure(jax, np, model, n):
    draw = np.random.default_rng(0)
    batches = itertools.cycle([model.make_batch(np, draw) for _ in range(4)])
    parameters = jax.jit(model.initial)(jax.random.key(0))
    state, step = (parameters, jax.tree.map(jax.numpy.zeros_like, parameters)), make_step(jax, model)
    times = []
    for _ in range(ROUNDS + 1):  # the first one compiles
        state, ms = train(jax, step, state, batches, n)
        times.append(ms)
    return statistics.median(times[1:])


def run_mode(o):
    hooked = o.mode == "hook" and common.hook()
    import jax
    import numpy as np
    steps = {name: measure(jax, np, model(jax, o.small), o.steps) for name, model in MODELS.items()}
    common.report({"device": common.device_name(), "served": common.served() if hooked else None, "step_ms": steps})


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mode", choices=("plain", "hook"), help="this one alone, in this process, as a line of JSON")
    p.add_argument("--results", help="file to append the results to, a JSON object a line")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--small", action="store_true")
    o = p.parse_args()
    if o.mode:
        return run_mode(o)
    common.skip_where_missing()
    sizes = [f"--steps={o.steps}"] + ["--small"] * o.small
    modes = {"plain": "JAX"} if common.ON_CPU else {"plain": "JAX", "hook": "weir"}
    ran = {mode: common.run_child(__file__, mode, sizes) for mode in modes}
    results = common.Results(o.results, " ".join(["jax/train", *sizes]), ran["plain"]["device"])
    for mode, subject in modes.items():
        print(f"{mode}: transfers served, forwarded: {ran[mode]['served']}")
        for model, ms in ran[mode]["step_ms"].items():
            results.add(f"jax.train_step_ms:{model}", subject, ms, "ms")
    if "hook" in ran:
        steps = {mode: ran[mode]["step_ms"] for mode in modes}
        results.add("jax.train_step_ratio", "weir", max(steps["hook"][m] / steps["plain"][m] for m in MODELS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
