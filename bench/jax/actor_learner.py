# SPDX-License-Identifier: Apache-2.0
"""An actor and a learner: one thread plays on the first GPU, another trains on the last one with what was played.

    python3 bench/jax/actor_learner.py [--results FILE] [--timeline STEM] [sizes: see --help]

The actor sends each observation to its GPU, reads the actions back, and hands over a rollout of some hundred steps by
a queue of one. The learner moves the many small numpy arrays that this is to its own GPU, trains, and sends the
parameters back. Run in three processes: as it is ("plain"), with weir's hook in JAX ("hook"), and hooked with
weir.jax.transfer in place of the learner's device_put ("transfer"). Each plays alone first, then with the learner.

    jax.actor_p99_ratio[_transfer] time of the actor's steps while the learner fetches, 99th percentile / the same alone
    jax.actor_rate_ratio           steps a second with the learner / alone
    jax.actor_fetch_ms             one rollout to the learner's GPU, median

With one GPU both share it, which is said. --timeline writes trace events of each process to STEM_<mode>.json.
JAX_PLATFORMS=cpu tries the program out without a GPU, and without the hook.
"""
import argparse
import functools
import json
import pathlib
import queue
import sys
import threading
import time

import common

ACTIONS, STACK, SIDE = 6, 4, 84
SLICE = 32  # arrays that one call stacks
RATE, DISCOUNT = 1e-4, 0.99


class Environments:
    """Games that run in step: each shows random pictures, and rewards the action that belongs to the last one."""

    def __init__(self, np, n):
        draw = np.random.default_rng(0)
        self._np, self._step = np, 0
        self._pictures = draw.integers(0, 255, (64, n, 1, SIDE, SIDE), np.uint8)
        self._answers = draw.integers(0, ACTIONS, (64, n), np.int32)
        self.seen = np.zeros((n, STACK, SIDE, SIDE), np.uint8)

    def step(self, actions):
        """The reward. `seen` is an array of its own each time."""
        reward = (actions == self._answers[self._step % 64]).astype(self._np.float32)
        self._step += 1
        self.seen = self._np.concatenate([self.seen[:, 1:], self._pictures[self._step % 64]], axis=1)
        return reward

# ---- the network -------------------------------------------------------------------------------------------------------
LAYERS = [(32, STACK, 8, 4), (64, 32, 4, 2), (64, 64, 3, 1)]  # convolutions: out, in, side, stride
FLAT = 64 * 7 * 7


def make_network(jax):
    """(parameters, act, stack, learn): functions that are compiled at their first call."""
    jnp, lax = jax.numpy, jax.lax

    def scaled(key, shape, fan_in):
        return jax.random.normal(key, shape) * fan_in ** -0.5

    def initial(seed):
        keys = jax.random.split(jax.random.key(seed), 5)
        return {"conv": [scaled(k, (o, i, s, s), i * s * s) for k, (o, i, s, _) in zip(keys, LAYERS)],
                "dense": scaled(keys[3], (FLAT, 512), FLAT), "head": scaled(keys[4], (512, ACTIONS + 1), 512)}

    def apply(parameters, seen):  # logits of the actions, and the value
        x = seen.astype(jnp.float32) / 255
        for kernel, (_, _, _, stride) in zip(parameters["conv"], LAYERS):
            x = jax.nn.relu(lax.conv_general_dilated(x, kernel, (stride, stride), "VALID"))
        x = jax.nn.relu(x.reshape(x.shape[0], FLAT) @ parameters["dense"]) @ parameters["head"]
        return x[:, :ACTIONS], x[:, ACTIONS]

    def act(parameters, key, seen):
        key, mine = jax.random.split(key)
        return jax.random.categorical(mine, apply(parameters, seen)[0]).astype(jnp.int32), key

    def loss(parameters, seen, actions, returns):
        logits, values = apply(parameters, seen)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), actions[:, None], 1)[:, 0]
        advantage = returns - values
        return jnp.mean(advantage**2) - jnp.mean(lax.stop_gradient(advantage) * chosen)

    def learn(parameters, seen, actions, rewards):
        """One pass over a rollout, a part of its steps at a time."""
        discount = lambda later, reward: (reward + DISCOUNT * later,) * 2  # noqa: E731
        returns = lax.scan(discount, jnp.zeros_like(rewards[0]), rewards, reverse=True)[1]
        part = max(n for n in range(1, 49) if len(seen) % n == 0)
        batches = jax.tree.map(lambda x: x.reshape(-1, part * x.shape[1], *x.shape[2:]), (seen, actions, returns))

        def descend(parameters, batch):
            slope = jax.grad(loss)(parameters, *batch)
            return jax.tree.map(lambda p, g: p - RATE * g, parameters, slope), None

        return lax.scan(descend, parameters, batches)[0]

    stack_slice, join = jax.jit(lambda *arrays: jnp.stack(arrays)), jax.jit(lambda *parts: jnp.concatenate(parts))

    def stack(arrays):
        return join(*(stack_slice(*arrays[i:i + SLICE]) for i in range(0, len(arrays), SLICE)))

    return jax.jit(initial)(0), jax.jit(act), stack, jax.jit(learn)

