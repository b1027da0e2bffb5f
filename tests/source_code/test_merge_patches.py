"""Diffs are applied by `git apply` itself."""

from __future__ import annotations

import subprocess

import pytest

from memprof.source_code.merge_patches import merged
from memprof.source_code.patch import after, before, diff, removed, replaced, wrapped
from memprof.source_code.program import calls_in, program_of


@pytest.fixture
def applied(tmp_path):
    """Writes bytes to a file, makes a diff of each list of edits, and lets git apply them all."""

    def applied(source, *changes, name="train.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(source)
        program = program_of(str(path))
        patch = merged([diff(program, *change(program)) for change in changes], tmp_path)
        (tmp_path / "fix.diff").write_bytes(patch.text.encode())
        if patch.text:
            command = ["git", "apply", "--whitespace=nowarn", "fix.diff"]
            done = subprocess.run(
                command, check=False, cwd=tmp_path, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
        return path.read_bytes(), patch

    return applied


def detached(name):
    """Edits that detach what every call of that name is given."""
    return lambda program: [
        edit for call in calls_in(program.tree, name) for edit in wrapped(call.args[0], ".detach()")
    ]


def value(text):
    return lambda program: [replaced(program.tree.body[0].value, text)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (b"a = b\nc = d\n", b"a = e\nc = d\n"),
        (b"a = b\r\nc = d\r\n", b"a = e\r\nc = d\r\n"),
        (b"a = b", b"a = e"),
        (b"a = b\nc = d", b"a = e\nc = d"),
        (b"a = b\r\nc = d", b"a = e\r\nc = d"),
        (b"\x0c\na = b\n\x0c\nc = d\n", b"\x0c\na = e\n\x0c\nc = d\n"),
    ],
    ids=["unix", "windows", "unended", "unended below", "unended windows", "form feed"],
)
def test_git_applies_a_diff_to_every_kind_of_line_end(applied, source, expected):
    assert applied(source, value("e"))[0] == expected


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
def test_characters_that_end_lines_only_in_unicode_do_not_shift_a_diff(applied, end):
    source = f"'{end}'\nkept.append(loss)\n".encode()
    assert applied(source, detached("append"))[0] == source.replace(b"loss", b"loss.detach()")


def test_a_carriage_return_alone_ends_a_line_to_python_and_not_to_git(applied):
    assert applied(b"a = b\rc = d\n", value("e"))[1].text == ""


def test_lines_are_added_and_removed_with_the_ends_of_the_file(applied):
    added, _ = applied(
        b"if a:\r\n    b = 1",
        lambda p: [before(p, 2, "x = 0"), after(p, p.tree.body[0].body[0], "y = 0")],
    )
    assert added == b"if a:\r\n    x = 0\r\n    b = 1\r\n    y = 0\r\n"
    gone, _ = applied(b"a = 1\nf()", lambda p: [removed(p, p.tree.body[1])])
    assert gone == b"a = 1\n"


BOTH = b"train.append(loss)\nvalid.push(loss)\n"


def test_patches_of_neighbouring_lines_are_one_diff(applied):
    text, patch = applied(BOTH, detached("append"), detached("push"))
    assert text == b"train.append(loss.detach())\nvalid.push(loss.detach())\n"
    assert (patch.patch_count, patch.left_out, patch.text.count("--- ")) == (2, 0, 1)


def test_a_patch_that_changes_the_same_line_in_another_way_is_left_out(applied):
    other = lambda program: [replaced(calls_in(program.tree, "append")[0].args[0], "1")]  # noqa: E731
    text, patch = applied(BOTH, detached("append"), other, detached("push"))
    assert text == b"train.append(loss.detach())\nvalid.push(loss.detach())\n"
    assert (patch.patch_count, patch.left_out) == (2, 1)


def test_the_same_patch_twice_and_the_same_line_of_two_patches_are_written_once(applied):
    def with_import(name):
        return lambda p: [after(p, p.tree.body[0], "import weakref"), *detached(name)(p)]

    source = b"import torch\n\n" + BOTH
    text, patch = applied(source, with_import("append"), with_import("append"), with_import("push"))
    assert text.count(b"import weakref\n") == 1
    assert text.count(b".detach()") == 2
    assert (patch.patch_count, patch.left_out) == (2, 0)


def test_a_line_that_is_added_beside_another_change_is_left_out(applied):
    def above(program):
        return [before(program, 2, "x = 0")]

    text, patch = applied(BOTH, detached("push"), above)
    assert text == BOTH.replace(b"push(loss)", b"push(loss.detach())")
    assert (patch.patch_count, patch.left_out) == (1, 1)


def test_distant_changes_are_hunks_of_one_diff(applied):
    source = b"train.append(x)\n" + b"pass\n" * 20 + b"valid.push(x)"
    text, patch = applied(source, detached("push"), detached("append"))
    assert text == source.replace(b"x", b"x.detach()")
    assert patch.text.count("@@ -") == 2


@pytest.mark.parametrize("name", ["my job.py", "sub/träin.py"])
def test_files_are_named_from_where_the_diff_is_applied(applied, name):
    text, patch = applied(b"a = b\n", value("c"), name=name)
    assert text == b"a = c\n"
    assert patch.text.startswith(f"--- a/{name}")


def test_a_file_elsewhere_is_named_by_its_whole_path(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("a = b\n")
    program = program_of(str(path))
    patch = diff(program, replaced(program.tree.body[0].value, "c"))
    (tmp_path / "sub").mkdir()
    assert merged([patch], tmp_path / "sub").text == patch
