"""All tests of tracking have a store."""

from __future__ import annotations

import pytest

from grpolab.paths import Results


@pytest.fixture
def results(tracked_results: Results) -> Results:
    """A results folder with an empty store."""
    return tracked_results
