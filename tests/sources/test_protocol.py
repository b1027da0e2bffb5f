"""Rows of the interned tables: numbered without a gap, each handed out once, freed at once."""

from __future__ import annotations

import gc
import weakref

from memprof.records import TablesRecord
from memprof.sources.protocol import Interner
from memprof.trace import Phase


def test_what_is_new_is_handed_out_once_and_numbered_on():
    interner = Interner()
    frames = (interner.frame("f", "a.py", 1), interner.frame("g", "a.py", 2))
    assert frames == (0, 1)
    assert interner.frame("f", "a.py", 1) == 0
    assert (interner.stack(()), interner.stack(frames), interner.stack(frames)) == (0, 1, 1)
    assert interner.label(3, Phase.FORWARD, "Net", "") == 1
    assert (interner.pool((0, 0)), interner.pool((0, 7))) == (0, 1)
    told = interner.take_new()
    assert told == TablesRecord(
        frames=[("f", "a.py", 1), ("g", "a.py", 2)],
        stacks=[[0, 1]],
        labels=[(3, 1, "Net", "")],
        pools=[(0, 7)],
    )
    assert interner.take_new() is None
    assert interner.frame("h", "a.py", 3) == 2
    assert interner.take_new() == TablesRecord((2, 2, 2, 2), [("h", "a.py", 3)])
    assert [frame.line for frame in interner.tables().frames] == [1, 2, 3]


def test_the_tables_go_with_their_interner_without_a_collection():
    interner = Interner()
    interner.stack((interner.frame("f", "a.py", 1),))
    tables = [
        weakref.ref(t) for t in vars(interner).values() if type(t).__module__ == Interner.__module__
    ]
    was_on = gc.isenabled()
    gc.disable()
    try:
        del interner
        assert [table() for table in tables] == [None] * 5
    finally:
        if was_on:
            gc.enable()


def test_the_numbers_of_labels_tell_step_phase_and_module():
    interner = Interner()
    assert interner.label_numbers().tolist() == [[-1, 0, 0]]
    interner.label(3, Phase.FORWARD, "Net", "")
    interner.label(4, Phase.BACKWARD, "Net.fc", "warm-up")
    interner.label(4, Phase.OPTIMIZER, "", "")
    interner.label(5, Phase.FORWARD, "Net", "")
    numbers = interner.label_numbers()
    assert numbers[1:, 0].tolist() == [3, 4, 4, 5]
    assert numbers[1:, 1].tolist() == [
        Phase.FORWARD,
        Phase.BACKWARD,
        Phase.OPTIMIZER,
        Phase.FORWARD,
    ]
    names = interner.module_names()
    assert [names[module] for module in numbers[:, 2].tolist()] == ["", "Net", "Net.fc", "", "Net"]
