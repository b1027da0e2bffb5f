"""What the tests on a GPU share: the sources that a test records with."""

from __future__ import annotations

import pytest


@pytest.fixture(params=[("cuda",), None], ids=["cuda", "default"])
def sources(request):
    """CUDA's source alone, and what everybody gets who asks for nothing."""
    return request.param
