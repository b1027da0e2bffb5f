"""Containers whose filling code takes from them by their length are told from those that grow."""

from __future__ import annotations

import pytest

from memprof.source_code.length_guards import is_kept_to_length, replaces_items
from memprof.source_code.program import place_of
from memprof.trace import Frame

CLASS = """class Store:
    def put(self, key, value):
        self.entries[key] = value
{after}
    def evict(self):
        while len(self.entries) > self.capacity:
            self.entries.popitem(last=False)
"""

FUNCTION = """def main():
    rows = []
    for x in stream():
{body}
"""


def kept(tmp_path, text, statement, length=0):
    source = tmp_path / "program.py"
    source.write_text(text)
    line = next(at for at, one in enumerate(text.splitlines(), 1) if one.strip() == statement)
    return is_kept_to_length(place_of(Frame("", str(source), line)), length)


@pytest.mark.parametrize(
    ("after", "is_kept"),
    [
        (
            "        while len(self.entries) > 8:\n            self.entries.popitem(last=False)",
            True,
        ),
        ("        if self.capacity < len(self.entries):\n            del self.entries[old]", True),
        ("        self.evict()", True),
        ("        pass", False),  # nothing calls evict
        ("        if len(self.entries) > 0:\n            self.entries.pop(key, None)", False),
        ("        if len(self.others) > 8:\n            self.entries.pop(key, None)", False),
        ("        if len(self.entries) > 8:\n            log('many')", False),
        ("        other.evict()", False),
    ],
)
def test_a_method_that_evicts_by_length_keeps_its_dict_short(tmp_path, after, is_kept):
    text = CLASS.format(after=after)
    assert kept(tmp_path, text, "self.entries[key] = value") is is_kept


BY_TOTAL = """class Replay:
    def add(self, episode):
        self.episodes.append(episode)
        self.steps {raised} len(episode)
        while {test}:
            {lowered}
"""


@pytest.mark.parametrize(
    ("raised", "test", "lowered", "is_kept"),
    [
        ("+=", "self.steps > self.most", "self.steps -= len(self.episodes.popleft())", True),
        ("+=", "self.most < self.steps", "self.steps -= len(self.episodes.popleft())", True),
        (
            *("+=", "self.episodes and self.steps + len(episode) > self.most"),
            *("self.steps -= len(self.episodes.popleft())", True),
        ),
        ("+=", "self.steps > self.most", "self.steps -= len(self.others.popleft())", False),
        ("+=", "self.steps > self.most", "self.lost -= len(self.episodes.popleft())", False),
        ("=", "self.steps > self.most", "self.steps -= len(self.episodes.popleft())", False),
    ],
)
def test_a_container_is_kept_to_a_total_that_it_is_counted_in(
    tmp_path, raised, test, lowered, is_kept
):
    text = BY_TOTAL.format(raised=raised, test=test, lowered=lowered)
    assert kept(tmp_path, text, "self.episodes.append(episode)") is is_kept


@pytest.mark.parametrize(
    ("body", "statement", "is_kept"),
    [
        ("rows.append(x)\nrows = rows[-100:]", "rows.append(x)", True),
        ("rows.append(x)\ndel rows[:-100]", "rows.append(x)", True),
        ("if len(rows) < 100:\n    rows.append(x)", "rows.append(x)", True),
        ("if 100 > len(rows):\n    rows.append(x)", "rows.append(x)", True),
        ("if len(rows) > 100:\n    rows.append(x)", "rows.append(x)", False),
        ("if len(rows) == 9:\n    rows[0] = x\nelse:\n    rows.append(x)", "rows.append(x)", True),
        ("rows.append(x)\nwhile len(rows) > 9:\n    rows.pop(0)", "rows.append(x)", True),
        ("rows.append(x)\nif len(rows) > 9:\n    rows.pop(0)", "rows.append(x)", True),
        ("for y in x:\n    rows.append(y)\nif len(rows) > 9:\n    rows.pop(0)", "rows.append(y)", False),
        ("rows.extend(x)\nif len(rows) > 9:\n    rows.pop(0)", "rows.extend(x)", False),
        ("rows.extend(x)\nif len(rows) > 9:\n    rows.clear()", "rows.extend(x)", True),
        ("rows[x.key].append(x)\nif len(rows[x.key]) > 9:\n    rows[x.key].pop(0)",
         "rows[x.key].append(x)", False),
    ],
)  # fmt: skip
def test_a_function_that_cuts_a_list_to_a_length_keeps_it_short(tmp_path, body, statement, is_kept):
    indented = "\n".join(f"        {line}" for line in body.splitlines())
    assert kept(tmp_path, FUNCTION.format(body=indented), statement) is is_kept


