"""The first screen of a report: answers for each axis (study with a title), what not to conclude, limits, compute."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np
import pandas as pd

from grpolab.quantities import GAINS
from grpolab.report.claims import OPEN, VERDICTS, VOID, Claim
from grpolab.report.effects import SMALL
from grpolab.report.how_many_seeds import sentences
from grpolab.report.load import StudyRuns
from grpolab.report.measures import SCALES, by_cell
from grpolab.report.provenance import compute, damaged, runs_of, runs_of_others
from grpolab.report.questions import CONSEQUENCE, ONE_RATE, OWN_RATES, QUESTION, REPETITION
from grpolab.report.registered import CONFIRMATORY, EXPLORATORY
from grpolab.report.statistics.looks import LOOKS, NEGLIGIBLE, OPPOSITE, SUPPORTED
from grpolab.report.text import begun, count, listing, number, spans
from grpolab.vocabulary import MARGIN_OF_GAIN

KINDS = {
    QUESTION: ("question", ""),
    CONSEQUENCE: ("consequence", " (near certain before the runs)"),
    REPETITION: ("repetition", " (of a hypothesis that was asked already)"),
}
DECIDED = (SUPPORTED, OPPOSITE, NEGLIGIBLE)
MOST_SAID, MOST_OPEN = 3, 2  # claims of an axis; the page of its study has them all


def screen(studies: Sequence[StudyRuns], claims: Sequence[Claim], elsewhere: Sequence[Claim] = ()) -> str:
    """Write one screen of Markdown: every axis of the question, what not to conclude, the limits, the compute.

    Axes are the studies that have a title or, if none has one, all studies. `elsewhere`: claims of other studies that
    ask the same as some of these.
    """
    with_cells = [study for study in studies if len(study.cells)]
    titled = [study for study in with_cells if study.plan.get("title")]
    axes = [_axis(study, claims, [*claims, *elsewhere]) for study in titled or with_cells]
    counted = count_verdicts(claims)
    if not len(runs_of(studies)):
        hypotheses = sum(claim.is_finding for claim in claims)
        counted = f"No run has finished, so nothing is decided (hypotheses: {hypotheses})."
    return "\n\n".join([counted, "\n".join(axes), "\n\n".join(limits(studies, claims))])


def finding(study: StudyRuns, claims: Sequence[Claim], said: Sequence[str]) -> list[str]:
    """Return what a page says of one study: the verdicts of the hypotheses (`study.id`) of `said`, in their order."""
    asked = {f"{claim.study}.{claim.id}": claim for claim in claims if claim.study == study.name}
    chosen = [asked[name] for name in said if name in asked]
    rest = [f"`{claim.id}` {claim.found}" for claim in asked.values() if claim.is_finding and claim not in chosen]
    others = [f"Not said here: {listing(rest, 30)} (`grpolab report {study.name} --brief`)."] if rest else []
    return [_sentence(claim, mixed=claim.label != CONFIRMATORY) for claim in chosen] + sentences(study) + others


def strip_markdown(text: str) -> str:
    """Remove the marks of Markdown, for a terminal."""
    return text.replace("**", "").replace("`", "")


def count_verdicts(claims: Sequence[Claim]) -> str:
    """Count the verdicts by kind, separately those that were registered before their runs."""
    means = {
        CONFIRMATORY: "Confirmatory: each run's commit has the registration.",
        EXPLORATORY: "Exploratory: not registered before their runs; a reason to test it, not a result.",
    }
    parts = list[str]()
    for label, meaning in means.items():
        found = [claim for claim in claims if claim.is_finding and claim.label == label]
        counted = [_tally(*words, [claim for claim in found if claim.kind == kind]) for kind, words in KINDS.items()]
        parts += [f"{begun('; '.join(filter(None, counted)))}. {meaning}"] if found else []
    if any(claim.is_finding and claim.kind != QUESTION and not claim.kind_is_registered for claim in claims):
        parts.append("What is no question was called so after its runs, with reasons (table of verdicts).")
    return " ".join(parts) or "No hypothesis was tested."


def _tally(noun: str, meaning: str, claims: Sequence[Claim]) -> str:
    """Write `of 5 questions 3 supported, 2 negligible`; empty without claims."""
    found = Counter(claim.verdict for claim in claims)
    tally = ", ".join(f"{found[verdict]} {verdict}" for verdict in VERDICTS if found[verdict])
    return f"of {count(len(claims), noun)}{meaning} {tally}" if claims else ""


def _axis(study: StudyRuns, claims: Sequence[Claim], every: Sequence[Claim]) -> str:
    """Write the answers of one study: its decided claims, questions about accuracy first; the open ones; accuracies.

    Of a study with several scales it says how far each claim carries. `every`: claims that may ask the same elsewhere.
    """
    claims = [claim for claim in claims if claim.study == study.name]
    head = f"- **{study.plan.get('title') or study.name}**"
    if carried := _carried(study, claims):
        return "\n".join([head, *(f"  - {line}" for line in carried)])
    decided = sorted(
        (claim for claim in claims if claim.verdict in DECIDED),
        key=lambda claim: (claim.label != CONFIRMATORY, claim.metric not in GAINS, claim.kind != QUESTION, claim.p),
    )
    mixed = len({claim.label for claim in claims if claim.is_finding}) > 1
    undecided = [claim for claim in claims if claim.verdict in OPEN]
    elsewhere = {claim.name: claim for claim in undecided if claim.n and any(_elsewhere(claim, every))}
    lines = [
        "".join([_sentence(claim, mixed), *(f"\n    - {text}" for text in _elsewhere(claim, every))])
        for claim in (*decided[:MOST_SAID], *elsewhere.values())
    ]
    rest = [(_says(claim), "; ".join([claim.found, *_elsewhere(claim, every)])) for claim in decided[MOST_SAID:]]
    if rest:
        lines.append(f"decided too: {'; '.join(f'{says} ({found})' for says, found in rest)}")
    if not lines:
        lines = [f"a check, no finding: {claim.sentence}" for claim in claims if claim.id == "placebo"]
    if open_ := [_says(claim) for claim in undecided if claim.name not in elsewhere]:
        more_open = f"; and {len(open_) - MOST_OPEN} more" if len(open_) > MOST_OPEN else ""
        lines.append(f"not decided: {'; '.join(open_[:MOST_OPEN])}{more_open}")
    if void := [f"{_says(claim)} ({claim.flags[0]})" for claim in claims if claim.verdict == VOID]:
        lines.append(f"void, for nothing can be told apart: {'; '.join(void)}")
    lines += _accuracies(study)
    return "\n".join([head, *(f"  - {line}" for line in lines)])


def _carried(study: StudyRuns, claims: Sequence[Claim]) -> list[str]:
    """List the claims that have one verdict at every scale, the others by scale, and the open ones; [] without scales.

    A scale is a combination of the levels that a hypothesis leaves open.
    """
    scales = [factor for factor in study.plan["factors"] if factor in SCALES and factor != study.plan["compare"]]
    asked = [list(of) for _, of in groupby((c for c in claims if c.is_finding), key=lambda claim: claim.id)]
    if not scales or max(map(len, asked), default=0) < 2:
        return []
    carried, open_, lines = list[str](), list[str](), list[str]()
    for of in asked:
        places = {word: [c.where for c in of if c.verdict == word] for word in VERDICTS}
        found = {word: ", ".join(at) if len(at) < len(of) else f"all {len(at)}" for word, at in places.items() if at}
        says = of[0].says.rstrip(".")
        if len(found) == 1 and of[0].verdict in DECIDED:
            carried.append(f"{says} ({of[0].verdict} at {found[of[0].verdict]})")
        elif not found.keys() & {*DECIDED}:
            open_.append(says)
        else:
            lines.append(f"**not everywhere**: {says}: {'; '.join(f'{word} at {at}' for word, at in found.items())}")
    over = " and ".join(SCALES[scale] for scale in scales)
    whole = [f"**carried** over {over}: {'; '.join(carried)}"] if carried else []
    return [*whole, *lines, *([f"not decided anywhere: {'; '.join(open_)}"] if open_ else [])]


def _says(claim: Claim) -> str:
    return claim.says.rstrip(".") + (f" ({claim.where})" if claim.where not in claim.says else "")


def _sentence(claim: Claim, mixed: bool) -> str:
    """Write `supported: says: size; rollouts (seeds)`, with its kind and, if a study has both, its label."""
    marks = [claim.label] if mixed else []
    marks += [claim.kind] if claim.kind != QUESTION else []
    is_small = claim.verdict == NEGLIGIBLE or bool(claim.question and claim.question.is_equality)
    size = "; ".join(filter(None, (claim.short, "" if is_small else claim.rollouts)))
    says = f"the reverse of '{_says(claim)}'" if claim.verdict == OPPOSITE else _says(claim)
    return f"{', '.join([f'**{claim.found}**', *marks])}: {says}: {size} ({count(claim.n, 'seed')})"


def _elsewhere(claim: Claim, every: Sequence[Claim]) -> Iterator[str]:
    """Write the verdicts on the same question with a learning rate of each arm's own, and on other tasks."""
    for name in claim.also:
        asked = [other for other in every if other.name == name and other.is_finding]
        asked = [other for other in asked if other.where == claim.where] or asked
        study, own = f"`{name.partition('.')[0]}`", any(c.question and c.question.rates == OWN_RATES for c in asked)
        place = f"{OWN_RATES} ({study})" if own else f"in {study}"
        if len(asked) == 1:
            found = [asked[0].found, *(f"{task.task} {task.text}" for task in asked[0].tasks)]
            yield f"{place}: {', '.join(found)}"
        elif asked:
            at = {verdict: [c.where for c in asked if c.verdict == verdict] for verdict in VERDICTS}
            whole = {
                verdict: f"all {len(of)}" if len(of) == len(asked) else ", ".join(of) for verdict, of in at.items()
            }
            yield f"{place}: {'; '.join(f'{verdict} at {of}' for verdict, of in whole.items() if of)}"


