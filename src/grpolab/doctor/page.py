"""A diagnosis: the findings of all causes in a run, in words and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grpolab.doctor.breakdown import describe_fall
from grpolab.doctor.causes import CONFIDENCES, Cause, Finding, read_table
from grpolab.doctor.contradictions import metrics_contradict  # noqa: F401  (for the rules of its module)
from grpolab.doctor.cost import add_cost
from grpolab.doctor.evidence import REWARD, Evidence
from grpolab.doctor.expected import WHOSE, Place, find_places
from grpolab.doctor.no_progress import FLAT_ROWS
from grpolab.doctor.normal import no_reuse  # noqa: F401  (likewise)
from grpolab.doctor.sampler_gap import GAPS
from grpolab.framework_names import LOG_NAMES, LOG_ONLY
from grpolab.meanings import METRICS
from grpolab.report.text import count, listing, number

(*SYMPTOMS, NORMAL), TABLES = read_table()
CAUSES = {cause.name: cause for symptom in SYMPTOMS for cause in symptom.causes}
WIDTH = 110
MOST_NAMED = 5
# Causes that say what happened to a run and not why.
SYMPTOMS_ALONE = ("destroyed_policy", "plateau")
REWARD_ITSELF = "the reward itself"


@dataclass(frozen=True)
class Candidate:
    """A cause that may still be it."""

    cause: str
    show: str  # what would show it, in the words of the run's framework


@dataclass(frozen=True)
class Diagnosis:
    """The causes found in a run, surest first, with notes on what is normal, and how the score fell.

    A run in which no cause was found may still be in trouble: see `fall` and `unknown`.
    """

    run: str
    state: str  # how the run ended, or that it has not
    findings: tuple[Finding, ...]
    notes: tuple[Finding, ...]
    readings: tuple[str, ...]  # what of a log was read as what, one sentence each
    unknown: tuple[str, ...]  # what could not be looked at, one sentence each
    lost: str  # the report's label: collapsed, diverged or stopped; empty if the run was not lost
    fall: str | None  # how far accuracy fell (reward, if the run has no accuracy); None if it did not
    still_possible: tuple[Candidate, ...] = ()  # where it fell or stands still, and no cause was found
    places: tuple[Place, ...] = ()  # where its numbers lie beside those of healthy runs

    def __str__(self) -> str:
        return text(self)


def find_causes(run: Evidence, causes: Iterable[Cause] = CAUSES.values()) -> tuple[Finding, ...]:
    """Return the causes in a run's evidence, surest first; of equally sure ones, first the one that explains others."""
    found = [(cause, finding) for cause in causes if (finding := cause.find(run))]
    findings = [add_cost(run, finding, cause.sentences.get("cost", "")) for cause, finding in found]
    return tuple(sorted(findings, key=lambda finding: CONFIDENCES.index(finding.confidence)))


def examine(run: Evidence) -> Diagnosis:
    """Return all that the doctor says of a run: causes, what is normal, its fall, its numbers beside others'."""
    findings, fall = find_causes(run), describe_fall(run)
    return Diagnosis(
        run=run.run,
        state=run.state,
        findings=findings,
        notes=find_causes(run, NORMAL.causes),
        readings=run.readings,
        unknown=(*_find_gaps(run), *run.unknown),
        lost=run.lost,
        fall=fall,
        still_possible=_find_open(run, findings, fall),
        places=find_places(run),
    )


def _find_gaps(run: Evidence) -> Iterator[str]:
    clipped = run.values("clip/active")
    is_explained = len(run.first_deviations) or len(run.deviations) or run.updates_per_batch == 1
    if len(clipped) and not clipped.max() > 0 and not is_explained:
        rate, norm = number(run.median("learning_rate")), number(run.median("grad_norm"))
        yield (
            f"why the clip fraction is 0 in all {count(len(clipped), 'row')}: one update per batch (then it is normal),"
            " an old policy that follows the live one, or steps too small to matter; the log has neither the ratio nor"
            f" the updates per batch (learning rate {rate}, gradient norm {norm}, medians)"
        )
    for name, what in TABLES["needed"].items():
        values = run.values(name)
        if odd := len(run.not_finite.get(name, ())) or int((~np.isfinite(values)).sum()):
            yield f"{what}: {name} is not finite in {count(odd, 'record')}"
        elif not len(values):
            yield f"{what}: {name} is missing{_name_there(run.framework, name)}"
    if run.framework != "grpolab":  # our own journal always has these
        if not len(run.values("kl_ref/k3")) and not run.has_no_kl_term:
            kl = _name_there(run.framework, "kl_ref/k3")
            yield f"how far the policy is from its reference: kl_ref/k3 is missing{kl} where there is a KL term"
        if not any(len(run.values(metric)) for metric in GAPS):
            theirs = [name for name, ours in LOG_NAMES.get(run.framework, {}).items() if ours in GAPS]
            logged = f": {run.framework} logs {listing(theirs)} where it corrects for it" if theirs else ""
            yield f"whether sampler and trainer have the same weights and log-probs{logged}"
    if not len(run.score[1]):
        yield "whether accuracy or reward fell: eval/accuracy_expected and reward/mean are missing or not finite"


def _names_there(framework: str) -> dict[str, str]:
    """Return what a framework calls our metrics in its logs, by the first of several names."""
    return {ours: theirs for theirs, ours in reversed(LOG_NAMES.get(framework, {}).items())}


