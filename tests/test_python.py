# SPDX-License-Identifier: Apache-2.0
"""The Python package on the simulated device: layouts, lifetimes, errors, items, DLPack, the GIL.

    WEIR_LIBRARY_PATH=BUILD python3 tests/test_python.py [CC]
"""
import array
import ctypes
import gc
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import weakref

ROOT = pathlib.Path(__file__).resolve().parent.parent
os.environ.setdefault("WEIR_DEVICE", "sim")
sys.path.insert(0, str(ROOT / "interpose" / "python"))

import weir  # noqa: E402
from weir import _abi, _streams  # noqa: E402
from weir._lib import python_lib  # noqa: E402

try:
    import numpy
except ImportError:
    numpy = None
needs_numpy = unittest.skipUnless(numpy, "numpy is not installed")
COMPILER = "cc"


def bytes_of(device_array):
    """The simulated device's memory is the host's."""
    device_array._lease.pool.copier.settle(device_array.address, device_array.nbytes, device_array.stream)
    return ctypes.string_at(device_array.address, device_array.nbytes)


class TheSharedPool(unittest.TestCase):
    def test_its_policy_can_be_chosen_until_it_is_opened(self):
        program = (
            "from weir import _adapters, pool\n"
            "lib = _adapters.lib\n"
            "assert lib.weir_shared_reuse(1) == 0\n"
            "pool(0)\n"
            "assert lib.weir_shared_reuse(2) != 0\n"
            "print(lib.weir_error_text().decode())\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PYTHONPATH": str(ROOT / "interpose" / "python")})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("device 0 is open", done.stdout)


class TheAllocatorOfCuPy(unittest.TestCase):
    """The function around CuPy's own; CuPy itself needs a GPU."""

    def setUp(self):
        from weir import _adapters
        self.failures = []
        current = ctypes.CFUNCTYPE(ctypes.c_ssize_t)(lambda: 0)
        malloc = python_lib.weir_cupy_guarded_malloc
        malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.free = _adapters.lib.weir_cupy_free
        self.free.restype, self.free.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
        self.malloc = lambda size: [malloc(current, size, 0)]
        self.alloc = _adapters.allocator(lambda size: self.malloc(size), self.fail)

    def fail(self, size):
        self.failures.append(size)
        raise MemoryError("none left")

    def test_it_gives_what_the_inner_one_gives_and_leaks_no_reference(self):
        block = self.alloc(1000)
        self.assertGreater(block[0], 0)
        self.assertEqual(sys.getrefcount(block), 2)
        self.assertEqual(self.alloc(0), [None])
        self.assertEqual(self.failures, [])
        self.free(None, block[0], 0)

    def test_an_alloc_that_fails_raises_what_the_handler_raises_and_the_next_one_works(self):
        with self.assertRaisesRegex(MemoryError, "none left"):
            self.alloc(1 << 50)
        self.assertEqual(self.failures, [1 << 50])
        block = self.alloc(1000)
        self.free(None, block[0], 0)

    def test_a_failure_outside_of_it_is_not_its_own(self):
        self.malloc(1 << 50)
        block = self.alloc(1000)
        self.assertEqual(self.failures, [])
        self.free(None, block[0], 0)

    def test_an_exception_of_the_inner_one_passes(self):
        self.malloc = lambda size: 1 // 0
        with self.assertRaises(ZeroDivisionError):
            self.alloc(1)

    def test_it_keeps_the_inner_one_as_long_as_itself(self):
        class Inner:
            def __call__(self, size):
                return size
        from weir import _adapters
        inner = Inner()
        kept, alloc = weakref.ref(inner), _adapters.allocator(inner, self.fail)
        del inner
        gc.collect()
        self.assertEqual(alloc(7), 7)
        del alloc
        gc.collect()
        self.assertIsNone(kept())


