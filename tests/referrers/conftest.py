"""What these tests keep by a variable of their module is made anew for each."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def kept_by_this_test(
    heap_of_one_test: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``KEPT`` is an object that the collector sees, as a program's variables are."""
    if hasattr(request.module, "KEPT"):
        monkeypatch.setattr(request.module, "KEPT", type(request.module.KEPT)())
