# SPDX-License-Identifier: Apache-2.0
"""What weir.torch.detect reports, with tensors of the processor in the place of a GPU's, and numbers for streams.

    WEIR_LIBRARY_PATH=BUILD python3 tests/test_torch_uses.py

Exit code 77: no PyTorch.
"""
import os
import pathlib
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "interpose" / "python"))
os.environ.setdefault("WEIR_DEVICE", "sim")
try:
    import torch
except ModuleNotFoundError as error:
    print(error)
    sys.exit(77)
import weir.torch  # noqa: E402
from weir import _torch_uses  # noqa: E402

HOME, SIDE, THIRD = 1, 2, 3


class Event:
    pass


class CudaStream:
    def __init__(self, number):
        self.cuda_stream = number

    def synchronize(self):
        pass


class CudaEvent:
    """The calls of torch.cuda.Event."""

    def __init__(self):
        self.calls = []

    def record(self, stream=None):
        self.calls.append(("record", stream.cuda_stream))

    def wait(self, stream=None):
        self.calls.append(("wait", stream.cuda_stream))

    def query(self):
        return True

    def synchronize(self):
        pass


class TheDetector(unittest.TestCase):
    def setUp(self):
        self.reports, self.stream = [], HOME
        self.uses = _torch_uses.Uses(self.reports.append)
        self.watch = _torch_uses.Watch(self.uses, "cpu", lambda device: self.stream, lambda storage: None)
        self.watch.__enter__()
        self.addCleanup(self.watch.__exit__, None, None, None)

    def on(self, stream, work):
        self.stream, before = stream, self.stream
        try:
            return work()
        finally:
            self.stream = before

    def join(self, waiter, waited):
        event = Event()
        self.uses.recorded(event, waited)
        self.uses.waited(waiter, event)

    def read_aside(self, x):
        self.on(SIDE, lambda: x.sum())

    def test_A06_memory_freed_before_its_home_is_behind_a_side_stream_is_reported_with_operation_and_place(self):
        x = torch.ones(1000)
        self.read_aside(x)
        self.assertEqual(self.reports, [])
        del x
        self.uses.look()
        self.assertEqual(len(self.reports), 1)
        self.assertIn("aten.sum", self.reports[0])
        self.assertIn("test_torch_uses.py:", self.reports[0])
        self.assertIn("4000 bytes of stream 0x1 on stream 0x2", self.reports[0])

    def test_a_place_is_reported_once(self):
        for _ in range(5):
            x = torch.ones(10)
            self.read_aside(x)
            del x
        self.uses.look()
        self.assertEqual(len(self.reports), 1)

    def test_a_join_before_the_free_is_enough(self):
        x = torch.ones(10)
        self.read_aside(x)
        self.join(HOME, SIDE)
        del x
        self.uses.look()
        self.assertEqual(self.reports, [])

    def test_a_join_after_the_free_is_too_late(self):
        x = torch.ones(10)
        self.read_aside(x)
        del x
        self.join(HOME, SIDE)
        self.assertEqual(len(self.reports), 1)

    def test_a_join_before_the_last_use_does_not_cover_it(self):
        x = torch.ones(10)
        self.read_aside(x)
        self.join(HOME, SIDE)
        self.read_aside(x)
        del x
        self.uses.look()
        self.assertEqual(len(self.reports), 1)

    def test_a_join_by_way_of_a_third_stream_is_one(self):
        x = torch.ones(10)
        self.read_aside(x)
        self.join(THIRD, SIDE)
        self.join(HOME, THIRD)
        del x
        self.uses.look()
        self.assertEqual(self.reports, [])

    def test_a_host_that_has_waited_orders_all_that_it_queues_later(self):
        x = torch.ones(10)
        self.read_aside(x)
        self.uses.host_waited(SIDE)
        del x
        self.uses.look()
        self.assertEqual(self.reports, [])

    def test_an_event_that_the_host_saw_pass_covers_what_came_before_it_alone(self):
        x, y = torch.ones(10), torch.ones(10)
        event = Event()
        self.read_aside(x)
        self.uses.recorded(event, SIDE)
        self.on(SIDE, lambda: y.add(1))
        self.uses.host_saw(event)
        del x, y
        self.uses.look()
        self.assertEqual(len(self.reports), 1)
        self.assertIn("aten.add", self.reports[0])

    def test_a_declared_stream_may_do_what_it_likes(self):
        x = torch.ones(10)
        self.read_aside(x)
        self.uses.declared(x.untyped_storage(), SIDE, lambda storage: None)
        self.read_aside(x)
        del x
        self.uses.look()
        self.assertEqual(self.reports, [])

    def test_a_view_keeps_the_memory(self):
        x = torch.ones(10)
        y = x[3:]
        self.read_aside(x)
        del x
        self.uses.look()
        self.assertEqual(self.reports, [])
        self.join(HOME, SIDE)
        del y
        self.uses.look()
        self.assertEqual(self.reports, [])

    def test_training_on_one_stream_and_the_backward_pass_in_particular_are_silent(self):
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            model(torch.randn(4, 8)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        self.uses.look()
        self.assertEqual(self.reports, [])

    def test_gradients_made_on_a_side_stream_and_dropped_unjoined_are_reported(self):
        x = torch.ones(10, requires_grad=True)
        y = x.exp()
        self.on(SIDE, lambda: y.sum().backward())
        del y
        self.uses.look()
        self.assertGreater(len(self.reports), 0)

    def test_events_of_cuda_are_heard_whichever_way_they_name_their_stream(self):
        for name_it in (lambda s: ((s,), {}), lambda s: ((), {"stream": s})):
            for join, n in ((True, 0), (False, 1)):
                with self.subTest(join=join), mock.patch.multiple(torch.cuda, Event=CudaEvent, Stream=CudaStream):
                    self.reports.clear()
                    self.uses._sites.clear()
                    x = torch.ones(10)
                    self.read_aside(x)
                    with _torch_uses.order_of_cuda(self.uses):
                        event = CudaEvent()
                        for call, stream in (event.record, SIDE), (event.wait, HOME if join else THIRD):
                            positional, named = name_it(CudaStream(stream))
                            call(*positional, **named)
                    del x
                    self.uses.look()
                    self.assertEqual(len(self.reports), n)
                    self.assertEqual(event.calls, [("record", SIDE), ("wait", HOME if join else THIRD)])

    def test_tensors_that_wrap_others_and_have_no_memory_themselves_are_no_error(self):
        from torch.testing._internal.two_tensor import TwoTensor
        self.watch._home_of = weir.torch._home_of
        pair = TwoTensor(torch.ones(3), torch.ones(3))
        self.assertEqual((pair + 1).a.tolist(), [2, 2, 2])

    def test_what_was_seen_is_forgotten_with_its_memory(self):
        self.uses._sweep_at = 50
        for _ in range(1000):
            torch.ones(1)
        self.assertLess(len(self.uses._seen), 2 * _torch_uses._SWEEP)
        self.uses._sweep()
        self.assertLess(len(self.uses._seen), 10)


if __name__ == "__main__":
    unittest.main()