class TheAbi(unittest.TestCase):
    def test_structs_and_enumerators_are_those_of_the_headers(self):
        lines, expected = [], []
        for structs in _abi.STRUCTS.values():
            for c_name, struct in structs.items():
                lines.append(f'printf("%zu\\n", sizeof({c_name}));')
                expected.append((f"sizeof {c_name}", ctypes.sizeof(struct)))
                for field, _ in struct._fields_:
                    at = f"{c_name}, {field.rstrip('_')}"
                    lines.append(f'printf("%zu %zu\\n", offsetof({at}), sizeof((({c_name} *)0)->{field.rstrip("_")}));')
                    descriptor = getattr(struct, field)
                    expected.append((at, f"{descriptor.offset} {descriptor.size}"))
        for name, value in _abi.CONSTANTS.items():
            lines.append(f'printf("%d\\n", {name});')
            expected.append((name, value))
        includes = "".join(f'#include "{header}"\n' for header in _abi.STRUCTS)
        source = f"#include <stdio.h>\n{includes}int main(void)\n{{\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "layout")
            program.with_suffix(".c").write_text(source)
            where = [f"-I{ROOT / part}" for part in ("alloc", "queue", "interpose/python")]
            subprocess.run([COMPILER, *where, f"{program}.c", "-o", program], check=True)
            printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split("\n")
        for line, (what, value) in zip(printed, expected, strict=False):
            self.assertEqual(line, str(value), what)
        self.assertEqual(len(printed) - 1, len(expected))

    def test_counters_are_all_there(self):
        """A field that a header has and a struct here lacks would shorten it."""
        for struct in (_abi.Stats, _abi.QueueStats):
            self.assertEqual(ctypes.sizeof(struct), 8 * len(struct._fields_))

    def test_every_status_has_an_exception(self):
        header = (ROOT / "alloc" / "weir.h").read_text()
        names = [line.split("(")[1].split(",")[0] for line in header.splitlines() if line.startswith("    X(")]
        self.assertGreater(len(names), 15)
        known = set(weir.errors._BY_STATUS)
        self.assertEqual(known, {"WEIR_" + name for name in names} - {"WEIR_OK"})


class ThePackage(unittest.TestCase):
    def test_import_needs_no_gpu_and_brings_no_framework(self):
        code = (
            "import sys, weir; print(weir.__version__, [m for m in ('jax', 'torch', 'cupy', 'numpy') if m in sys.modules])"
        )
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "interpose" / "python"))
        environment.pop("WEIR_DEVICE")
        out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        self.assertEqual(out.stdout.split()[1], "[]")

    def test_without_a_driver_the_pool_says_so(self):
        code = "import weir\ntry: weir.pool()\nexcept weir.DeviceError as e: print(e.status)\nelse: print('a GPU')"
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "interpose" / "python"))
        environment.pop("WEIR_DEVICE")
        out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        self.assertIn(out.stdout.strip(), ("WEIR_NO_DRIVER", "WEIR_NO_DEVICE", "WEIR_DRIVER_ERROR", "a GPU"))

    def test_errors_are_also_what_python_calls_them(self):
        self.assertTrue(issubclass(weir.OutOfMemory, MemoryError))
        self.assertTrue(issubclass(weir.Timeout, TimeoutError))
        self.assertTrue(issubclass(weir.InvalidArgument, ValueError))
        for error in set(weir.errors._BY_STATUS.values()):
            self.assertTrue(issubclass(error, weir.WeirError))