def _name_there(framework: str, metric: str) -> str:
    """Return `, which trl logs as kl`, or that the framework does not log it; '' for our own and unknown names."""
    if not (names := _names_there(framework)):
        return ""
    return f", which {framework} logs as {names[metric]}" if metric in names else f", which {framework} does not log"


def _find_open(run: Evidence, findings: Sequence[Finding], fall: str | None) -> tuple[Candidate, ...]:
    """Return the causes that remain, likeliest first; none if a cause was found, or if nothing is wrong."""
    if any(one.confidence != "possible" and one.cause not in SYMPTOMS_ALONE for one in findings):
        return ()
    if run.lost or fall:
        symptom = "fell"
    elif run.reward_went == "nowhere" and len(run.values(REWARD)) >= FLAT_ROWS:
        symptom = "flat"
    else:
        return ()
    options = TABLES["to_log"].get(run.framework, {})
    found = {one.cause for one in findings}
    causes = [
        Candidate(cause, _how_to_see(run.framework, metrics, options))
        for cause, metrics in TABLES["still_possible"][symptom].items()
        if cause not in found and not any(len(run.values(metric)) for metric in metrics)
    ]
    where = f"({options['completions']})" if "completions" in options else "side by side"
    settings = f" and check the settings: grpolab lint --from {run.framework} CONFIG"
    show = f"read completions of high and of low reward {where}{settings if run.framework in ('trl', 'verl') else ''}"
    return (*causes[: MOST_NAMED - 1], Candidate(REWARD_ITSELF, show))


def _how_to_see(framework: str, metrics: Sequence[str], options: Mapping[str, str]) -> str:
    names = _names_there(framework)
    for metric in sorted(metrics, key=lambda metric: metric not in options):
        if metric in names:
            return f"log {options.get(metric, '{name}').format(name=names[metric])}"
    if framework == "grpolab":
        return f"{metrics[0]} in the journal"
    meaning = LOG_ONLY.get(metrics[0]) or METRICS[metrics[0]].meaning
    return f"{framework} does not log it; compute {metrics[0]} ({meaning.rstrip('.')})"


def text(diagnosis: Diagnosis) -> str:
    """Write the diagnosis in lines: causes with evidence and remedy, normal things, and what could not be looked at."""
    lines = [f"run {diagnosis.run}: {diagnosis.state}"]

    def write(head: str, sentence: str) -> None:
        indent = " " * len(head)
        wrap = textwrap.TextWrapper(WIDTH, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False)
        lines.extend(wrap.wrap(sentence))

    for reading in diagnosis.readings:
        write("read: ", f"{reading}.")
    lost = f"lost, as reports count it ({diagnosis.lost})" if diagnosis.lost else ""
    if course := list(filter(None, (lost, diagnosis.fall))):
        write("", f"{': '.join(course)}.")
    for place, finding in enumerate(diagnosis.findings, start=1):
        lines += ["", f"{place}. {finding.cause} ({finding.confidence})"]
        if finding.cost:
            write("   ", finding.cost)
        write("   ", finding.says)
        for sentence in finding.evidence:
            write("   - ", sentence)
        if finding.instead:
            write("   ", f"Looks the same in this log: {', '.join(finding.instead)}.")
        write("   Try: ", finding.remedy)
    if not diagnosis.findings:
        why = "every metric that the doctor reads is there, and no rule fits"
        if diagnosis.lost or diagnosis.fall:
            why = f"the {'run is lost' if diagnosis.lost else 'fall is real'}, and no cause that the doctor knows fits"
        elif diagnosis.unknown:
            why = "the numbers below could not be looked at, and may hide one"
        lines.append("")
        write("", f"No cause found: {why}.")
    if diagnosis.still_possible:
        lines += ["", "still possible, and what would show it:"]
        for place, candidate in enumerate(diagnosis.still_possible, start=1):
            write(f"   {place}. ", f"{candidate.cause}: {candidate.show}")
    for note in diagnosis.notes:
        lines.append("")
        write("normal: ", f"{note.says} Here: {note.evidence[0]}.")
    if diagnosis.places:
        lines.append("")
        whose = " and ".join(dict.fromkeys(one.of for one in diagnosis.places if one.of))
        write("", f"where this run lies{f', beside {whose}' if whose else ''}:")
        for one in diagnosis.places:
            write("   - ", f"{one.says}.")
        write("   ", WHOSE)
    if diagnosis.unknown:
        lines += ["", "not looked at:"]
        for sentence in diagnosis.unknown:
            write("   - ", sentence)
    return "\n".join(lines)


def record(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the diagnosis as plain values, for JSON."""
    finding_keys = ("cause", "confidence", "cost", "step", "says", "evidence", "instead")
    return {
        **{key: getattr(diagnosis, key) for key in ("run", "state", "lost", "fall")},
        "causes": [
            {**{key: getattr(finding, key) for key in finding_keys}, "try": finding.remedy}
            for finding in diagnosis.findings
        ],
        "readings": diagnosis.readings,
        "normal": [{"note": note.cause, "says": note.says, "evidence": note.evidence[0]} for note in diagnosis.notes],
        "still_possible": [vars(one) for one in diagnosis.still_possible],
        "expected": [vars(place) for place in diagnosis.places],
        "unknown": diagnosis.unknown,
    }
