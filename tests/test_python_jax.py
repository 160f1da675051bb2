# SPDX-License-Identifier: Apache-2.0
"""weir.jax: switching the hook on, against a plug-in and a hook that note what they are asked; prefetch and transfer with
JAX on the CPU, where it is installed, and the simulated device.

    WEIR_LIBRARY_PATH=BUILD python3 tests/test_python_jax.py [CC]
"""
import gc
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import warnings
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("WEIR_DEVICE", "sim")
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
sys.path.insert(0, str(ROOT / "interpose" / "python"))

import weir  # noqa: E402
import weir.jax  # noqa: E402
from weir import _lib  # noqa: E402

try:
    import jax
    import numpy
except ImportError:
    jax = None
COMPILER = "cc"

PLUGIN = "static int table; const void *GetPjrtApi(void) { return &table; }\n"
HOOK = """
#include <stdio.h>
#include <stdlib.h>
static const void *hooked;
static int installs;
int weir_pjrt_install(const void *api)
{
    if (getenv("REFUSE")) return 1;
    installs += !hooked;
    hooked = api;
    return 0;
}
int weir_pjrt_uninstall(void) { hooked = NULL; return 0; }
const char *weir_pjrt_message(void) { return getenv("REFUSE") ? "a table of another shape" : "hooked"; }
size_t weir_pjrt_status(char *json, size_t bytes)
{
    return (size_t)snprintf(json, bytes, "{\\"installed\\": %s, \\"installs\\": %d}", hooked ? "true" : "false", installs);
}
"""