def _accuracies(study: StudyRuns) -> Iterator[str]:
    """Write `final accuracy (mean of 2 tasks): token .55, sequence .37` for each combination of the other factors.

    The mean is over the seeds that all of these arms have, because looks add seeds only to undecided arms.
    """
    cells = study.cells.assign(score=by_cell(study, "final_score"), task=study.tasks, where=study.places())
    for where, here in cells.groupby("where", sort=False):
        scores = here.groupby(["seed", "arm", "task"])["score"].mean().unstack(["arm", "task"])
        tasks = list(here["task"].unique())
        arms = [arm for arm in study.arms if all((arm, t) in scores and scores[arm, t].notna().any() for t in tasks)]
        shared = scores[[(arm, task) for arm in arms for task in tasks]].dropna()
        if len(arms) > 1 and len(shared):
            named = {arm: f"`{arm}` (baseline)" if arm == study.baseline else f"`{arm}`" for arm in arms}
            listed = ", ".join(f"{words} {number(shared[arm].mean().mean())}" for arm, words in named.items())
            over = [f"mean of {count(len(tasks), 'task')}" if len(tasks) > 1 else str(tasks[0]), str(where)]
            over += [count(len(shared), "seed")] if len(shared) < here["seed"].nunique() else []
            yield f"final accuracy ({', '.join(filter(None, over))}): {listed}"