class ThePool(unittest.TestCase):
    def setUp(self):
        self.pool = weir.Pool(limit_bytes=64 << 20)

    def tearDown(self):
        gc.collect()
        self.assertEqual(self.pool.stats()["live_bytes"], 0)
        deadline = time.monotonic() + 10
        while not self.pool.close():  # the simulated GPU has not passed all frees
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.001)
        self.assertTrue(self.pool.close())

    def test_a_block_is_freed_by_free_by_with_and_by_its_last_reference(self):
        block = self.pool.alloc(1000)
        self.assertEqual(block.address % 512, 0)
        self.assertEqual(self.pool.stats()["live_bytes"], 1024)
        block.free()
        block.free()
        self.assertEqual(self.pool.stats()["live_bytes"], 0)
        with self.pool.alloc(1000):
            self.assertEqual(self.pool.stats()["live_bytes"], 1024)
        self.assertEqual(self.pool.stats()["live_bytes"], 0)
        block = self.pool.alloc(1000)
        del block
        self.assertEqual(self.pool.stats()["live_bytes"], 0)

    def test_alignment_and_zero_bytes(self):
        with self.pool.alloc(1000, alignment=1 << 20) as block:
            self.assertEqual(block.address % (1 << 20), 0)
        with self.pool.alloc(0) as block:
            self.assertEqual(block.address, 0)
        with self.assertRaises(ValueError):
            self.pool.alloc(1000, alignment=3)

    def test_more_than_the_limit_is_a_MemoryError_with_numbers(self):
        with self.assertRaises(MemoryError) as caught:
            self.pool.alloc(65 << 20)
        self.assertIsInstance(caught.exception, weir.TooLarge)
        self.assertIn(str(65 << 20), str(caught.exception))
        with self.pool.alloc(40 << 20), self.assertRaises(weir.OutOfMemory):
            self.pool.alloc(40 << 20)

    def test_stats_snapshot_trim_and_limit_agree(self):
        with self.pool.alloc(1 << 20):
            stats = self.pool.stats()
            parts = sum(stats[part + "_bytes"] for part in ("live", "pending", "cached", "idle"))
            self.assertEqual(parts, stats["reserved_bytes"])
            self.assertEqual(self.pool.limit_bytes, 64 << 20)
            self.assertIn(str(stats["live_bytes"]), str(self.pool.snapshot()))
        deadline = time.monotonic() + 10
        while not self.pool.trim() and time.monotonic() < deadline:
            time.sleep(0.001)
        self.assertLess(self.pool.stats()["reserved_bytes"], stats["reserved_bytes"])

    def test_a_closed_pool_refuses_and_takes_frees(self):
        pool = weir.Pool(limit_bytes=64 << 20)
        block = pool.alloc(1000)
        self.assertFalse(pool.close())
        with self.assertRaises(weir.Closed):
            pool.alloc(1000)
        block.free()

    def test_a_per_thread_stream_is_refused_for_blocks(self):
        with self.assertRaises(ValueError):
            self.pool.alloc(1000, weir.PER_THREAD)

    @needs_numpy
    def test_a_view_is_shared_by_dlpack_and_outlives_its_block(self):
        block = self.pool.alloc(80)
        view = block.view((4, 5), "float32")
        shared = numpy.from_dlpack(view)
        shared[:] = 7
        self.assertTrue((view.numpy() == 7).all())
        block.free()
        self.assertEqual(self.pool.stats()["live_blocks"], 1)
        self.assertTrue((shared == 7).all())
        with self.assertRaises(BufferError):
            view.__dlpack__()
        del shared
        self.assertEqual(self.pool.stats()["live_blocks"], 0)
        with self.assertRaises(ValueError):
            self.pool.alloc(80).view((100,), "float32")

    @needs_numpy
    def test_pinned_memory_lives_as_long_as_any_array_on_it(self):
        a = weir.empty_pinned((3, 4), "float64", pool=self.pool)
        a[:] = 5
        self.assertEqual((a.shape, a.ctypes.data % 64), ((3, 4), 0))
        before = self.pool.stats()["pinned_live_bytes"]
        row = a[1]
        del a
        self.assertEqual(self.pool.stats()["pinned_live_bytes"], before)
        self.assertTrue((row == 5).all())
        del row
        self.assertLess(self.pool.stats()["pinned_live_bytes"], before)
        self.assertEqual(weir.empty_pinned((0, 4)).size, 0)
        with self.assertRaises(MemoryError):
            weir.empty_pinned(1 << 60, "u1", pool=self.pool)

    def test_one_pool_for_each_device_and_its_limit_comes_first(self):
        code = (
            "import weir\nweir.limit(0, 32 << 20)\nassert weir.pool() is weir.pool(0)\n"
            "assert weir.pool().limit_bytes == 32 << 20\n"
            "try: weir.limit(0, 1)\nexcept weir.WeirError: print('late')"
        )
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "interpose" / "python"))
        out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        self.assertEqual(out.stdout.strip(), "late")


class Streams(unittest.TestCase):
    def test_streams_of_all_kinds_have_a_handle(self):
        class Torch:
            cuda_stream = 77

        class Cupy:
            ptr = 78

        class Core:
            def __cuda_stream__(self):
                return (0, 79)

        handles = [_streams.handle(s) for s in (None, 0, 1, 2, 76, Torch(), Cupy(), Core())]
        self.assertEqual(handles, [1, 1, 1, 2, 76, 77, 78, 79])