class TheHook(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        for name in ("libweir.so.0", "libweir_python.so"):
            (cls.folder / name).symlink_to(_lib.folder().resolve() / name)
        cls.build(HOOK, cls.folder / "libweir_pjrt.so")
        plugin = cls.folder / "site" / "jax_plugins" / "xla_cuda13"
        plugin.mkdir(parents=True)
        (plugin / "__init__.py").write_text("raise SystemExit('the plug-in was imported')")
        cls.build(PLUGIN, plugin / "xla_cuda_plugin.so")

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def build(cls, source, path):
        command = [COMPILER, "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
        subprocess.run(command, input=source, text=True, check=True)

    def run_python(self, *arguments, site="site", **variables):
        environment = dict(os.environ, WEIR_LIBRARY_PATH=str(self.folder), **variables)
        environment["PYTHONPATH"] = f"{ROOT / 'interpose' / 'python'}:{self.folder / site}"
        return subprocess.run(
            [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=60, check=True
        )

    def test_install_is_idempotent_and_imports_neither_jax_nor_the_plugin(self):
        code = (
            "import sys, json, weir.jax as w\n"
            "done = [w.status()['installed'], w.install(), w.install()]\n"
            "print(json.dumps([done, w.status(), 'jax' in sys.modules]))\n"
            "w.uninstall(); assert not w.status()['installed']\n"
            "assert w.install() and w.status()['installs'] == 2"
        )
        done, status, imported = json.loads(self.run_python("-c", code).stdout)
        self.assertEqual(done, [False, True, True])
        self.assertEqual((status["installed"], status["installs"], status["message"]), (True, 1, "hooked"))
        self.assertFalse(imported)

    def test_a_hook_that_declines_is_a_warning_and_a_reason(self):
        code = "import weir.jax as w; print(w.install(), w.status()['message'])"
        out = self.run_python("-c", code, REFUSE="1")
        self.assertEqual(out.stdout.strip(), "False a table of another shape")
        self.assertIn("RuntimeWarning: weir leaves JAX as it is: a table of another shape", out.stderr)

    def test_without_a_plugin_it_says_which_it_looked_for(self):
        code = "import weir.jax as w; print(w.install(), w.status()['message'])"
        out = self.run_python("-S", "-c", code, site="nowhere")  # -S: none that this machine may have
        self.assertIn("False no CUDA plug-in of JAX is installed (jax_plugins.xla_cuda13", out.stdout)

    def test_the_entry_point_follows_WEIR_JAX(self):
        code = "import weir._jax_plugin as p; p.initialize(); import weir.jax; print(weir.jax.status()['installed'])"
        for value, installed in (("1", "True"), ("0", "False"), ("", "False")):
            self.assertEqual(self.run_python("-c", code, WEIR_JAX=value).stdout.strip(), installed)
        declared = (ROOT / "interpose" / "python" / "pyproject.toml").read_text()
        self.assertIn('[project.entry-points.jax_plugins]\nweir = "weir._jax_plugin"', declared)

    def test_python_m_weir_runs_a_script_or_module_hooked(self):
        script = self.folder / "program.py"
        script.write_text("import sys, weir.jax; print(__name__, sys.argv[1:], weir.jax.status()['installed'])")
        expected = "__main__ ['a', '-b'] True"
        self.assertEqual(self.run_python("-m", "weir", str(script), "a", "-b").stdout.strip(), expected)
        (self.folder / "site" / "program2.py").write_text(script.read_text())
        self.assertEqual(self.run_python("-m", "weir", "-m", "program2", "a", "-b").stdout.strip(), expected)


@unittest.skipUnless(jax, "JAX is not installed")
class WithJax(unittest.TestCase):
    def tearDown(self):
        gc.collect()
        self.assertEqual(weir.pool().stats()["live_bytes"], 0)

    def batches(self, n, fail=None):
        """From one buffer, overwritten for each."""
        buffer = numpy.zeros((8, 8), "float32")
        for i in range(n):
            buffer[:] = i
            yield {"x": buffer, "n": numpy.arange(i + 1), "scalar": 1.5, "flags": numpy.ones(3, bool)}
        if fail:
            raise fail

    def check(self, batch, i):
        self.assertTrue((numpy.asarray(batch["x"]) == i).all())
        self.assertEqual((batch["n"].shape, str(batch["n"].dtype)), ((i + 1,), "int32"))  # 64 bits are off
        self.assertEqual(float(batch["scalar"]), 1.5)
        self.assertEqual(str(batch["flags"].dtype), "bool")

    def test_batches_come_in_order_by_the_queue_and_the_sources_exception_last(self):
        seen = 0
        with weir.jax.prefetch(self.batches(9, KeyError("over"))) as batches:
            with self.assertRaisesRegex(KeyError, "over"):
                for batch in batches:
                    self.check(batch, seen)
                    seen += 1
                    pushed = batches._queue.stats()["items_pushed"]
            with self.assertRaises(StopIteration):
                next(batches)
        self.assertEqual((seen, pushed), (9, 9))

    def test_the_source_is_depth_ahead_and_no_more(self):
        taken = []

        def source():
            for i in range(10):
                taken.append(i)
                yield numpy.full(4, i)

        with weir.jax.prefetch(source(), depth=3) as batches:
            self.assertEqual(taken, [])
            next(batches)
            self.assertEqual(taken, [0, 1, 2, 3])

    def test_batches_that_the_program_keeps_do_not_stop_it(self):
        kept = list(weir.jax.prefetch((numpy.full(100, i) for i in range(20)), depth=2))
        self.assertEqual([int(k[0]) for k in kept], list(range(20)))
        self.assertTrue(all((numpy.asarray(k) == i).all() for i, k in enumerate(kept)))

    def test_what_jax_computes_with_holds_its_slot_and_the_next_batch_waits_for_it(self):
        """The host runs ahead of the computation, and the source overwrites its buffer all the while."""
        w = jax.numpy.ones((300, 300))
        step = jax.jit(lambda w, x: (w @ w / 300, (x == x[0, 0]).all(), x[0, 0]))
        results = []
        with weir.jax.prefetch(self.batches(60), depth=2) as batches:
            for batch in batches:
                w, *same = step(w, batch["x"])
                results.append(same)
                pushed, peak = (batches._queue.stats()[name] for name in ("items_pushed", "peak_device_bytes"))
        self.assertTrue(all(bool(same) and float(first) == i for i, (same, first) in enumerate(results)))
        self.assertEqual(pushed, 60)
        self.assertLessEqual(peak, batches._slots * 4096)

    def test_what_exceeds_max_bytes_goes_by_jax(self):
        sizes = [10, 5000, 20]
        got = [b.size for b in weir.jax.prefetch((numpy.ones(n, "u1") for n in sizes), depth=1, max_bytes=4096)]
        self.assertEqual(got, sizes)

    def test_depth_zero_is_refused(self):
        with self.assertRaises(ValueError):
            weir.jax.prefetch([], depth=0)

    def test_transfer_packs_numpy_leaves_and_forwards_the_rest(self):
        tree = {"many": [numpy.full((i % 5 + 1, 3), i, "float32") for i in range(200)], "one": 2, "none": numpy.ones((0, 3))}
        before = weir.pool().copier, weir.pool().stats()["allocs"]
        moved = weir.jax.transfer(tree)
        self.assertEqual(weir.pool().stats()["allocs"] - before[1], 1)
        for i, array in enumerate(moved["many"]):
            self.assertEqual(array.shape, (i % 5 + 1, 3))
            self.assertTrue((numpy.asarray(array) == i).all())
        self.assertEqual((int(moved["one"]), moved["none"].shape), (2, (0, 3)))

    def test_transfer_keeps_every_type_shape_and_order(self):
        import ml_dtypes

        draw = numpy.random.default_rng(0)
        types = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "float32", "complex64"]
        types += [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn]
        leaves = [draw.integers(0, 2, shape).astype(t) for t in types for shape in [(), (1,), (3, 5), (2, 1, 4)]]
        leaves += [leaves[2][:, ::2], leaves[2].T, numpy.broadcast_to(leaves[2][0], (4, 5)), numpy.arange(5)]
        for host, array in zip(leaves, weir.jax.transfer(leaves)):
            self.assertEqual((array.shape, array.dtype), (host.shape, jax.dtypes.canonicalize_dtype(host.dtype)))
            self.assertTrue((numpy.asarray(array) == host).all(), host.dtype)

    def test_transfer_refuses_what_jax_refuses(self):
        for leaf in (numpy.array(["2026"], "datetime64[Y]"), numpy.array([None]), numpy.array(["text"])):
            with self.assertRaises(TypeError):
                weir.jax.transfer([numpy.ones(3), leaf])

    def test_transfer_goes_to_the_device_that_was_named(self):
        device = jax.devices()[-1]
        moved = weir.jax.transfer([numpy.ones((2, i + 1)) for i in range(3)], device)
        self.assertEqual([array.devices() for array in moved], [{device}] * 3)

    def test_transfer_gives_others_the_gil_while_it_copies(self):
        """Some sixteen arrays at a time: each time a call of C gives it up."""
        from weir import _jax_batch

        sent, send = [], _jax_batch.Batch.send

        def note(*arguments):
            capsules = send(*arguments)
            sent.append(len(capsules))
            return capsules

        _jax_batch.Batch.send = note
        try:
            moved = weir.jax.transfer([numpy.full(3, i) for i in range(100)])
        finally:
            _jax_batch.Batch.send = send
        self.assertLessEqual(max(sent), _jax_batch._AT_A_TIME)
        self.assertEqual((sum(sent), [int(array[0]) for array in moved]), (100, list(range(100))))

    def test_transfer_with_a_jax_whose_import_takes_other_parameters_goes_by_from_dlpack(self):
        from weir import _jax_batch

        find, _jax_batch._find_direct = _jax_batch._find_direct, lambda: lambda capsule: None
        try:
            moved = weir.jax.transfer([numpy.full(3, i) for i in range(20)])
        finally:
            _jax_batch._find_direct = find
        self.assertEqual([int(array[0]) for array in moved], list(range(20)))

    def test_a_transfer_that_weir_fails_at_is_made_by_jax(self):
        from weir import _jax_batch

        def fail(*_):
            raise weir.DeviceError("planted")

        send, _jax_batch.Batch.send = _jax_batch.Batch.send, fail
        try:
            moved = weir.jax.transfer([numpy.full(3, i) for i in range(4)])
        finally:
            _jax_batch.Batch.send = send
        self.assertEqual([int(array[0]) for array in moved], list(range(4)))

    def test_a_transfer_that_is_interrupted_gives_its_memory_back_once_the_copies_have_ended(self):
        from weir import _jax_batch
        from weir.copier import Copier

        begun, waited = [], []

        def send_and_interrupt(*arguments):
            send(*arguments)
            begun.append(bytes(arguments[-1]))
            raise KeyboardInterrupt

        def wait(copier, ticket, *more):
            waited.append(bytes(ticket))
            wait_for(copier, ticket, *more)

        send, wait_for = _jax_batch.Batch.send, Copier.wait
        with mock.patch.object(_jax_batch.Batch, "send", send_and_interrupt), mock.patch.object(Copier, "wait", wait):
            with self.assertRaises(KeyboardInterrupt):
                weir.jax.transfer([numpy.full(1000, i) for i in range(4)])
        self.assertTrue(any(begun[0]), "a copy has a number")
        self.assertEqual(waited, begun)

    def test_install_after_the_backends_have_started_declines(self):
        jax.devices()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.assertFalse(weir.jax.install())
        self.assertIn("started its backends", weir.jax.status()["message"])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        COMPILER = sys.argv.pop(1)
    unittest.main()