def limits(studies: Sequence[StudyRuns], claims: Sequence[Claim]) -> Iterator[str]:
    """Write what must not be concluded, the limits, and the cost."""
    disagree = [c for c in claims if c.is_finding and c.disagreement < 0.05]
    small = [c for c in claims if SMALL in c.found]
    no = ["what is not decided may still differ; shown to be too small to matter is only what is `negligible`"]
    no += (
        [f"where tasks disagree ({count(len(disagree), 'claim')}), what is decided of their mean need not hold on each"]
        if disagree
        else []
    )
    no += [f"real, and smaller than the margin: {count(len(small), 'difference')}"] if small else []
    yield f"**Not to be concluded:** {'; '.join(no)}."
    yield from _rates_and_margins([claim for claim in claims if claim.is_finding])
    several = {study.name for study in studies if len(study.plan.get("looks") or LOOKS) > 1}
    yield from _looks([claim for claim in claims if claim.is_finding and claim.study in several])
    if damage := damaged(studies):
        yield f"**Damaged and left out:** {damage}."
    runs = runs_of(studies)
    tasks = sorted({str(task) for study in studies if len(study.done) for task in study.done["task_title"]})
    models = runs.get("setting/model", pd.Series(index=runs.index, dtype=str)).fillna("tiny transformers")
    of = f" of {', '.join(sorted({*models.astype(str)}) or ['tiny transformers'])}"
    seeds = spans(int(seed) for seed in runs["seed"]) if len(runs) else "none"
    where = f"{count(len(runs), 'run')}{of} on {', '.join(tasks) or 'no task'}, seeds {seeds}"
    where += f"; {others}" if (others := runs_of_others(studies)) else ""
    yield f"**Limits:** {where}; nothing is claimed of other tasks or models."
    if waiting := studies[-1].plan.get("waiting"):
        yield f"**Not trained yet:** {listing(waiting, 30)}."
    if len(runs):
        yield f"**Compute:** {compute(runs)}."


