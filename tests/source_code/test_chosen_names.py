"""Which names the conditions around a statement of a loop let through."""

from __future__ import annotations

import ast

import pytest

from memprof.source_code.chosen_names import is_chosen
from memprof.source_code.program import program_of


def texts(expression):
    """Those that are written out."""
    nodes = ast.walk(expression)
    return [one.value for one in nodes if isinstance(one, ast.Constant)]


def chosen(tmp_path, body, text):
    file = tmp_path / "program.py"
    file.write_text(f"for name, part in net.named_children():\n    {body}\n")
    program = program_of(str(file))
    assert program is not None
    (call,) = (n for n in program.nodes if isinstance(n, ast.Call) and _is_freeze(n))
    place = program.place(call)
    assert place is not None
    return is_chosen(place, place.loop, "name", text, texts)


def _is_freeze(call):
    return isinstance(call.func, ast.Name) and call.func.id == "freeze"


@pytest.mark.parametrize(
    ("body", "text", "answer"),
    [
        ("freeze(part)", "head", True),
        ('if name == "head": freeze(part)', "head", True),
        ('if name != "head": freeze(part)', "head", False),
        ('if name in ("head", "norm"): freeze(part)', "norm", True),
        ('if name not in ("head", "norm"): freeze(part)', "norm", False),
        ('if "head" in name: freeze(part)', "lm_head", True),
        ('if not name.startswith("lm"): freeze(part)', "lm_head", False),
        ('if name.endswith(("head", "norm")): freeze(part)', "lm_head", True),
        ('if any(one in name for one in ["head", "norm"]): freeze(part)', "body", False),
        ('if all(one not in name for one in ["head", "norm"]): freeze(part)', "body", True),
        ('if name.split(".")[0] == "body": freeze(part)', "body.0", True),
        ('if name == "head": pass\n    else: freeze(part)', "head", False),
        ('if name == "head":\n        continue\n    freeze(part)', "head", False),
        ('if name == "head":\n        continue\n    freeze(part)', "body", True),
        ('if name == "head" or part.training: freeze(part)', "head", True),
        ('if name == "head" or part.training: freeze(part)', "body", None),
        ('if name == "head" and part.training: freeze(part)', "body", False),
        ("if isinstance(part, Linear): freeze(part)", "body", None),
        ("if name in chosen: freeze(part)", "body", None),
        ("if len(name) > 3: freeze(part)", "body", None),
    ],
)
def test_a_name_passes_the_conditions_or_not_or_it_is_unknown(body, text, answer, tmp_path):
    assert chosen(tmp_path, body, text) is answer
