"""A sample of `make test-all WHAT=fuzz`: what is wrong is refused with sentences, and nothing is started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fuzz import project, verdicts
from fuzz_overrides import BREAKERS, Breaker
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from grpolab.quantities import LABELS, QUANTITIES
from grpolab.report import figures
from grpolab.report.stability import run_quantities
from grpolab.vocabulary import ANALYTIC_FIGURES, COMPLETED, FIGURES


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with project(tmp_path_factory.mktemp("fuzz")) as made:
        yield made


def test_what_is_wrong_is_refused(folder: Path) -> None:
    found = verdicts(150, 0, folder)
    assert len(found) > 100
    assert {wrong.arguments: says for wrong, says in found.items() if says not in ("refused", "valid")} == {}


@pytest.mark.parametrize("breaker", BREAKERS, ids=lambda breaker: breaker.__name__)
def test_every_way_to_break_a_request_has_something_to_break(breaker: Breaker) -> None:
    """Whatever key is drawn, also one without a bound, a choice or a type."""

    @settings(
        max_examples=200,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),  # a busy machine draws slowly
    )
    @given(st.composite(breaker)())
    def draw(broken: tuple[list[str], list[str]]) -> None:
        overrides, names = broken
        assert overrides
        assert names

    draw()


def test_a_study_may_name_what_the_report_can_draw_and_measure() -> None:
    """Known before anything starts, not after hours of training; the rooms share only the vocabulary."""
    assert set(FIGURES) == set(figures.FIGURES)
    assert set(ANALYTIC_FIGURES) <= set(FIGURES)
    nothing = pd.DataFrame({"rollout_step": [], "iteration": []})
    found = run_quantities(np.empty(0), nothing, nothing, COMPLETED, 1, {})
    assert set(QUANTITIES) == set(found)
    known = {"lost", "collapsed", "diverged", "stopped", "below_start"}  # of a run without a record; the others are not
    assert {name for name, value in found.items() if isinstance(value, bool)} == known <= set(LABELS)
