"""What is drawn and said of finished runs: the page of a study, the assessment of its runs, its preconditions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpolab.errors import RequestError
from grpolab.paths import Results, write_csv_atomic
from grpolab.terminal import say

if TYPE_CHECKING:
    from grpolab.report.load import StudyRuns

# Report and doctor are imported where they are needed: the command that trains must not wait for pandas.


def draw_all(results: Results, study: str) -> None:
    """Figures, tables and report of a study, with the screen that it begins with printed at the end."""
    from grpolab.doctor.assessment import assess
    from grpolab.doctor.section import section
    from grpolab.report import page

    def diagnosis(studies: Sequence[StudyRuns]) -> str:
        assess(results, studies)
        return section(studies)

    ensure_geometry(results)
    page.write(results, study, say, diagnosis)


def assess_runs(results: Results, study: str) -> None:
    """Write down what report and doctor say of a study's runs, for the tracking store; without drawing anything."""
    from grpolab.doctor.assessment import assess
    from grpolab.report.load import load

    try:
        assess(results, load(results, study))
    except RequestError as error:  # the runs must not be compared; what is written is not more wrong than before
        say(f"{study}: no run is assessed: {error}")


def unmet(results: Results, study: str) -> list[str]:
    """What of a study's preconditions its runs do not meet; nothing of runs that must not be compared."""
    from grpolab.report.regimes import unmet_of

    try:
        return unmet_of(results, study)
    except RequestError:
        return []


def ensure_geometry(results: Results) -> None:
    """The tables behind the analytic figures: reports read files, and only `run` can compute these."""
    if results.geometry.exists() and results.surface.exists():
        return
    from grpolab.report import surrogate_tables

    write_csv_atomic(results.geometry, surrogate_tables.curve_table())
    write_csv_atomic(results.surface, surrogate_tables.surface_table())