# ---- the two threads ---------------------------------------------------------------------------------------------------


class Program:
    """`steps`, `fetches` and `updates` hold when each began and ended."""

    def __init__(self, jax, np, mode, n_environments, n_steps):
        self.jax, self.np, self.n_steps = jax, np, n_steps
        self.actor, self.learner = jax.devices()[0], jax.devices()[-1]
        self.environments = Environments(np, n_environments)
        parameters, self.act, self.stack, self.learn = make_network(jax)
        self.parameters = jax.device_put(parameters, self.learner)
        self.playing = jax.device_put(parameters, self.actor)  # what the actor uses, renewed by the learner
        self.key = jax.device_put(jax.random.key(1), self.actor)
        self.put = jax.device_put
        if mode == "transfer":
            import weir.jax
            self.put = weir.jax.transfer
        self.forget()

    def forget(self):
        self.steps, self.fetches, self.updates = [], [], []

    def play(self):
        """A rollout: lists of what was seen, done and earned, an array of each a step."""
        rollout, parameters = ([], [], []), self.playing
        for _ in range(self.n_steps):
            began = time.perf_counter()
            seen = self.environments.seen
            actions, self.key = self.act(parameters, self.key, self.jax.device_put(seen, self.actor))
            actions = self.np.asarray(actions)
            reward = self.environments.step(actions)
            self.steps.append((began, time.perf_counter()))
            for column, array in zip(rollout, (seen, actions, reward)):
                column.append(array)
        return rollout

    def train(self, rollout):
        began = time.perf_counter()
        fetched = self.jax.block_until_ready(self.put(rollout, self.learner))
        fetch_ended = time.perf_counter()
        self.parameters = self.learn(self.parameters, *map(self.stack, fetched))
        self.playing = self.jax.block_until_ready(self.jax.device_put(self.parameters, self.actor))
        self.fetches.append((began, fetch_ended))
        self.updates.append((fetch_ended, time.perf_counter()))

    def play_with_learner(self, n_rollouts):
        rollouts, failed = queue.Queue(1), []

        def learn():
            try:
                while (rollout := rollouts.get()) is not None:
                    self.train(rollout)
            except BaseException as error:  # noqa: BLE001 - raised below
                failed.append(error)
                while rollouts.get() is not None: pass  # the actor must not wait for ever

        thread = threading.Thread(target=learn)
        thread.start()
        try:
            began = time.perf_counter()
            for _ in range(n_rollouts):
                rollouts.put(self.play())
            took = time.perf_counter() - began
        finally:
            rollouts.put(None)  # the learner must not wait for ever, either
            thread.join()
        for error in failed:
            raise error
        return took


