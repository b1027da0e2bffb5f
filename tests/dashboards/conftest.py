"""A browser for the tests of the page, started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dashboards.browser import Browser


@pytest.fixture(scope="session")
def started(chromium: str) -> Iterator[Browser]:
    """A Chromium with the network off."""
    browser = Browser(chromium)
    yield browser
    browser.close()


@pytest.fixture
def browser(started: Browser) -> Browser:
    """The same, as if it were new: no complaint, a window of 1280 × 900, a light theme."""
    started.complaints.clear()
    started.resize(1280, 900)
    started.prefer("light")
    return started
