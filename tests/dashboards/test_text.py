"""Text that somebody else chose stays text, and one line, and visible."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memprof_dashboards.text import coded, escaped, visible

ANY_TEXT = st.text(st.characters(), max_size=600)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("a\u202eb", "a\\u202eb", id="right-to-left override"),
        pytest.param("a\u2066b\u2069", "a\\u2066b\\u2069", id="isolates"),
        pytest.param("a\u2028b", "a\\u2028b", id="line separator"),
        pytest.param("a\x00b\x1b[31m", "a\\x00b\\x1b[31m", id="controls"),
        pytest.param("a\udc80b", "a\\udc80b", id="lone surrogate"),
        pytest.param("a\r\n\tb", "a   b", id="line ends"),
        pytest.param("Größe 模型 🙂", "Größe 模型 🙂", id="other scripts stay"),
    ],
)
def test_what_cannot_be_seen_is_spelt_out(text: str, shown: str):
    assert visible(text) == shown


def test_a_long_name_keeps_its_two_ends():
    shown = visible("/home/" + "x" * 10_000 + "/model.py", 41)
    assert shown.startswith("/home/")
    assert shown.endswith("/model.py")
    assert len(shown) == 41


def test_markup_and_quotes_are_escaped():
    assert escaped("<b a='1' b=\"2\">&") == "&lt;b a=&#x27;1&#x27; b=&quot;2&quot;&gt;&amp;"


@given(ANY_TEXT)
def test_no_text_makes_markup_or_fails_to_be_written(text: str):
    shown = escaped(text)
    assert not set("<>\"'\n\r\u2028\u2029\u202e") & set(shown)
    shown.encode("utf-8")


def test_what_stands_between_backticks_is_code_and_a_lone_one_is_itself():
    assert coded("list `<b>` grows") == "list <code>&lt;b&gt;</code> grows"
    assert coded("a ` b") == "a ` b"
