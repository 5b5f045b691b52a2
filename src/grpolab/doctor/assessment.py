"""Write what report and doctor say of each run into a file; the tracking store copies it from there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from grpolab.doctor.section import causes_of, examined
from grpolab.paths import Results, write_json_atomic
from grpolab.report.load import StudyRuns
from grpolab.report.measures import stability_table

METRICS = ("final_score", "gain", "lost", "collapsed")
NOT_LOST, NONE_KNOWN = "no", "none known"


def assess(results: Results, studies: Sequence[StudyRuns]) -> None:
    """Write each study's file anew: numbers and words of every run with a result."""
    for study in studies:
        if not len(study.done) or not results.plan(study.name).is_file():  # nothing is tracked of what is committed
            continue
        runs: dict[str, dict[str, Any]] = {}
        found = examined(study, causes_of(study))
        for run, row in zip(found, stability_table(study).to_dict("records"), strict=True):
            numbers = {name: float(row[name]) for name in METRICS}
            runs[run.run] = {
                "metrics": {name: value for name, value in numbers.items() if math.isfinite(value)},
                "tags": {
                    "lost": run.lost or NOT_LOST,
                    "cause": run.cause or NONE_KNOWN,
                },
            }
        write_json_atomic(results.assessment(study.name), runs)
