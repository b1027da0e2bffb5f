"""Whether a program reads an attribute, by a dot or by another way."""

from __future__ import annotations

import pytest

from memprof.source_code.program import program_of
from memprof.source_code.unread_fields import is_field_read


@pytest.mark.parametrize(
    ("source", "is_read"),
    [
        ('attrgetter("early.grad", "late")(item)', True),
        ("attrgetter(name)(item)", True),
        ('attrgetter("earlier")(item)', False),
        ("match item:\n    case Item(early=value): print(value)", True),
        ("match item:\n    case Item(value): print(value)", True),
        ("match item:\n    case Item(late=value): print(value)", False),
        ("print(item.early)", True),
        ("print(item.late)", False),
    ],
)
def test_attributes_are_read_by_getters_and_patterns(source, is_read, tmp_path):
    file = tmp_path / "program.py"
    file.write_text(source)
    assert is_field_read([program_of(str(file))], "early") is is_read
