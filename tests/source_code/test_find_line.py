"""The line that fills, binds or passes on what a name holds."""

from __future__ import annotations

import linecache
import sys
import types
from pathlib import Path

import pytest

from memprof.source_code.find_line import (
    assigned_in_function,
    called_at,
    filled_at,
    filled_below,
    forget,
    grown_at,
    passed_at,
    registered_at,
)


def source(tmp_path: Path, text: str) -> str:
    """A file with that text, by its name."""
    path = tmp_path / "program.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    forget()
    return str(path)


def line_of(filename: str, text: str) -> int:
    """The number of the one line that contains ``text``."""
    (line,) = [
        at for at, line in enumerate(Path(filename).read_text().splitlines(), 1) if text in line
    ]
    return line


LOOP = """\
def go(data):
    total, state = 0, None
    state = 1
    for x in data:
        y = total
        state = x
        run(y)
        total = total + x
        state = 2
"""


def test_a_variable_that_stands_for_an_attribute_fills_it(tmp_path: Path) -> None:
    text = "def go(state, x):\n    seen = state.seen\n    seen.append(x)\n\ndef other(seen):\n    seen.append(0)\n"
    filename = source(tmp_path, text)
    assert filled_at(filename, ".seen") == line_of(filename, "seen.append(x)")


@pytest.mark.parametrize("item", ["self.groups[key]", "self.groups.setdefault(key, [])"])
def test_a_variable_that_stands_for_an_item_fills_the_container(tmp_path: Path, item: str) -> None:
    text = (
        "class Memory:\n    def __init__(self):\n        self.groups = defaultdict(list)\n"
        f"    def take(self, key, x):\n        group = {item}\n        group.append(x)\n"
    )
    filename = source(tmp_path, text)
    assert filled_at(filename, ".groups") == line_of(filename, "group.append(x)")


def test_what_is_written_into_an_item_adds_nothing_to_the_container(tmp_path: Path) -> None:
    text = (
        "class Data:\n    def __init__(self, path):\n        self.rows = load(path)\n"
        "    def mask(self, key):\n        row = self.rows[key]\n        row[0] = 0 * row\n"
    )
    filename = source(tmp_path, text)
    assert filled_at(filename, ".rows") == line_of(filename, "self.rows = load(path)")


def test_an_empty_list_under_a_new_key_fills_nothing(tmp_path: Path) -> None:
    text = (
        "def keep(groups, key, x):\n    if key not in groups:\n        groups[key] = []\n"
        "    groups[key].append(x)\n"
    )
    filename = source(tmp_path, text)
    assert filled_at(filename, "groups") == line_of(filename, "groups[key].append(x)")


def test_a_computed_key_may_be_any(tmp_path: Path) -> None:
    text = """class History:
    def __init__(self):
        self.records = {"train": [], "val": []}
    def add(self, split, value):
        self.records[split].append(value)
"""
    assert filled_at(source(tmp_path, text), ".records", keys=["'val'"]) == 5
    own = (
        text
        + """    def validated(self, value):
        self.records["val"].append(value)
"""
    )
    assert filled_at(source(tmp_path, own), ".records", keys=["'val'"]) == 7
    assert filled_at(source(tmp_path, own), ".records", keys=["'train'"]) == 5


def test_nested_dicts_are_filled_where_most_of_the_keys_are_named(tmp_path: Path) -> None:
    text = 'h["train"]["acc"].append(1)\nh["val"]["loss"].append(y)\nh["train"]["loss"].append(x)\n'
    filename = source(tmp_path, text)
    assert filled_at(filename, "h", keys=["'train'", "'loss'"]) == 3


def test_a_view_is_told_by_the_line_that_takes_it_only(tmp_path: Path) -> None:
    text = "def go(kept, x):\n    part = x.split(1)[0]\n    kept.append(part)\n"
    filename = source(tmp_path, text)
    assert filled_at(filename, "kept", view=True) == 2
    text = "def go(kept, x):\n    out, past = run(x)\n    kept.append(past)\n"
    filename = source(tmp_path, text)
    assert filled_at(filename, "kept", view=True) == 3


