# SPDX-License-Identifier: Apache-2.0
"""Pins of user arrays that share pages, over a driver that is as strict as CUDA's.

    python3 tests/test_pins.py
"""
import importlib.util
import itertools
import pathlib
import random
import threading
import unittest

FILE = pathlib.Path(__file__).resolve().parents[1] / "interpose" / "python" / "weir" / "_pins.py"
spec = importlib.util.spec_from_file_location("_pins", FILE)  # by itself: it needs no library
_pins = importlib.util.module_from_spec(spec)
spec.loader.exec_module(_pins)
PAGE = _pins.PAGE


class Driver:
    """Refuses what overlaps a locked range, and to unlock by any address but that of the locking."""

    def __init__(self):
        self.locked, self.foreign = {}, []

    def lock(self, address, nbytes):
        assert address % PAGE == 0 and nbytes % PAGE == 0 and nbytes > 0
        ranges = list(self.locked.items()) + self.foreign
        if any(address < at + n and at < address + nbytes for at, n in ranges):
            return False
        self.locked[address] = nbytes
        return True

    def unlock(self, address):
        del self.locked[address]

    def holds(self, address, nbytes):
        pages = {page for at, n in self.locked.items() for page in range(at // PAGE, (at + n) // PAGE)}
        return pages >= set(range(address // PAGE, (address + nbytes - 1) // PAGE + 1))


class ThePins(unittest.TestCase):
    def setUp(self):
        self.driver = Driver()
        self.pins = _pins.Pins(self.driver.lock, self.driver.unlock)

    def test_C03_two_arrays_that_share_a_page_unpinned_in_both_orders_leave_nothing_locked(self):
        for order in itertools.permutations(range(2)):
            arrays = [(10 * PAGE, PAGE + 100), (11 * PAGE + 200, 3 * PAGE)]
            unpin = [self.pins.pin(*array) for array in arrays]
            self.assertTrue(all(self.driver.holds(*array) for array in arrays))
            unpin[order[0]]()
            self.assertTrue(self.driver.holds(*arrays[order[1]]), "the other one stays locked")
            unpin[order[1]]()
            self.assertEqual(self.driver.locked, {})
            self.assertEqual(self.pins.locked_bytes(), 0)

    def test_C03_an_array_inside_another_or_the_same_again_counts(self):
        unpin = [self.pins.pin(0, 10 * PAGE), self.pins.pin(4 * PAGE, 100), self.pins.pin(0, 10 * PAGE)]
        self.assertEqual(self.pins.locked_bytes(), 10 * PAGE)
        unpin[0]()
        unpin[2]()
        self.assertTrue(self.driver.holds(4 * PAGE, 100))
        unpin[1]()
        self.assertEqual(self.driver.locked, {})

    def test_C03_an_array_around_others_locks_what_lies_between(self):
        inner = [self.pins.pin(2 * PAGE, PAGE), self.pins.pin(5 * PAGE, PAGE)]
        outer = self.pins.pin(PAGE + 7, 7 * PAGE)
        self.assertTrue(self.driver.holds(PAGE + 7, 7 * PAGE))
        for unpin in inner:
            unpin()
        self.assertTrue(self.driver.holds(PAGE + 7, 7 * PAGE))
        outer()
        self.assertEqual(self.driver.locked, {})

    def test_C03_what_somebody_else_has_locked_is_left_alone(self):
        self.driver.foreign = [(3 * PAGE, PAGE)]
        unpin = self.pins.pin(3 * PAGE, 2 * PAGE)
        self.assertEqual(self.driver.locked, {})
        unpin()
        self.driver.foreign = []
        self.pins.pin(3 * PAGE, 2 * PAGE)
        self.assertTrue(self.driver.holds(3 * PAGE, 2 * PAGE))

    def test_an_array_that_the_collector_ends_while_another_is_pinned_is_unpinned_and_holds_nothing_up(self):
        def lock_and_collect(address, nbytes):
            while ends:
                ends.pop()()  # in the thread that pins, inside of it
            return self.driver.lock(address, nbytes)
        pins, done = _pins.Pins(lock_and_collect, self.driver.unlock), threading.Event()
        ends = []
        ends.append(pins.pin(8 * PAGE, PAGE))
        unpin = []

        def pin():
            unpin.append(pins.pin(2 * PAGE, PAGE))
            done.set()
        threading.Thread(target=pin, daemon=True).start()
        self.assertTrue(done.wait(30), "the thread that pins waits for itself")
        self.assertEqual(list(self.driver.locked), [2 * PAGE])
        unpin[0]()
        self.assertEqual(self.driver.locked, {})

    def test_unpinning_twice_and_nothing_at_all_do_nothing(self):
        unpin, other = self.pins.pin(0, PAGE), self.pins.pin(0, PAGE)
        unpin()
        unpin()
        self.assertTrue(self.driver.holds(0, PAGE))
        other()
        self.pins.pin(0, 0)()
        self.assertEqual(self.driver.locked, {})

    def test_any_pins_in_any_order_keep_the_pages_of_those_that_live(self):
        draw, live = random.Random(3), []
        for _ in range(3000):
            if live and draw.random() < 0.5:
                live.pop(draw.randrange(len(live)))[1]()
            else:
                array = (draw.randrange(50 * PAGE), draw.randrange(1, 6 * PAGE))
                live.append((array, self.pins.pin(*array)))
            self.assertTrue(all(self.driver.holds(*array) for array, _ in live))
        for _, unpin in live:
            unpin()
        self.assertEqual(self.driver.locked, {})


if __name__ == "__main__":
    unittest.main()
