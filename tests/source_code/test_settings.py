"""What a setting may be that a call is given."""

from __future__ import annotations

import ast

import pytest

from memprof.source_code.program import calls_in, program_of
from memprof.source_code.settings import may_be_true, meanings


def setting(tmp_path, text):
    """The one argument of the call of ``use``, with its place and the files."""
    path = tmp_path / "train.py"
    path.write_text(text)
    program = program_of(str(path))
    (call,) = calls_in(program.tree, "use")
    return program.place(call), call.keywords[0].value, [program]


FIELD = "class C:\n    deep: bool = {}\n\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("use(x=True)", True),
        ("use(x=1)", True),
        ("use(x=False)", False),
        ("use(x=anything())", False),
        ("use(x=not False)", True),
        ("use(x=bool(2))", True),
        ("deep = True\nuse(x=deep)", True),
        ("deep = True\nother = deep\nuse(x=not other)", False),
        (f"{FIELD.format(True)}use(x=settings.deep)", True),
        (f"{FIELD.format(False)}use(x=settings.deep)", False),
        (f"{FIELD.format(False)}settings = C(deep=True)\nuse(x=settings.deep)", True),
        (f"{FIELD.format('field(default=True)')}use(x=settings.deep)", True),
        ("def f(deep=True):\n    use(x=deep)", True),
        ("def f(deep=False):\n    use(x=deep)", False),
        ("def f(a, deep=False):\n    use(x=deep)\n\nf(1, True)", True),
        ("def f(*, deep=False):\n    use(x=deep)\n\nf(deep=True)", True),
        ("class A:\n    def __init__(self, deep):\n        use(x=deep)\n\nA(True)", True),
    ],
)
def test_whether_a_setting_is_written_as_true_somewhere(text, expected, tmp_path):
    place, value, programs = setting(tmp_path, text)
    assert may_be_true(place, value, programs) is expected


def test_a_name_that_nothing_binds_stands_for_itself(tmp_path):
    place, value, programs = setting(tmp_path, "use(x=torch.float64)")
    assert [(at, ast.unparse(one)) for at, one in meanings(place, value, programs)] == [
        (place, "torch.float64")
    ]


def test_names_that_stand_for_one_another_end(tmp_path):
    place, value, programs = setting(tmp_path, "a = b\nb = a\nuse(x=a)")
    assert not may_be_true(place, value, programs)