@pytest.mark.parametrize(
    ("name", "at", "expected"),
    [
        ("total", "run(y)", "total = total + x"),
        ("total", "state = 1", "total, state = 0"),
        ("state", "run(y)", "state = x"),
    ],
)
def test_a_sum_in_a_loop_was_last_bound_by_the_round_before(
    tmp_path: Path, name: str, at: str, expected: str
) -> None:
    filename = source(tmp_path, LOOP)
    line = assigned_in_function(filename, name, line_of(filename, at))
    assert line == line_of(filename, expected)


@pytest.mark.parametrize(
    ("condition", "line"), [("SWITCH and x", 4), ("x or not SWITCH", 2), ("SWITCH or x", 2)]
)
def test_conditions_on_switches_are_worked_out_as_far_as_they_go(
    condition: str, line: int, tmp_path: Path
) -> None:
    text = f"def go(k, x):\n    if {condition}: k.append(x)\n    else:\n        k.append(x)\n"
    filename = source(tmp_path, text)
    module = types.ModuleType("program")
    module.__file__ = filename
    vars(module)["SWITCH"] = False
    sys.modules["program"] = module
    try:
        assert filled_at(filename, "k") == line
    finally:
        del sys.modules["program"]


def test_a_number_that_a_switch_takes_away_is_a_tensor(tmp_path: Path) -> None:
    text = "SWITCH = False\nkept.append(x.item() if SWITCH else x)\nkept.append(2)\n"
    filename = source(tmp_path, text)
    assert filled_at(filename, "kept") == 2


def test_a_parameter_points_back_and_self_does_so_surely(tmp_path: Path) -> None:
    text = (
        "class Net:\n    def __init__(self, blocks, name):\n        self.blocks = blocks\n"
        "        for block in blocks:\n            block.owner = self\n"
        "        object.__setattr__(self, 'parent', name)\n"
    )
    filename = source(tmp_path, text)
    assert passed_at(filename, ".owner", own=True) == 5
    assert passed_at(filename, ".blocks", own=True) == 0
    assert passed_at(filename, ".blocks", own=False) == 3
    assert passed_at(filename, ".parent", own=False) == 6


def test_a_module_list_grows_outside_of_init_only(tmp_path: Path) -> None:
    text = (
        "class Net:\n    def __init__(self):\n        self.heads.append(Linear())\n"
        "    def forward(self, x):\n        self.tails.append(Linear())\n        cycle(x)\n"
    )
    filename = source(tmp_path, text)
    assert grown_at(filename, ".heads") == 0
    assert grown_at(filename, ".tails") == 5
    assert called_at(filename, "cycle") == 6


def test_of_lines_that_bind_a_name_the_one_that_goes_on_with_its_value_is_told(
    tmp_path: Path,
) -> None:
    filename = source(
        tmp_path,
        "net = base()\nfor task in tasks:\n    net = net.train()\n    net = Wrapped(net)\n"
        "class Run:\n    def __init__(self):\n        self.net = base()\n"
        "    def grow(self):\n        self.net = Wrapped(self.net)\n",
    )
    assert filled_at(filename, "net") == 4
    assert filled_at(filename, ".net") == 9


@pytest.mark.parametrize("target", ["mems", "logits, mems", "(mems, logits)"])
def test_a_state_that_is_made_of_itself_is_told_at_the_line_that_makes_it(
    tmp_path: Path, target: str
) -> None:
    text = (
        "def go(model, chunks):\n    mems, total = model.init(), 0\n"
        f"    for x in chunks:\n        {target} = model(x, mems)\n"
    )
    assert filled_at(source(tmp_path, text), "mems") == 4