def percentile_ms(spans, share):
    return 1e3 * sorted(end - began for began, end in spans)[int(share * (len(spans) - 1))]


def write_timeline(path, program):
    """Trace events: thread 1 the actor, 2 the learner."""
    spans = [(1, "step", program.steps), (2, "fetch", program.fetches), (2, "update", program.updates)]
    events = [{"ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": {"name": name}}
              for tid, name in ((1, "actor"), (2, "learner"))]
    events += [{"ph": "X", "pid": 1, "tid": tid, "name": name, "ts": began * 1e6, "dur": (end - began) * 1e6}
               for tid, name, times in spans for began, end in times]
    pathlib.Path(path).write_text(json.dumps({"traceEvents": events}))


def run_mode(o):
    hooked = o.mode != "plain" and common.hook()
    import jax
    import numpy as np
    program = Program(jax, np, o.mode, o.environments, o.steps)
    for _ in range(2):
        program.train(program.play())  # compiles
    program.forget()
    began = time.perf_counter()
    for _ in range(o.rollouts // 3 or 1):
        program.play()
    alone, rate_alone = program.steps, len(program.steps) / (time.perf_counter() - began)
    program.forget()
    rate = o.rollouts * o.steps / program.play_with_learner(o.rollouts)
    beside = [s for s in program.steps if any(s[0] < end and s[1] > began for began, end in program.fetches)]
    if o.timeline:
        write_timeline(f"{o.timeline}_{o.mode}.json", program)
    median_ms = functools.partial(percentile_ms, share=0.5)
    common.report({
        "device": common.device_name(), "gpus": len(jax.devices()), "served": common.served() if hooked else None,
        "step_ms": median_ms(alone), "p99_alone_ms": percentile_ms(alone, 0.99), "steps_beside": len(beside),
        "p99_fetching_ms": percentile_ms(beside, 0.99), "rate_ratio": rate / rate_alone,
        "fetch_ms": median_ms(program.fetches), "update_ms": median_ms(program.updates)})

# ---- all of them -------------------------------------------------------------------------------------------------------
SIZES = {"environments": 20, "steps": 384, "rollouts": 30}
SUBJECTS = {"plain": "JAX", "hook": "weir", "transfer": "weir.jax.transfer"}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mode", choices=SUBJECTS, help="this one alone, in this process, as a line of JSON")
    p.add_argument("--results", help="file to append the results to, a JSON object a line")
    p.add_argument("--timeline", metavar="STEM", help="write STEM_<mode>.json")
    for name, default in SIZES.items():
        p.add_argument(f"--{name}", type=int, default=default)
    o = p.parse_args()
    if o.mode:
        return run_mode(o)
    common.skip_where_missing()
    sizes = [f"--{name}={getattr(o, name)}" for name in SIZES]
    more = sizes + ([f"--timeline={o.timeline}"] if o.timeline else [])
    modes = [mode for mode in SUBJECTS if mode != "hook" or not common.ON_CPU]
    ran = {mode: common.run_child(__file__, mode, more) for mode in modes}
    print("\n".join(f"{mode}: {json.dumps(r)}" for mode, r in ran.items()))
    if ran["plain"]["gpus"] == 1:
        print("ONE GPU: actor and learner share it, and the learner's kernels slow the actor's steps")
    results = common.Results(o.results, " ".join(["jax/actor_learner", *sizes]), ran["plain"]["device"])
    for mode, r in ran.items():
        ratio = r["p99_fetching_ms"] / r["p99_alone_ms"]
        if mode != "transfer":
            results.add("jax.actor_p99_ratio", SUBJECTS[mode], ratio)
        if mode != "hook":
            results.add("jax.actor_p99_ratio_transfer", "weir" if mode == "transfer" else "JAX", ratio)
        results.add("jax.actor_rate_ratio", SUBJECTS[mode], r["rate_ratio"])
        results.add("jax.actor_fetch_ms", SUBJECTS[mode], r["fetch_ms"], "ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
