from __future__ import annotations

import ast

import pytest

from memprof.source_code.patch import (
    after,
    before,
    diff,
    edited,
    removed,
    replaced,
    with_keyword,
    without_keyword,
    wrapped,
)
from memprof.source_code.program import calls_in, program_of


def program(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(text)
    found = program_of(str(path))
    assert found is not None
    return found


def test_only_what_an_edit_says_changes_and_comments_stay(tmp_path):
    made = program(tmp_path, "total  =  total+loss   # kept\nprint( total )\n")
    value = made.tree.body[0].value.right
    assert edited(made, wrapped(value, ".item()")) == (
        "total  =  total+loss.item()   # kept\nprint( total )\n"
    )


def test_a_sum_gets_parentheses_before_a_suffix(tmp_path):
    made = program(tmp_path, "kept = a + b\n")
    assert (
        edited(made, wrapped(made.tree.body[0].value, ".detach()")) == "kept = (a + b).detach()\n"
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f()\n", "f(k=1)\n"),
        ("f(a)\n", "f(a, k=1)\n"),
        ("f(a, k=2)\n", "f(a, k=1)\n"),
        ("f(a,\n  b,\n)\n", "f(a,\n  b, k=1,\n)\n"),
        ("f('ä', b)\n", "f('ä', b, k=1)\n"),
    ],
)
def test_a_keyword_is_set_or_added(tmp_path, text, expected):
    made = program(tmp_path, text)
    (call,) = calls_in(made.tree, "f")
    assert edited(made, [with_keyword(call, "k", "1")]) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("f(k=1)\n", "f()\n"),
        ("f(a, k=1)\n", "f(a)\n"),
        ("f(k=1, j=2)\n", "f(j=2)\n"),
        ("f(a, k=1, j=2)\n", "f(a, j=2)\n"),
    ],
)
def test_a_keyword_is_taken_out(tmp_path, text, expected):
    made = program(tmp_path, text)
    (call,) = calls_in(made.tree, "f")
    assert edited(made, [without_keyword(call, "k")]) == expected


def test_there_is_no_diff_where_the_keyword_is_not_there(tmp_path):
    made = program(tmp_path, "f(a)\n")
    (call,) = calls_in(made.tree, "f")
    assert diff(made, without_keyword(call, "k")) == ""


def test_lines_are_added_with_the_indentation_of_their_neighbour(tmp_path):
    made = program(tmp_path, "if a:\n    b = 1\n    c = 2\n")
    statement = made.tree.body[0].body[0]
    text = edited(made, [before(made, 2, "x = 0"), after(made, statement, "y = 0")])
    assert text == "if a:\n    x = 0\n    b = 1\n    y = 0\n    c = 2\n"


def test_a_removed_statement_leaves_pass_where_the_block_would_be_empty(tmp_path):
    made = program(tmp_path, "for x in y:\n    f()\ng()\n")
    loop, call = made.tree.body
    assert edited(made, [removed(made, loop.body[0])]) == "for x in y:\n    pass\ng()\n"
    assert edited(made, [removed(made, call)]) == "for x in y:\n    f()\n"


def test_a_diff_that_would_not_parse_is_not_offered(tmp_path):
    made = program(tmp_path, "a = b\n")
    assert diff(made, replaced(made.tree.body[0].value, "b +")) == ""


def test_a_diff_names_the_file_and_shows_three_lines_around(tmp_path):
    made = program(tmp_path, "".join(f"x{n} = {n}\n" for n in range(9)))
    text = diff(made, replaced(made.tree.body[4].value, "44"))
    lines = text.splitlines()
    assert lines[0] == f"--- {made.filename}"
    assert lines[1] == f"+++ {made.filename}"
    assert lines[2] == "@@ -2,7 +2,7 @@"
    assert lines[6:8] == ["-x4 = 4", "+x4 = 44"]
    ast.parse(edited(made, [replaced(made.tree.body[4].value, "44")]))


def test_a_file_without_a_last_newline_can_be_patched(tmp_path):
    made = program(tmp_path, "a = b")
    assert "+a = c\n" in diff(made, replaced(made.tree.body[0].value, "c"))


@pytest.mark.parametrize(
    ("text", "touched"),
    [
        ("names.append(n); losses.append(x)\n", 1),
        ("n = 1; losses.append(x)\n", 1),
        ("losses.append(x); \\\n  n\n", 1),
        ("if a: losses.append(x)\n", 1),
        ("for x in y: losses.append(x)\n", 1),
        ("try: losses.append(x)\nfinally: f()\n", 1),
        ("if a:\n    b\nelse: losses.append(x)\n", 3),
        ("match a:\n    case 1: losses.append(x)\n", 2),
    ],
)
def test_a_line_with_more_than_one_statement_is_not_patched(tmp_path, text, touched):
    made = program(tmp_path, text)
    (call,) = calls_in(made.tree, "append")[-1:]
    assert diff(made, *wrapped(call.args[0], ".detach()")) == ""
    assert diff(made, before(made, touched, "x = None")) == ""
    statement = made.place(call).statement
    assert diff(made, removed(made, statement)) == ""
    assert diff(made, after(made, statement, "x = None")) == ""


def test_a_comment_and_a_decorator_do_not_make_a_line_crowded(tmp_path):
    made = program(tmp_path, "@f\ndef g():\n    kept.append(x)  # kept; for now\n")
    (call,) = calls_in(made.tree, "append")
    assert diff(made, *wrapped(call.args[0], ".detach()"))
    assert "+@h\n @f\n" in diff(made, before(made, 1, "@h"))


def test_the_place_of_a_node_is_the_statement_that_it_stands_in(tmp_path):
    made = program(tmp_path, "f(a); g(b)\nif c: h(d)\n")
    for name in "fgh":
        (call,) = calls_in(made.tree, name)
        assert made.place(call).statement.value is call
    assert made.at(1).statement is made.tree.body[0]


@pytest.mark.parametrize("call", ["Adam(p for p in net)", "Adam(net, **options)"])
def test_a_keyword_is_not_added_where_it_may_stand_already_or_must_not(tmp_path, call):
    path = tmp_path / "job.py"
    path.write_text(f"opt = {call}\n")
    program = program_of(str(path))
    (node,) = calls_in(program.tree, "Adam")
    assert with_keyword(node, "foreach", "False") is None
    assert diff(program, with_keyword(node, "foreach", "False")) == ""