@pytest.mark.parametrize(
    ("body", "limit"),
    [
        ("rows.append(x)\nrows = rows[-100:]", 100),
        ("rows.append(x)\nrows[:] = rows[:20]", 20),
        ("rows.append(x)\ndel rows[:-2]", 2),
        ("rows.append(x)\ndel rows[3:]", 3),
        ("rows.append(x)\nif short:\n    del rows[3:]", 3),
        ("rows.append(x)\nif not self.all:\n    while len(rows) > 3:\n        rows.pop()", 3),
        ("rows.append(x)\nif 9 < len(rows):\n    rows.pop(0)", 9),
        ("if len(rows) < 100:\n    rows.append(x)", 100),
        ("rows.append(x)\nif short:\n    rows = rows[-3:]\nelse:\n    rows = rows[-30:]", 30),
        # not written out, or it may well run now and then
        ("rows.append(x)\nrows = rows[-most:]", None),
        ("rows.append(x)\nrows = rows[most:9]", None),
        ("rows.append(x)\nrows = rows[9:]", None),
        ("rows.append(x)\ndel rows[:-most]", None),
        ("rows.append(x)\ndel rows[:4]", None),
        ("rows.append(x)\nif len(rows) > most:\n    rows.pop(0)", None),
        ("rows.append(x)\nif x % 10 == 0:\n    del rows[3:]", None),
        ("rows.append(x)\nif ended():\n    del rows[3:]", None),
    ],
)
def test_a_list_that_was_seen_to_be_longer_is_not_kept_to_a_length(tmp_path, body, limit):
    indented = "\n".join(f"        {line}" for line in body.splitlines())
    text = FUNCTION.format(body=indented)
    room = None if limit is None else limit + max(4, limit // 4)
    assert kept(tmp_path, text, "rows.append(x)")
    assert kept(tmp_path, text, "rows.append(x)", 100_000 if room is None else room)
    assert room is None or not kept(tmp_path, text, "rows.append(x)", room + 1)


def test_a_condition_of_filling_and_trimming_is_none_of_the_guard(tmp_path):
    text = """rows = []
if __name__ == "__main__":
    for x in stream():
        rows.append(x)
        del rows[:-2]
"""
    assert kept(tmp_path, text, "rows.append(x)", 6)
    assert not kept(tmp_path, text, "rows.append(x)", 7)


STORE = """class Store:
    def __init__(self, capacity{default}):
        self.capacity = capacity

    def put(self, key, value):
        self.entries[key] = value
        while len(self.entries) > self.capacity:
            self.entries.popitem(last=False)

{after}
"""


@pytest.mark.parametrize(
    ("default", "after", "limit"),
    [
        ("=8", "store = Store()", 8),
        ("=8", "def make():\n    return Store()", 8),
        (": int = 8, name=''", "store = Store(name='a')", 8),
        # another value may come
        ("=8", "store = Store(64)", None),
        ("=8", "store = Store(capacity=64)", None),
        ("=8", "store = Store(*settings)", None),
        ("=8", "store = Store(**settings)", None),
        ("", "store = Store(64)", None),
        ("=LIMIT", "store = Store()", None),
        ("=8", "    def widen(self):\n        self.capacity = 64", None),
        ("=8", "    def widen(self):\n        self.capacity += 64", None),
    ],
)
def test_a_limit_is_known_by_a_default_that_no_call_replaces(tmp_path, default, after, limit):
    text = STORE.format(default=default, after=after)
    statement = "self.entries[key] = value"
    assert kept(tmp_path, text, statement)
    assert kept(tmp_path, text, statement, 12)
    assert kept(tmp_path, text, statement, 13) is (limit is None)


@pytest.mark.parametrize(
    ("before", "limit"),
    [
        ("LIMIT = 8", 8),
        ("LIMIT = 8\nLIMIT = 80", None),
        ("LIMIT = 8\nLIMIT += 80", None),
        ("LIMIT = settings()", None),
        ("for LIMIT in (8, 80):\n    pass", None),
        ("LIMIT = 8\nfor LIMIT in (8, 80):\n    pass", None),
        ("LIMIT = 8\nwith limits() as LIMIT:\n    pass", None),
        ("LIMIT = 8\ndef other(LIMIT):\n    pass", None),
    ],
)
def test_a_limit_is_known_by_a_name_that_is_bound_once(tmp_path, before, limit):
    body = "        rows.append(x)\n        rows = rows[-LIMIT:]"
    text = before + "\n" + FUNCTION.format(body=body)
    assert kept(tmp_path, text, "rows.append(x)", 12)
    assert kept(tmp_path, text, "rows.append(x)", 13) is (limit is None)


@pytest.mark.parametrize(
    ("body", "is_replaced"),
    [
        ("rows[at] = x", True),
        ("rows[at], at = x, at + 1", True),
        ("if len(rows) < 9:\n    rows.append(None)\nrows[at] = x", True),
        ("rows.append(None)\nrows[at] = x", False),
        ("rows += [None]\nrows[at] = x", False),
        ("rows[at] = rows[at] + [x]", False),
        ("old = rows[at]\nrows[at] = join(old, x)", False),
        ("rows[at:] = x", False),
        ("rows[at][key] = x", False),
        ("others[at] = x", False),
    ],
)
def test_items_that_are_replaced_make_no_list_longer(tmp_path, body, is_replaced):
    indented = "\n".join(f"        {line}" for line in body.splitlines())
    source = tmp_path / "program.py"
    source.write_text(FUNCTION.format(body=indented))
    line = len(source.read_text().splitlines())
    assert replaces_items(place_of(Frame("", str(source), line)), "rows") is is_replaced


def test_a_list_that_was_seen_to_grow_is_made_as_it_fills(tmp_path):
    source = tmp_path / "program.py"
    for body, is_replaced in (
        ("rows[at] = x", False),
        ("if len(rows) < 9:\n            rows.append(None)\n        rows[at] = x", True),
    ):
        source.write_text(FUNCTION.format(body=f"        {body}"))
        place = place_of(Frame("", str(source), len(source.read_text().splitlines())))
        assert replaces_items(place, "rows", 8, grew=True) is is_replaced


@pytest.mark.parametrize(
    ("other", "is_replaced"),
    [
        ("    rows = [x]\n    rows.append(x)", True),
        ("    rows = [one for one in x]\n    rows += x", True),
        ("    rows = pool.rows\n    rows.append(x)", False),
        ("    rows = [x]\n    rows = pool.rows\n    rows.append(x)", False),
        ("    pool.rows.append(x)", False),
    ],
)
def test_a_variable_of_its_own_does_not_lengthen_an_attributes_list(tmp_path, other, is_replaced):
    source = tmp_path / "program.py"
    source.write_text(
        "class Pool:\n    def put(self, at, x):\n        self.rows[at] = x\n\n\n"
        f"def rollout(pool, x):\n{other}\n"
    )
    assert replaces_items(place_of(Frame("", str(source), 3)), "rows") is is_replaced


RING = """class Ring:
    def __len__(self):
        return len(self.rows)

    @property
    def is_full(self):
        return len(self.rows) >= self.most

    def is_short(self):
        \"\"\"Whether there is room.\"\"\"
        return len(self.rows) < self.most

    def ready(self):
        return self.steps > 8

    def push(self, row):
        {test}:
            self.rows.append(row)
        else:
            self.rows[self.at] = row
"""


@pytest.mark.parametrize(
    ("test", "is_kept"),
    [
        ("if len(self) < self.most", True),
        ("if not self.is_full", True),
        ("if self.is_short()", True),
        ("if not self.is_short()", False),
        ("if self.is_full", False),
        ("if self.ready()", False),
        ("if len(other) < self.most", False),
    ],
)
def test_a_class_may_ask_for_its_length_by_a_method_of_its_own(tmp_path, test, is_kept):
    assert kept(tmp_path, RING.format(test=test), "self.rows.append(row)") is is_kept
