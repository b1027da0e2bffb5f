"""Calls that may set an attribute by its name."""

from __future__ import annotations

import pytest

from memprof.source_code.attributes_by_name import attributes_by_name
from memprof.source_code.program import program_of

SOURCE = """
setattr(module, "scale", value)
setattr(module, f"avg_{name}", value)
setattr(module, "avg_" + name, value)
setattr(module, key, value)
module.setattr("scale", value, None)
"""


@pytest.mark.parametrize(
    ("name", "lines"),
    [("scale", [2]), ("avg_scale", [3, 4]), ("other", [5]), ("average", [5])],
)
def test_those_are_meant_that_write_most_of_the_name(name, lines, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(SOURCE)
    calls = attributes_by_name([program_of(str(file))], name)
    assert [place.line for _, place in calls] == lines
    assert [call.lineno for call, _ in calls] == lines
