"""Which items a program reads of a container that it fills."""

from __future__ import annotations

import pytest

from memprof.source_code.container_reads import Which, items_read
from memprof.source_code.program import program_of

OF_LIST = """\
class Store:
    def __init__(self):
        self.maps = []

    def add(self, one):
        self.maps.append(one)

    def read(self):
        {read}
"""
OF_FILE = """\
maps = []

def add(one):
    maps.append(one)
    print(maps[-1])

{later}
"""
UNDER_KEYS = """\
class Store:
    def add(self, name, one):
        self.maps[name].append(one)

    def read(self, name):
        return {read}
"""


def program(tmp_path, text):
    path = tmp_path / "store.py"
    path.write_text(text)
    return program_of(str(path))


def read_of(tmp_path, text, line, name="self.maps"):
    file = program(tmp_path, text)
    items = items_read(file.at(line), name, [file])
    return (items.which, *items.texts) if items is not None else None


@pytest.mark.parametrize(
    ("read", "which", "texts"),
    [
        ("return self.maps[-1][0].mean(0)", Which.NEWEST, ["self.maps[-1]"]),
        ("return self.maps[-2] - self.maps[-1]", Which.NEWEST, ["self.maps[-2]", "self.maps[-1]"]),
        (
            "return torch.stack(self.maps[-8:]) if self.maps else None",
            Which.NEWEST,
            ["self.maps[-8:]"],
        ),
        ("return torch.cat(self.maps)[-64:]", Which.NEWEST, ["torch.cat(self.maps)[-64:]"]),
        (
            "return list(self.maps.values())[-4:]",
            Which.NEWEST,
            ["list(self.maps.values())[-4:]"],
        ),
        ("return self.maps[0]", Which.FIRST, ["self.maps[0]"]),
        ("return sorted(self.maps)[:3]", Which.BEST, ["sorted(self.maps)[:3]"]),
        ("return heapq.nlargest(3, self.maps)", Which.BEST, ["heapq.nlargest(3, self.maps)"]),
        (
            "return min(self.maps, key=len) if self.maps else None",
            Which.BEST,
            ["min(self.maps, key=len)"],
        ),
        (
            "return self.maps[self.losses.index(min(self.losses))]",
            Which.BEST,
            ["self.maps[self.losses.index(min(self.losses))]"],
        ),
        ("return random.choice(self.maps)", Which.DRAWN, ["random.choice(self.maps)"]),
        (
            "return [self.maps[i] for i in torch.randint(len(self.maps), (8,)).tolist()]",
            Which.DRAWN,
            ["self.maps[i]"],
        ),
    ],
)
def test_some_items_are_read_and_how(read, which, texts, tmp_path):
    assert read_of(tmp_path, OF_LIST.format(read=read), 6) == (which, *texts)


@pytest.mark.parametrize(
    "read",
    [
        "return self.maps[-1], self.maps[0]",
        "return self.maps[-self.count:]",
        "return self.maps[self.count]",
        "return [one for one in self.maps]",
        "return [self.maps[i] for i in range(len(self.maps))]",
        "return torch.cat(self.maps)[:64]",
        "return torch.cat(self.maps, 1)[-64:]",
        "return max(self.maps)",
        "return sorted(self.maps)",
        "return sorted(self.maps)[1:3]",
        "return self.maps[max(len(self.maps) - self.count, 0)]",
        "return len(self.maps)",
        "return self.maps",
    ],
)
def test_any_items_may_be_read(read, tmp_path):
    assert read_of(tmp_path, OF_LIST.format(read=read), 6) is None


def test_a_place_may_have_a_name(tmp_path):
    text = OF_LIST.format(read="best = int(np.argmin(self.losses))\n        return self.maps[best]")
    assert read_of(tmp_path, text, 6) == (Which.BEST, "self.maps[best]")


@pytest.mark.parametrize(
    ("read", "newest"),
    [("self.maps[name][-1]", ("self.maps[name][-1]",)), ("self.maps[name]", ())],
)
def test_lists_under_keys_are_read_by_their_key(read, newest, tmp_path):
    items = read_of(tmp_path, UNDER_KEYS.format(read=read), 3, "self.maps[name]")
    assert items == ((Which.NEWEST, *newest) if newest else None)


OF_HOOKS = """\
class Store:
    def add(self, name, one):
        {fill}

    def read(self):
        return {read}
"""


@pytest.mark.parametrize(
    ("fill", "read", "newest"),
    [
        (
            "self.maps.setdefault(name, []).append(one)",
            "{k: v[-1].mean() for k, v in self.maps.items()}",
            "v[-1]",
        ),
        ("self.maps[name].append(one)", "[v[-1] for v in self.maps.values()]", "v[-1]"),
        ("self.maps[name].append(one)", "[v[-1] + v[0] for v in self.maps.values()]", ""),
        ("self.maps[name].append(one)", "[torch.stack(v) for v in self.maps.values()]", ""),
        ("self.maps[name] = one", "[v[-1] for v in self.maps.values()]", ""),  # a tensor's last row
    ],
)
def test_lists_that_a_dict_has_are_gone_through(fill, read, newest, tmp_path):
    name = "self.maps[name]" if "setdefault" not in fill else "self.maps"
    name = "self.maps" if " = one" in fill else name
    items = read_of(tmp_path, OF_HOOKS.format(fill=fill, read=read), 3, name)
    assert items == ((Which.NEWEST, newest) if newest else None)


@pytest.mark.parametrize(
    ("later", "is_newest"),
    [
        ("add(1)", True),
        ("show(torch.stack(maps))", False),
        ("def last(maps):\n    return maps", True),  # another one
        ("def all_of_them():\n    return maps", False),
    ],
)
def test_a_list_of_the_file_may_be_read_anywhere_in_it(later, is_newest, tmp_path):
    items = read_of(tmp_path, OF_FILE.format(later=later), 4, "maps")
    assert items == ((Which.NEWEST, "maps[-1]") if is_newest else None)


ON_ONE_LINE = """\
class Store:
    def add(self, one):
        self.maps.append(one)

    def read(self):
        if not self.maps: return None
        first = 1; last = self.maps[-1]; return last
"""


def test_statements_that_share_a_line_are_told_apart(tmp_path):
    assert read_of(tmp_path, ON_ONE_LINE, 3) == (Which.NEWEST, "self.maps[-1]")
