"""Draw the page of a study, assess its runs, check its preconditions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from grpolab.errors import RequestError
from grpolab.paths import Results, write_text_atomic
from grpolab.terminal import say

if TYPE_CHECKING:
    from grpolab.report.load import StudyRuns

# Report and doctor are imported when they are needed: a command that trains must not wait for pandas.


def draw_all(results: Results, study: str) -> None:
    """Draw the figures, tables and report of a study, and print the report's first screen."""
    from grpolab.doctor.section import assess, section
    from grpolab.look.page import application
    from grpolab.report import page

    def diagnosis(studies: Sequence[StudyRuns]) -> str:
        assess(results, studies)
        return section(studies)

    ensure_geometry(results)
    page.write(results, study, say, diagnosis, partial(application, now=datetime.now(UTC)))


def assess_runs(results: Results, study: str) -> None:
    """Write what report and doctor say of a study's runs for the tracking store; draw nothing."""
    from grpolab.doctor.section import assess
    from grpolab.report.load import load

    try:
        assess(results, load(results, study))
    except RequestError as error:  # the runs must not be compared
        say(f"{study}: no run is assessed: {error}")


def unmet(results: Results, study: str) -> list[str]:
    """Return the preconditions of a study that its runs do not meet; none if they must not be compared."""
    from grpolab.report.sentences import find_unmet_of

    try:
        return find_unmet_of(results, study)
    except RequestError:
        return []


def ensure_geometry(results: Results) -> None:
    """Make the tables behind the analytic figures unless they exist."""
    if results.geometry.exists() and results.surface.exists():
        return
    import pandas as pd

    from grpolab.report.surrogate_tables import curve_table, surface_table

    for file, rows in {results.geometry: curve_table(), results.surface: surface_table()}.items():
        write_text_atomic(file, pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))
