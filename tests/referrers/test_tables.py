"""Holders and tensors print as tables, in a terminal and in a notebook."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="memprof.tensors() lists those of torch")

import torch

import memprof
from memprof.records import Holder
from memprof.referrers.tables import Holders, Tensors


def test_a_holder_is_a_line_with_its_name_and_its_source():
    kept = [torch.zeros(300, 300)]
    found = memprof.holders(kept[0])
    heads, first, *_ = str(found).splitlines()
    assert heads.split() == ["held", "by", "at", "source"]
    assert first.startswith("list `kept` (1 item")
    assert "test_tables.py:" in first
    assert found == tuple(found)  # it is the tuple that it was


def test_a_tensor_is_a_line_with_its_bytes_and_its_shape():
    kept = torch.zeros(1024, 1024, 3)
    found = memprof.tensors()
    line = next(line for line in repr(found).splitlines() if "1024×1024×3" in line)
    assert line.split()[:4] == ["12", "MiB", "cpu", "float32"]
    assert isinstance(found, list)
    assert kept.nbytes == found[0].storage_bytes or len(found) > 1


def test_a_notebook_shows_the_same_as_a_table_with_marks_spelt_out():
    found = Holders([Holder(filename="/x/<a>.py", line=3, code="kept[x] < 3")])
    shown = found._repr_html_()
    assert shown.startswith("<table><thead><tr><th>held by</th>")
    assert "kept[x] &lt; 3" in shown
    assert "x/&lt;a&gt;.py:3" in shown


def test_where_nothing_is_found_that_is_said():
    assert repr(Holders()) == "no holders were found"
    assert Tensors()._repr_html_() == "no tensors were found"


def test_of_many_the_first_are_shown_and_the_rest_counted():
    found = Holders([Holder()] * 50)
    assert repr(found).splitlines()[-1] == "and 10 more"