class TheQueue(unittest.TestCase):
    def setUp(self):
        self.pool = weir.Pool(limit_bytes=64 << 20)

    def tearDown(self):
        gc.collect()
        self.assertEqual(python_lib.weir_lease_late(), 0)
        self.assertEqual(self.pool.stats()["live_bytes"], 0)

    def queue(self, item_bytes=4096, items=2, **options):
        return weir.Queue(item_bytes, items, pool=self.pool, **options)

    def test_items_come_in_order_with_shape_type_and_bytes(self):
        with self.queue(items=1) as q:

            def fill():
                for i in range(20):
                    q.push([array.array("h", [i] * 5), bytes([i]) * 3], key=("batch", i))
                q.close()

            source = threading.Thread(target=fill)
            source.start()
            seen = 0
            for item in q:
                self.assertEqual(item.key, ("batch", seen))
                self.assertEqual([(a.shape, a.dtype) for a in item], [((5,), "int16"), ((3,), "uint8")])
                self.assertEqual(item[1].address % 256, 0)
                self.assertEqual(bytes_of(item[0]), array.array("h", [seen] * 5).tobytes())
                self.assertEqual(bytes_of(item[1]), bytes([seen]) * 3)
                seen += 1
            source.join()
            self.assertEqual(seen, 20)
            self.assertEqual(q.stats()["items_pushed"], 20)

    def test_sources_may_be_overwritten_when_push_returns(self):
        with self.queue() as q:
            source = bytearray(b"x" * 4000)
            q.push(source)
            source[:] = b"y" * 4000
            self.assertEqual(bytes_of(q.get()[0]), b"x" * 4000)

    def test_strided_and_empty_arrays(self):
        with self.queue(items=4) as q:
            q.push(memoryview(b"abcdef")[::2])
            q.push(b"")
            q.push([b"", b"z"])
            self.assertEqual(bytes_of(q.get()[0]), b"ace")
            self.assertEqual(q.get()[0].shape, (0,))
            self.assertEqual(bytes_of(q.get()[1]), b"z")

    def test_waits_have_deadlines_and_errors_a_type(self):
        with self.queue(items=1) as q:
            with self.assertRaises(weir.WouldBlock):
                q.get(timeout=0)
            with self.assertRaises(TimeoutError):
                q.get(timeout=0.01)
            q.push(b"a")
            with self.assertRaises(weir.Timeout):
                q.push(b"b", timeout=0.01)
            with self.assertRaises(weir.TooLarge):
                q.push(bytes(5000))
            self.assertEqual(len(q), 1)
            self.assertEqual(len(q._forms), 1)  # failed pushes leave nothing behind
            q.close()
            q.close()
            with self.assertRaises(weir.Closed):
                q.push(b"c")
            q.get()
            with self.assertRaises(weir.Closed):
                q.get()
        with self.assertRaises(weir.Closed):
            q.push(b"d")
        with self.assertRaises(weir.InvalidArgument):
            self.queue(item_bytes=0)

    def test_an_exception_of_the_source_comes_after_what_was_pushed(self):
        with self.queue() as q:
            q.push(b"a")
            q.fail(KeyError("broken"))
            q.fail(KeyError("again"))
            seen = []
            with self.assertRaisesRegex(KeyError, "broken"):
                for item in q:
                    seen.append(bytes_of(item[0]))
            self.assertEqual(seen, [b"a"])

    def test_a_kept_item_holds_its_slot_and_release_gives_it_back(self):
        with self.queue(items=1) as q:
            q.push(b"a")
            item = q.get()
            with self.assertRaises(weir.WouldBlock):
                q.push(b"b", timeout=0)
            item.release()
            item.release()
            with self.assertRaises(BufferError):
                item.__dlpack__()
            q.push(b"b", timeout=5)
            with q.get() as second:
                self.assertEqual(bytes_of(second[0]), b"b")

    def test_push_wakes_when_another_thread_drops_the_item(self):
        with self.queue(items=1) as q:
            q.push(b"a")
            holder = [q.get()]
            threading.Timer(0.05, holder.clear).start()
            q.push(b"b", timeout=10)

    def test_destroy_wakes_who_waits_on_either_side(self):
        full, empty, woken = self.queue(items=1), self.queue(), []

        def expect_closed(call):
            try:
                call()
            except weir.Closed:
                woken.append(call)

        full.push(b"a")
        waiters = [
            threading.Thread(target=expect_closed, args=(call,)) for call in (lambda: full.push(b"b"), lambda: empty.get())
        ]
        for waiter in waiters:
            waiter.start()
        time.sleep(0.05)
        full.destroy()
        empty.destroy()
        for waiter in waiters:
            waiter.join(10)
        self.assertEqual(len(woken), 2)

    def test_waits_leave_the_gil_to_others(self):
        with self.queue() as q:
            turns, over = [], threading.Event()

            def count():
                while not over.is_set():
                    turns.append(time.monotonic())
                    time.sleep(0.001)

            counter = threading.Thread(target=count)
            counter.start()
            with self.assertRaises(TimeoutError):
                q.get(timeout=0.2)
            during = len(turns)
            over.set()
            counter.join()
            self.assertGreater(during, 20)

    @needs_numpy
    def test_a_tensor_outlives_item_and_queue(self):
        with self.queue(items=2) as q:
            q.push(numpy.arange(12, dtype="int32").reshape(3, 4))
            tensor = numpy.from_dlpack(q.get())
            q.push(b"never read")
        self.assertTrue((tensor == numpy.arange(12).reshape(3, 4)).all())
        self.assertGreater(self.pool.stats()["live_bytes"], 0)
        del tensor
        self.pool.copier.wait(_abi.Ticket())
        self.assertEqual(self.pool.stats()["live_bytes"], 0)

    @needs_numpy
    def test_tensors_alive_at_exit_and_in_a_forked_child_do_no_harm(self):
        code = (
            "import os, sys, numpy, weir\n"
            "q = weir.Queue(4096)\nq.push(numpy.ones(5))\nq.push(numpy.ones(5))\n"
            "sys.kept = numpy.from_dlpack(q.get()), q.get(), weir.pool().alloc(100), weir.empty_pinned(10)\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    try: weir.pool().alloc(1)\n"
            "    except weir.WeirError as e: assert e.status == 'WEIR_AFTER_FORK', e.status\n"
            "    sys.exit(7)\n"
            "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
            "assert (sys.kept[0] == 1).all()"
        )
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "interpose" / "python"))
        subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)

    @needs_numpy
    def test_a_round_of_the_loop_ends_the_item_but_not_its_tensor(self):
        with self.queue(items=3) as q:
            for i in range(2):
                q.push(numpy.full(10, i))
            q.close()
            kept, items = [], []
            for item in q:
                kept.append(numpy.from_dlpack(item))
                items.append(item)
            with self.assertRaises(BufferError):
                items[0].__dlpack__()
            self.assertEqual([int(k[0]) for k in kept], [0, 1])
            del kept

    @needs_numpy
    def test_types_and_shapes_survive_dlpack_in_both_versions(self):
        with self.queue(items=3) as q:
            for kind in "bool i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8 c8 c16".split():
                for shape in ((), (3,), (2, 3, 4), (0, 5)):
                    source = numpy.ones(shape, kind)
                    q.push(source)
                    item = q.get()
                    got = numpy.from_dlpack(item)
                    self.assertEqual((got.dtype, got.shape), (source.dtype, source.shape))
                    self.assertTrue((got == source).all())
                    self.assertIn('"dltensor"', repr(item.__dlpack__()))
                    self.assertIn('"dltensor_versioned"', repr(item.__dlpack__(max_version=(1, 0))))
            q.push(numpy.zeros(3, ">f4"))
            with self.assertRaises(BufferError):
                q.get().__dlpack__()
            with self.assertRaises(TypeError):
                q.push(numpy.array([object()]))

    @needs_numpy
    def test_a_capsule_dropped_in_an_exception_leaves_the_exception(self):
        with self.queue() as q:
            q.push(b"a")
            item = q.get()
            with self.assertRaisesRegex(TypeError, "int"):
                int("1", base=item.__dlpack__())

    def test_dlpack_refuses_what_it_can_not_do(self):
        with self.queue() as q:
            q.push(b"a")
            q.push([b"a", b"b"])
            item, two = q.get(), q.get()
            self.assertEqual(item.__dlpack_device__(), (1, 0))
            for options in ({"stream": 5}, {"copy": True}, {"dl_device": (2, 0)}):
                with self.assertRaises(BufferError):
                    item.__dlpack__(**options)
            with self.assertRaises(BufferError):
                two.__dlpack__()
            self.assertFalse(hasattr(item, "__cuda_array_interface__"))

    @needs_numpy
    def test_borrowed_arrays_are_kept_and_read_in_place(self):
        with self.queue(items=2) as q:
            pinned = weir.empty_pinned(4096, "u1", pool=self.pool)
            pinned[:] = 9
            q.push(pinned, borrow=True)
            q.wait_borrowed(10)
            self.assertEqual(len(q._lent), 0)
            self.assertEqual(q.stats()["borrowed_bytes"], 4096)
            self.assertEqual(bytes_of(q.get()[0]), b"\x09" * 4096)
            kept = weakref.ref(pinned)
            q.push(pinned, borrow=True)
            del pinned
        deadline = time.monotonic() + 10
        while kept() is not None and time.monotonic() < deadline:
            weir.Queue(1, pool=self.pool).destroy()  # looks after those that left
        self.assertIsNone(kept())


if __name__ == "__main__":
    if len(sys.argv) > 1:
        COMPILER = sys.argv.pop(1)
    unittest.main()
