"""Mechanical changes of a source file as unified diffs; nothing is reformatted."""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass

from memprof.source_code.parse import syntax_tree
from memprof.source_code.program import Program, lines_of

__all__ = [
    "Edit",
    "after",
    "before",
    "diff",
    "edited",
    "patched_file",
    "removed",
    "replaced",
    "unified",
    "with_import",
    "with_keyword",
    "within",
    "without_keyword",
    "wrapped",
]


_UNENDED = "\n\\ No newline at end of file\n"


@dataclass(frozen=True, slots=True)
class Edit:
    """Text in place of what lies between two positions; columns count UTF-8 bytes, as in `ast`."""

    line: int
    column: int
    end_line: int
    end_column: int
    text: str


def replaced(node: ast.expr | ast.stmt, text: str) -> Edit:
    """An expression or a statement, replaced."""
    end_line, end_column = node.end_lineno, node.end_col_offset
    assert end_line is not None
    assert end_column is not None
    return Edit(node.lineno, node.col_offset, end_line, end_column, text)


def wrapped(node: ast.expr, suffix: str) -> list[Edit]:
    """An expression with a suffix such as ``.detach()``, in parentheses where it needs them."""
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    plain = isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call))
    end = Edit(node.end_lineno, node.end_col_offset, node.end_lineno, node.end_col_offset,
               suffix if plain else ")" + suffix)  # fmt: skip
    start = Edit(node.lineno, node.col_offset, node.lineno, node.col_offset, "(")
    return [end] if plain else [start, end]


def with_keyword(call: ast.Call, name: str, value: str) -> Edit | None:
    """A call with a keyword argument set, or added as the last; None where it may be there unseen.

    Nor where a bare generator must stay the only argument.
    """
    for keyword in call.keywords:
        if keyword.arg == name:
            return replaced(keyword.value, value)
    if any(keyword.arg is None for keyword in call.keywords):
        return None
    last = max(
        [*call.args, *(k.value for k in call.keywords)],
        key=lambda n: (n.end_lineno or 0, n.end_col_offset or 0),
        default=None,
    )
    assert call.end_lineno is not None
    assert call.end_col_offset is not None
    if last is None:
        return Edit(call.end_lineno, call.end_col_offset - 1, call.end_lineno,
                    call.end_col_offset - 1, f"{name}={value}")  # fmt: skip
    if isinstance(last, ast.GeneratorExp) and not call.keywords and len(call.args) == 1:
        return None
    assert last.end_lineno is not None
    assert last.end_col_offset is not None
    return Edit(last.end_lineno, last.end_col_offset, last.end_lineno, last.end_col_offset,
                f", {name}={value}")  # fmt: skip


def without_keyword(call: ast.Call, name: str) -> Edit | None:
    """A call without a keyword argument; None where it has none."""
    parts: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    parts.sort(key=lambda n: (n.lineno, n.col_offset))
    for at, part in enumerate(parts):
        if not isinstance(part, ast.keyword) or part.arg != name:
            continue
        assert part.end_lineno is not None
        assert part.end_col_offset is not None
        if at:
            previous = parts[at - 1]
            assert previous.end_lineno is not None
            assert previous.end_col_offset is not None
            return Edit(previous.end_lineno, previous.end_col_offset, part.end_lineno,
                        part.end_col_offset, "")  # fmt: skip
        if len(parts) > 1:
            right = parts[1]
            return Edit(part.lineno, part.col_offset, right.lineno, right.col_offset, "")
        return Edit(part.lineno, part.col_offset, part.end_lineno, part.end_col_offset, "")
    return None


def before(program: Program, line: int, text: str) -> Edit:
    """A new line above ``line``, indented like it."""
    return Edit(line, 0, line, 0, _indent(program, line) + text + "\n")


def after(program: Program, statement: ast.stmt, text: str) -> Edit:
    """A new line below a statement, indented like it."""
    line = (statement.end_lineno or statement.lineno) + 1
    return Edit(line, 0, line, 0, _indent(program, statement.lineno) + text + "\n")


def within(program: Program, statement: ast.stmt, header: str) -> Edit | None:
    """A statement in a block of its own: ``with torch.no_grad():`` above it, and it indented.

    None where a text of several lines is in it, which indenting would change.
    """
    texts = (one for one in ast.walk(statement) if isinstance(one, (ast.Constant, ast.JoinedStr)))
    if any(one.end_lineno != one.lineno for one in texts):
        return None
    indent = _indent(program, statement.lineno)
    last = statement.end_lineno or statement.lineno
    lines = program.lines[statement.lineno - 1 : last]
    step = "\t" if indent.startswith("\t") else "    "
    whole = [line.rstrip("\r\n") for line in lines]
    text = "".join(f"{step}{line}\n" if line.strip() else "\n" for line in whole)
    return Edit(statement.lineno, 0, last + 1, 0, f"{indent}{header}\n{text}")


