"""A sample of `make test-all WHAT=fuzz`: wrong requests and spoilt folders are refused with sentences."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fuzz import project, spoilt, verdicts
from fuzz_folders import KINDS, Template, trained
from fuzz_overrides import BREAKERS, Breaker
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from grpolab.quantities import LABELS, QUANTITIES, Thresholds
from grpolab.report import figures
from grpolab.report.stability import journal_quantities, score_quantities
from grpolab.vocabulary import ANALYTIC_FIGURES, COMPLETED, FIGURES


@pytest.mark.slow
def test_what_is_wrong_is_refused(tmp_path: Path) -> None:
    with project(tmp_path) as folder:
        found = verdicts(150, 0, folder)
    assert len(found) > 100
    assert {wrong.arguments: says for wrong, says in found.items() if says not in ("refused", "valid")} == {}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    with trained(tmp_path_factory.mktemp("spoilt")) as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_a_spoilt_folder_is_refused_or_read_within_bounds(kind: str, template: Template) -> None:
    found = spoilt(kind, 4, 0, template)
    assert len(found) > 2
    assert {case: says for case, (says, _) in found.items() if says != "fine"} == {}


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
    found = score_quantities(np.empty(0), COMPLETED, 1, Thresholds())
    found |= journal_quantities(nothing, nothing, {}, Thresholds())
    assert set(QUANTITIES) == set(found)
    known = {"lost", "collapsed", "diverged", "stopped", "below_start"}  # of a run without a record; the others are not
    assert {name for name, value in found.items() if isinstance(value, bool)} == known <= set(LABELS)
