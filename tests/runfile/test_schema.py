"""docs/run-file.md is what the code says, and what it says works."""

from __future__ import annotations

import importlib.util
import re
import typing
from pathlib import Path

import msgspec
import pytest

from memprof import records
from memprof.testing import TraceBuilder, write_run

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "run-file.md"
KINDS = typing.get_args(records.Record)


def generator() -> typing.Any:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate_run_file.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date() -> None:
    made = generator().page()
    assert PAGE.read_text() == made, "run: python docs/generate_run_file.py"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.__name__))
def test_every_kind_and_every_field_of_it_is_in_the_page(kind: type[msgspec.Struct]) -> None:
    section = (
        PAGE.read_text().split(f"\n### `{kind.__struct_config__.tag}`\n")[1].split("\n### ")[0]
    )

    for name in kind.__struct_fields__:
        assert f"| `{name}` |" in section
    assert len(section.strip().splitlines()[0]) > 20


def test_every_part_of_a_record_is_in_the_page() -> None:
    found = {
        s for s in vars(records).values() if isinstance(s, type) and issubclass(s, msgspec.Struct)
    }
    for part in found - set(KINDS) - {msgspec.Struct}:
        assert f"\n### {part.__name__}\n" in PAGE.read_text()


def test_the_kinds_are_distinct_and_named_by_one_field() -> None:
    tags = [kind.__struct_config__.tag for kind in KINDS]
    assert len(set(tags)) == len(tags)
    assert {kind.__struct_config__.tag_field for kind in KINDS} == {"kind"}


def test_the_history_ends_with_the_version_that_is_written() -> None:
    major, minor = records.SCHEMA_VERSION
    history = PAGE.read_text().split("## History")[1].split("## Records")[0]
    assert re.findall(r"^- (\d+\.\d+) ", history, re.MULTILINE)[-1] == f"{major}.{minor}"


def test_the_page_reads_a_run_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run.json", TraceBuilder().alloc(1, "x").build())
    code = PAGE.read_text().split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "run-file.md", "exec"), {})

    kinds = ["header", "tables", "state", "trace", "state", "footer"]
    assert capsys.readouterr().out.split() == kinds
