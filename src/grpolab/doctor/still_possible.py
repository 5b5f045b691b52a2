"""Of a run that fell, or that does not learn, without a cause found: which causes remain, and what would show each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpolab.doctor.causes import Finding
from grpolab.doctor.evidence import REWARD, Evidence
from grpolab.doctor.no_progress import FLAT_ROWS
from grpolab.framework_names import LOG_NAMES, LOG_ONLY
from grpolab.meanings import METRICS

MOST_NAMED = 5
# Causes that say what happened to a run and not why.
SYMPTOMS_ALONE = ("destroyed_policy", "plateau")
REWARD_ITSELF = "the reward itself"


@dataclass(frozen=True)
class Candidate:
    """A cause that may still be it."""

    cause: str
    show: str  # what would show it, in the words of the run's framework


def find_open(
    run: Evidence, findings: Sequence[Finding], fall: str | None, tables: Mapping[str, Any]
) -> tuple[Candidate, ...]:
    """Return the causes that remain, likeliest first; none if a cause was found, or if nothing is wrong.

    `tables`: `still_possible` and `to_log` of causes.yaml.
    """
    if any(one.confidence != "possible" and one.cause not in SYMPTOMS_ALONE for one in findings):
        return ()
    if run.lost or fall:
        symptom = "fell"
    elif run.reward_went == "nowhere" and len(run.values(REWARD)) >= FLAT_ROWS:
        symptom = "flat"
    else:
        return ()
    options = tables["to_log"].get(run.framework, {})
    found = {one.cause for one in findings}
    causes = [
        Candidate(cause, _how_to_see(run.framework, metrics, options))
        for cause, metrics in tables["still_possible"][symptom].items()
        if cause not in found and not any(len(run.values(metric)) for metric in metrics)
    ]
    return (*causes[: MOST_NAMED - 1], Candidate(REWARD_ITSELF, " ".join(_read_completions(run.framework, options))))


def _how_to_see(framework: str, metrics: Sequence[str], options: Mapping[str, str]) -> str:
    names: dict[str, str] = {}
    for theirs, ours in LOG_NAMES.get(framework, {}).items():
        names.setdefault(ours, theirs)
    for metric in sorted(metrics, key=lambda metric: metric not in options):
        if metric in names:
            return f"log {options.get(metric, '{name}').format(name=names[metric])}"
    if framework == "grpolab":
        return f"{metrics[0]} in the journal"
    meaning = LOG_ONLY.get(metrics[0]) or METRICS[metrics[0]].meaning
    return f"{framework} does not log it; compute {metrics[0]} ({meaning.rstrip('.')})"


def _read_completions(framework: str, options: Mapping[str, str]) -> Iterator[str]:
    yield "read completions of high and of low reward"
    yield f"({options['completions']})" if "completions" in options else "side by side"
    if framework in ("trl", "verl"):
        yield f"and check the settings: grpolab lint --from {framework} CONFIG"
