"""A container that loses items by its length is known by the statement that fills it."""

from __future__ import annotations

import pytest

from memprof.records import Holder
from memprof.reference_chain import Link, LinkKind
from memprof.rules.containers import is_kept_short

STORE = """class Store:
    def put(self, key, value):
        {guard}
        self.entries[key] = value
"""
FILLS = 4
BOUNDED = "while len(self.entries) >= 6: self.entries.popitem(last=False)"


def holder(source):
    """A cache of eight layers, one of four in a dict."""
    links = [
        Link(LinkKind.LOCAL, "server", "main"),
        Link(LinkKind.ATTRIBUTE, "entries", "Store"),
        Link(LinkKind.ITEM, "'first'", "OrderedDict", length=4),
        Link(LinkKind.ATTRIBUTE, "layers", "DynamicCache"),
        Link(LinkKind.ITEM, "3", "list", length=8),
        Link(LinkKind.ATTRIBUTE, "keys", "DynamicLayer"),
    ]
    code = source.read_text().splitlines()[FILLS - 1].strip()
    return Holder(kind=LinkKind.ITEM, filename=str(source), line=FILLS, code=code, links=links)


@pytest.mark.parametrize(("guard", "is_short"), [(BOUNDED, True), ("pass", False)])
def test_what_a_bounded_dict_has_may_have_more_items_than_the_dict(tmp_path, guard, is_short):
    source = tmp_path / "store.py"
    source.write_text(STORE.format(guard=guard))
    assert is_kept_short(holder(source)) is is_short


SLOTS = """class Memory:
    def add(self, image, label):
        slot = {slot}
        {guard}slot.append(image)
"""


def holder_of_slots(source, classes):
    """Images of a class, forty of them in a list of the dict's."""
    links = [
        Link(LinkKind.LOCAL, "memory", "main"),
        Link(LinkKind.ATTRIBUTE, "slots", "Memory"),
        Link(LinkKind.ITEM, "0", "dict", length=classes),
        Link(LinkKind.ITEM, "39", "list", length=40),
    ]
    code = source.read_text().splitlines()[FILLS - 1].strip()
    return Holder(kind=LinkKind.ITEM, filename=str(source), line=FILLS, code=code, links=links)


@pytest.mark.parametrize(
    ("slot", "guard", "classes", "is_short"),
    [
        ("self.slots.setdefault(label, [])", "if len(slot) < 40: ", 6, True),
        ("self.slots[label]", "if len(slot) < 40: ", 6, True),
        ("self.slots[label]", "", 6, False),
        ("self.slots[label]", "if len(slot) < 40: ", 600, False),  # ever more of them
        ("self.others[label]", "if len(slot) < 40: ", 6, False),
        ("self.slots[label]", "if len(slot) < 20: ", 6, False),  # it has twice as many
    ],
)
def test_lists_of_a_few_keys_may_be_kept_to_a_length_each(tmp_path, slot, guard, classes, is_short):
    source = tmp_path / "memory.py"
    source.write_text(SLOTS.format(slot=slot, guard=guard))
    assert is_kept_short(holder_of_slots(source, classes)) is is_short


RING = """class Replay:
    def __init__(self):
        self.at, self.capacity = 0, 450
        self.frames, self.rewards = [], []

    def push(self, *values):
        for store, value in zip((self.frames, self.{other}), values):
            {guard}
                store.append(value)
"""


@pytest.mark.parametrize(
    ("guard", "name", "length", "is_short"),
    [
        ("if len(store) < self.capacity:", "frames", 383, True),
        ("if len(store) < 100:", "frames", 383, False),  # it has far more
        ("if self.at < 9:", "frames", 383, False),
        ("if len(store) < self.capacity:", "others", 383, False),
    ],
)
def test_lists_that_are_filled_in_turn_are_kept_to_a_length(
    tmp_path, guard, name, length, is_short
):
    source = tmp_path / "ring.py"
    source.write_text(RING.format(guard=guard, other="rewards"))
    links = [
        Link(LinkKind.LOCAL, "memory", "main"),
        Link(LinkKind.ATTRIBUTE, name, "Replay"),
        Link(LinkKind.ITEM, "7", "list", length=length),
    ]
    code = source.read_text().splitlines()[3].strip()
    holder = Holder(kind=LinkKind.ITEM, filename=str(source), line=4, code=code, links=links)
    assert is_kept_short(holder) is is_short
