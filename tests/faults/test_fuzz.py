"""A sample of `make fuzz` in every test run: what is wrong is refused with sentences, and nothing is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fuzz import WRONG, project, verdict
from fuzz_wrong import Wrong
from hypothesis import HealthCheck, Phase, given, settings

from grpolab.quantities import LABELS, QUANTITIES
from grpolab.report import figures
from grpolab.report.stability import run_quantities
from grpolab.vocabulary import ANALYTIC_FIGURES, COMPLETED, FIGURES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with project(tmp_path_factory.mktemp("fuzz")) as made:
        yield made


@settings(
    max_examples=150,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # what it finds is short already
    suppress_health_check=[HealthCheck.too_slow],
)
@given(wrong=WRONG)
def test_what_is_wrong_is_refused(wrong: Wrong, folder: Path) -> None:
    assert verdict(wrong, folder) in ("refused", "valid")


def test_a_study_may_name_what_the_report_can_draw_and_measure() -> None:
    """Known before anything starts, not after hours of training; the rooms share only the vocabulary."""
    assert set(FIGURES) == set(figures.FIGURES)
    assert set(ANALYTIC_FIGURES) <= set(FIGURES)
    nothing = pd.DataFrame({"rollout_step": [], "iteration": []})
    found = run_quantities(np.empty(0), nothing, nothing, COMPLETED, 1, {})
    assert set(QUANTITIES) == set(found)
    assert set(LABELS) == {name for name, value in found.items() if isinstance(value, bool)}