def test_a_key_in_a_comment_is_no_key_of_the_line(tmp_path: Path) -> None:
    text = 'h["val"].append(y)  # not h["train"]\nh["train_old"].append(z)\nh["train"].append(x)\n'
    assert filled_at(source(tmp_path, text), "h", keys=["'train'"]) == 3
    text = "rows.append({'val': x})  # 'train'\nrows.append({'train': [y]})\nrows.append(z)\n"
    assert filled_at(source(tmp_path, text), "rows", keys=["'train'"]) == 2


def test_a_name_in_a_comment_carries_nothing_on(tmp_path: Path) -> None:
    text = "for x in xs:\n    net = base()  # of net\n    net = (\n        Wrapped(net)\n    )\n"
    assert filled_at(source(tmp_path, text), "net") == 3


def test_what_a_record_has_below_a_key_is_filled_whatever_the_records_name(tmp_path: Path) -> None:
    path = tmp_path / "tracker.py"
    path.write_text(
        'def begin():\n    return {"frames": {}}\n'
        'def track(memory, n, out):\n    memory["frames"][n] = out\n    memory["frames"] = {}\n'
    )
    assert filled_below(str(path), "frames") == 4
    assert filled_below(str(path), "other") == 0


def test_a_table_is_filled_by_what_runs_again_and_not_by_init(tmp_path: Path) -> None:
    path = tmp_path / "names.py"
    path.write_text(
        "class Names:\n    def __init__(self, model):\n        self.name[model] = model\n"
        '    def hook(self, output):\n        self.name[output] = f"{output}"\n'
    )
    assert filled_at(str(path), ".name") == 3  # of values: a text is no tensor
    assert filled_at(str(path), ".name", as_key=True) == 5


def test_another_functions_variable_of_that_name_is_another_one(tmp_path: Path) -> None:
    filename = source(
        tmp_path,
        "def extract(loader):\n"
        "    features, targets = [], []\n"
        "    for x, y in loader:\n"
        "        features.append(x.cpu())\n"
        "    return features, targets\n\n"
        "def main(loader):\n"
        "    features, targets = extract(loader)\n",
    )
    assert filled_at(filename, "features", function="extract") == line_of(filename, "append")
    assert filled_at(filename, "features", function="main") == line_of(
        filename, "= extract(loader)"
    )


def test_what_is_moved_to_the_host_fills_a_container_that_was_begun_empty(tmp_path: Path) -> None:
    filename = source(
        tmp_path,
        "class Monitor:\n"
        "    def __init__(self):\n"
        "        self.outputs = defaultdict(list)\n"
        "    def hook(self, name, output):\n"
        "        self.outputs[name].append(output.detach().cpu())\n",
    )
    assert filled_at(filename, ".outputs") == line_of(filename, ".cpu()")
    with_both = source(
        tmp_path,
        "class Monitor:\n"
        "    def first(self, output):\n"
        "        self.outputs.append(output.cpu())\n"
        "    def second(self, output):\n"
        "        self.outputs.append(output)\n",
    )
    assert filled_at(with_both, ".outputs") == line_of(with_both, "append(output)")


def test_of_two_hooks_of_one_name_each_is_registered_by_its_own_function(tmp_path: Path) -> None:
    text = """class Tracer:
    def recorder_of(self, store):
        def hook(module, inputs, output):
            store.append(output)
        return hook
    def patched(self, block):
        def hook(module, inputs, output):
            return output
        handle = block.register_forward_hook(hook)
    def record(self, block, store):
        block.register_forward_hook(self.recorder_of(store))
"""
    filename = source(tmp_path, text)
    assert registered_at(filename, "Tracer.recorder_of.hook") == 11
    assert registered_at(filename, "Tracer.patched.hook") == 9
    assert registered_at(filename, "hook") == 9
    assert registered_at(filename, "Tracer.other.hook") == 9
    assert registered_at(filename, "Tracer.other") == 0
