"""Every command prints JSON in one way: the same text for any terminal, and for any file's name."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from memprof.testing import TraceBuilder, write_run
from memprof_cli import main

MIB = 1 << 20
NOT_UTF8 = os.fsdecode(b"run-\xff\xfe.json")


def recorded(folder: Path) -> Path:
    builder = TraceBuilder()
    builder.alloc(20 * MIB, "kept")
    builder.oom(64 * MIB, device_free=4 * MIB)
    plain = write_run(folder / "run.json", builder.build())
    return plain.rename(folder / NOT_UTF8)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems know no such names")
@pytest.mark.parametrize(
    "command",
    [["report", "--no-page"], ["leaks"], ["oom"], ["what-if"], ["replay"]],
    ids=lambda words: words[0],
)
def test_a_name_that_is_no_utf8_is_printed_and_read_back(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, str(recorded(tmp_path)), "--json"])
    assert not ended.value.code
    text = capsys.readouterr().out
    assert text.isascii()
    assert text.startswith('{\n  "')
    result = json.loads(text)
    assert all(str(result.get(name, NOT_UTF8)).endswith(NOT_UTF8) for name in ("file", "source"))