def _rates_and_margins(tested: Sequence[Claim]) -> Iterator[str]:
    """Say which verdicts rest on one learning rate, and what the margin of a score is in accuracy and in rollouts."""
    questions = [claim.question for claim in tested if claim.question]
    one, own = (sum(question.rates == rates for question in questions) for rates in (ONE_RATE, OWN_RATES))
    if one:
        tuned = f"; {own} compare each arm at its own, found by tuning" if own else ""
        yield f"**Learning rates:** {one} of the hypotheses compare all arms at one{tuned}."
    default = [q for q in questions if q.last_margin and q.hypothesis["margin"] is None]
    margins = [margin for q in default for margin in q.margin_T if np.isfinite(margin)]
    shares = [share for q in default for share in q.last_margin.values() if np.isfinite(share)]
    if margins and shares:
        yield (
            f"**Margin** of a score: {MARGIN_OF_GAIN:g} of what the baseline gains; {number(min(margins))} to"
            f" {number(max(margins))} of accuracy, for which it needs its last {min(shares):.0%} to"
            f" {max(shares):.0%} of rollouts."
        )


def _looks(tested: Sequence[Claim]) -> Iterator[str]:
    """Say which of the planned looks (tests after a number of seeds) each study has reached, and if all is decided."""
    at: dict[tuple[bool, int], list[str]] = {}
    for name, group in groupby(tested, key=lambda claim: claim.study):
        claims = list(group)
        looked = max((look for look in LOOKS if look <= max(claim.seeds for claim in claims)), default=0)
        is_open = any(claim.verdict in OPEN for claim in claims)
        at.setdefault((is_open, looked), []).append(name)
    parts = [
        f"{'open' if is_open else 'all decided'} after {looked or f'fewer than {LOOKS[0]}'}: {listing(names, 30)}"
        for (is_open, looked), names in sorted(at.items())
    ]
    planned = f"planned after {', '.join(map(str, LOOKS))} seeds, with wider intervals until the last"
    if parts:
        yield f"**Looks:** {'; '.join([planned, *parts])}."
