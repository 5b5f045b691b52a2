"""Draw the page of a study, assess its runs, check its preconditions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from grpolab.errors import RequestError
from grpolab.known_runs import KeptFile, content_sha256
from grpolab.paths import Results, write_text_atomic
from grpolab.terminal import say

if TYPE_CHECKING:
    from grpolab.report.load import StudyRuns

# Report and doctor are imported when they are needed: a command that trains must not wait for pandas.


def draw_all(results: Results, study: str) -> None:
    """Draw the figures, tables and report of a study, and print the report's first screen."""
    from grpolab.doctor.section import section
    from grpolab.look.page import application
    from grpolab.report import page, screen

    def diagnosis(studies: Sequence[StudyRuns]) -> str:
        _assess(results, study, studies, state)
        return section(studies)

    ensure_geometry(results)
    state = screen.state_of(results, study)
    page.write(results, study, say, diagnosis, partial(application, now=datetime.now(UTC)))


def assess_runs(results: Results, study: str) -> None:
    """Write what report and doctor say of a study's runs for the tracking store; draw nothing.

    It is there already if neither the files that it is from nor those that were written have changed since.
    """
    from grpolab.report.load import load
    from grpolab.report.screen import state_of

    try:
        state, known = state_of(results, study), _assessed(results, study).read()
        files = known.get("files", {})
        if known.get("state") != state or files != {name: content_sha256(results.assessment(name)) for name in files}:
            _assess(results, study, load(results, study), state)
    except RequestError as error:  # the runs must not be compared
        say(f"{study}: no run is assessed: {error}")


def _assess(results: Results, study: str, studies: Sequence[StudyRuns], state: str) -> None:
    from grpolab.doctor.section import assess

    assess(results, studies)
    files = {part.name: content_sha256(results.assessment(part.name)) for part in studies}
    _assessed(results, study).write({"state": state, "files": files})


def _assessed(results: Results, study: str) -> KeptFile:
    return KeptFile(results.screens / f"{study}.assessed")


def unmet(results: Results, study: str) -> list[str]:
    """Return the preconditions of a study that its runs do not meet; none if they must not be compared."""
    from grpolab.report.screen import state_of
    from grpolab.report.sentences import find_unmet_of

    try:
        kept, state = KeptFile(results.screens / f"{study}.unmet"), state_of(results, study)
        if (known := kept.read()).get("state") != state:
            known = {"state": state, "sentences": find_unmet_of(results, study)}
            kept.write(known)
        sentences: list[str] = known["sentences"]
        return sentences
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
