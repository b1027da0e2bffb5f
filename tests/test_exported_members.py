"""What memprof exports is what it lists, no more and no less."""

from __future__ import annotations

import inspect

import memprof


def test_every_listed_name_is_there():
    assert [name for name in memprof.__all__ if not hasattr(memprof, name)] == []


def test_every_public_name_is_listed():
    public = {
        name
        for name in dir(memprof)
        if not name.startswith("_")
        and name != "annotations"
        and not inspect.ismodule(getattr(memprof, name))
    }
    assert public == {name for name in memprof.__all__ if not name.startswith("__")}


def test_the_list_is_sorted_and_has_no_name_twice():
    assert list(memprof.__all__) == sorted(set(memprof.__all__))


def test_everything_public_says_what_it_is():
    undocumented = [
        name
        for name in memprof.__all__
        if callable(getattr(memprof, name)) and not inspect.getdoc(getattr(memprof, name))
    ]
    assert undocumented == []