def with_import(program: Program, module: str) -> list[Edit] | None:
    """What imports a module in a file: nothing where it does; None where there is no place."""
    imports = [n for n in program.tree.body if isinstance(n, (ast.Import, ast.ImportFrom))]
    if any(a.name == module for n in imports if isinstance(n, ast.Import) for a in n.names):
        return []
    plain = [n for n in imports if not (isinstance(n, ast.ImportFrom) and n.module == "__future__")]
    return [after(program, plain[0], f"import {module}")] if plain else None


def removed(program: Program, statement: ast.stmt) -> Edit:
    """No such statement; ``pass`` where its block would be empty."""
    last = statement.end_lineno or statement.lineno
    if _is_alone(program, statement):
        return replaced(statement, "pass")
    return Edit(statement.lineno, 0, last + 1, 0, "")


def _is_alone(program: Program, statement: ast.stmt) -> bool:
    for node in program.nodes:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and statement in block:
                return len(block) == 1
    return True


def _indent(program: Program, line: int) -> str:
    text = program.code(line)
    return text[: len(text) - len(text.lstrip())]


def edited(program: Program, edits: list[Edit]) -> str:
    """The text of the file with all edits made; they must not overlap."""
    lines = [line.encode() for line in lines_of(program.text)]
    newline = b"\r\n" if lines and lines[0].endswith(b"\r\n") else b"\n"
    below = any(edit.line > len(lines) for edit in edits)
    if lines and below and not lines[-1].endswith(b"\n"):
        lines[-1] += newline
    lines.append(b"")
    # From the end of the file, so that positions before an edit stay true.
    for edit in sorted(edits, key=lambda e: (e.line, e.column), reverse=True):
        head = lines[edit.line - 1][: edit.column]
        tail = lines[edit.end_line - 1][edit.end_column :]
        whole = head + edit.text.encode().replace(b"\n", newline) + tail
        lines[edit.line - 1 : edit.end_line] = [whole]
    return b"".join(lines).decode()


def diff(program: Program, *edits: Edit | None) -> str:
    """The edits as a unified diff; empty where one is missing or the result does not parse.

    Empty as well where an edit touches a line with more than one statement, or with a compound
    statement and its body: the recording knows lines, so the other may be meant. And of an excerpt.
    """
    complete = [edit for edit in edits if edit is not None]
    if (
        not complete
        or len(complete) < len(edits)
        or program.is_excerpt
        or _is_crowded(program, complete)
    ):
        return ""
    text = edited(program, complete)
    if syntax_tree(text) is None:
        return ""
    return unified(program.text, text, program.filename, program.filename)


def patched_file(patch: str) -> str:
    """The name of the file that a diff of `diff` changes; empty for no patch."""
    return patch.partition("\n")[0].removeprefix("--- ").removesuffix("\t")


def unified(old: str, new: str, old_name: str, new_name: str) -> str:
    """Two texts as a unified diff that `git apply` takes; empty where it would see other lines.

    To `git` a carriage return alone does not end a line.
    """
    if "\r" in (old + new).replace("\r\n", ""):
        return ""
    old_lines, new_lines = lines_of(old), lines_of(new)
    # A name with blanks ends at a tab, as GNU diff writes it.
    old_name, new_name = (f"{name}\t" if " " in name else name for name in (old_name, new_name))
    lines = difflib.unified_diff(old_lines, new_lines, old_name, new_name)
    return "".join(line if line.endswith("\n") else line + _UNENDED for line in lines)


def _is_crowded(program: Program, edits: list[Edit]) -> bool:
    """True if a line that an edit touches has other code than one statement, or a part of one."""
    touched = {line for edit in edits for line in _lines_of(edit)}
    lines = [line.encode() for line in lines_of(program.text)]
    for node in program.nodes:
        if not isinstance(node, ast.stmt):
            continue
        if node.lineno in touched and lines[node.lineno - 1][: node.col_offset].strip():
            return True
        if node.end_lineno in touched and not hasattr(node, "body"):
            rest = lines[node.end_lineno - 1][node.end_col_offset :].strip()
            if rest and not rest.startswith(b"#"):
                return True
    return False


def _lines_of(edit: Edit) -> range:
    """The lines that an edit changes, and for one that begins or ends between lines both."""
    between = edit.column == 0 and edit.text.endswith("\n")
    whole = edit.end_column == 0 and edit.end_line > edit.line
    return range(edit.line - between, edit.end_line + (not whole))
