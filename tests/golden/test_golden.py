"""What memprof says of a set of recordings is what it said before, to the byte."""

from __future__ import annotations

import pytest

from tests.golden.outputs import HERE, PAGES, changes, outputs, recordings

RECORDINGS = recordings()


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_output_is_as_before(name, monkeypatch):
    """Where a change is meant, `outputs.py` writes the expected texts anew; say why in the commit."""
    monkeypatch.setenv("COLUMNS", "110")
    texts = outputs(RECORDINGS[name], HERE / "recordings", pages=name in PAGES)
    assert {path.stem for path in (HERE / "expected" / name).iterdir()} == set(texts)
    assert "".join(changes(HERE / "expected" / name, texts)) == ""


def test_no_expected_output_is_of_a_recording_that_is_gone():
    assert {path.name for path in (HERE / "expected").iterdir()} == set(RECORDINGS)
