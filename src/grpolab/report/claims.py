"""Decide the hypotheses of study files: supported, opposite, negligible or inconclusive.

`questions.py` puts them in numbers; `statistics/looks.py` decides all questions of a family together; `effects.py`
writes what was decided. Tables, figures and sentences repeat the verdicts of this file, and nothing else in the package
calls a difference real or not.

Letters: S seeds, T tasks, M questions, K looks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from grpolab.paths import Results
from grpolab.report import effects
from grpolab.report.effects import Decision, TaskEffect
from grpolab.report.load import StudyRuns, kind_of_cpu, load
from grpolab.report.plans import also, find_elsewhere
from grpolab.report.questions import QUESTION, Question, ask
from grpolab.report.registered import CONFIRMATORY
from grpolab.report.statistics import looks as planned
from grpolab.report.statistics.looks import ALPHA, INCONCLUSIVE, NEGLIGIBLE, OPPOSITE, SUPPORTED, LookTests
from grpolab.report.statistics.tests import benjamini_hochberg, label_difference, rank_trend, sign_test
from grpolab.report.text import NONE, count, listing

VOID = "void"  # no number of seeds could decide it
DESCRIBED = "described"  # not among the primary hypotheses of the collection that is reported
HOLDS, FAILS, NOT_RUN = "holds", "fails", "not run"  # verdicts of a check
CHECK = "check"  # the label of a hypothesis that holds by construction
OPEN = (INCONCLUSIVE, NOT_RUN)  # a hypothesis is `not run` until one of its runs has finished
VERDICTS = (SUPPORTED, OPPOSITE, NEGLIGIBLE, *OPEN, VOID)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The decision on one hypothesis, at one setting of the factors that it does not fix.

    `effect`, `low` and `high` are in units of the margin, so that claims of all kinds have one scale; NaN if there
    is no margin, or no mean is tested. `size` is the same in words. `p` is adjusted for testing the data several times
    (each time is a look), `adjusted_p` is `p` after Holm's correction, `q` is Benjamini and Hochberg's over all studies
    of the report. `n` counts the seeds at the decision, or at the last look; `seeds` counts all.
    """

    study: str
    id: str
    says: str  # what was tested
    registered: str = ""  # the words of the study file and its registration, where they differ from `says`
    also: tuple[str, ...] = ()  # the claims (`study.id`) that ask the same elsewhere
    kind: str = QUESTION  # or a consequence, or a repetition
    because: str = ""  # the reason why it is no question
    kind_is_registered: bool = False  # it was said before the runs
    source: str
    metric: str
    where: str = ""
    contrast: str
    verdict: str
    found: str  # the verdict in words; if tasks disagree, with the tasks that show it
    label: str  # confirmatory, exploratory or a check
    why: str = ""  # the reason why it is exploratory
    n: int
    seeds: int
    size: str  # for a score, first the accuracies: the second arm's -> the first one's, and both arms' start
    short: str = NONE  # the same without the intervals of single tasks
    rollouts: str = ""  # those to the same accuracy
    effect: float = np.nan
    low: float = np.nan
    high: float = np.nan
    tasks: tuple[TaskEffect, ...] = ()
    disagreement: float = np.nan  # p that all tasks have one effect
    p: float = np.nan
    adjusted_p: float = np.nan
    q: float = np.nan
    margin_sds: float = np.nan  # the margin in standard deviations of the seeds' differences
    flags: tuple[str, ...] = ()
    sentence: str
    question: Question | None = None  # the numbers behind it; None of a placebo pair

    @property
    def name(self) -> str:
        return f"{self.study}.{self.id}"

    @property
    def word(self) -> str:
        """The verdict in a word or two: `supported in part` where not each task shows it by itself."""
        some = any(words in self.found for words in effects.SOME_TASKS)
        return f"{self.verdict} in part" if some and self.verdict in (SUPPORTED, OPPOSITE) else self.verdict

    @property
    def is_finding(self) -> bool:
        """Return True if the hypothesis was tested; checks and descriptions are listed separately."""
        return self.verdict in VERDICTS and self.label != CHECK


def decide(studies: Sequence[StudyRuns]) -> list[Claim]:
    """Decide every hypothesis of a study, or of a collection's studies, which come before it; then placebo pairs.

    A registration is one family, with its seeds, looks and margins; hypotheses that are not registered are decided with
    the study's other such ones, by the seeds at hand. A collection with `primary` hypotheses decides these together,
    and describes the others.
    """
    whole, questions = studies[-1], list[Question]()
    primary = whole.plan.get("primary") or []
    for study in studies:
        for hypothesis in study.plan.get("hypotheses", []):
            name = f"{study.name}.{hypothesis['id']}" if primary else hypothesis["id"]
            questions += ask(study, hypothesis, whole if primary else study, name in primary or not primary)
    claims = dict[int, Claim]()
    for family in dict.fromkeys(question.family for question in questions):
        members = {n: question for n, question in enumerate(questions) if question.family == family}
        of_family = list(members.values())
        made = _decide_together(of_family, _count_withdrawn(family, studies)) if family else map(_describe, of_family)
        claims |= zip(members, made, strict=True)
    placebo = [_placebo(study, *pair) for study in studies for pair in study.plan.get("placebo", [])]
    decided = [*(claims[n] for n in range(len(questions))), *placebo]
    tested = [n for n, claim in enumerate(decided) if claim.is_finding and np.isfinite(claim.q)]
    for n, q in zip(tested, benjamini_hochberg([decided[n].q for n in tested]), strict=True):
        decided[n] = replace(decided[n], q=float(q))
    return decided


def decide_elsewhere(results: Results, studies: Sequence[StudyRuns]) -> list[Claim]:
    """Decide the hypotheses of other studies that ask the same as one of these (`also`), if their runs are known."""
    plans = [study.plan for study in studies]
    wanted = {name for plan in plans for hypothesis in plan.get("hypotheses", []) for name in also(hypothesis)}
    decided = [claim for other in find_elsewhere(results, plans) for claim in decide(load(results, other))]
    return [claim for claim in decided if claim.name in wanted]


def note_on_labels(study: StudyRuns, claims: Sequence[Claim]) -> str:
    """Say which of a study's claims were registered before their runs, for the captions of its figures."""
    if study.done.empty:
        return ""
    sure = dict.fromkeys(c.id for c in claims if c.study == study.name and c.is_finding and c.label == CONFIRMATORY)
    if not sure:
        return "Exploratory."
    return f"Registered verdicts: {listing(list(sure))}; all else that it shows is exploratory."


def _count_withdrawn(family: str, studies: Sequence[StudyRuns]) -> int:
    """Count the hypotheses of a registration that were changed or removed later; they keep their share of ALPHA."""
    entries = [known.items() for study in studies if (known := study.plan.get("registered"))]
    left = {name for known in entries for name, entry in known if entry["line"] == family}
    return len(json.loads(family)["hypotheses"].keys() - left) if left else 0


def _run_tests(question: Question, n: int) -> tuple[float, float, bool]:
    """Test the first n seeds: p of a direction, p of the margin, and whether the estimate is on the claimed side."""
    values_STA, sign = question.values_STA[:n], question.sign
    if question.void or len(values_STA) < n:
        return np.nan, np.nan, False
    if question.kind == "label":
        difference, p = label_difference(values_STA[:, :, 0], values_STA[:, :, 1])
        return p, 1.0, sign * difference > 0
    if question.kind == "trend":
        tau = rank_trend(values_STA)
        return tau.p, 1.0, sign * tau.effect > 0
    y_S, beyond, equal = question.pooled(n), question.pooled_beyond, question.is_equality
    if not np.isfinite(y_S).all() or planned.few_values(y_S):
        if equal:  # its opposite lies beyond the margin
            sign, beyond = float(np.sign(np.median(y_S))), 1.0
        shifted_S = sign * y_S - beyond
        above = bool((shifted_S > 0).sum() > (shifted_S < 0).sum())
        return sign_test(shifted_S) if above or not equal else 1.0, 1.0, above
    d_TS = (question.differences(n) / question.unit_T).T
    test = planned.run_tests(d_TS[None], 1.0 if question.has_margins else np.nan, sign, beyond, (n,), equal)
    return float(test.direction_p[0, 0]), float(test.margin_p[0, 0]), bool(test.claimed[0, 0])


def _spends(question: Question) -> float:
    """Return by what the error of a question is divided: 2 for each time that it was registered before.

    So all registrations of a question together have at most twice the error of one.
    """
    return 2.0**question.earlier


def _decide_together(family: Sequence[Question], gone: int = 0) -> list[Claim]:
    """Decide the questions of one family; `gone` is the number of its withdrawn hypotheses."""
    looks = family[0].looks
    tests_MK = [[_run_tests(question, n) for n in looks] for question in family]
    direction_p, margin_p, claimed = (np.array([[test[i] for test in of] for of in tests_MK]) for i in range(3))
    spent_M1 = np.array([[_spends(question)] for question in family])
    tests = LookTests(direction_p * spent_M1, margin_p * spent_M1, claimed)
    decided = planned.decide(tests, np.array([question.is_equality for question in family]), gone, looks)
    claims = []
    for question, of_looks, verdict, by_margin, look, level, p in zip(family, tests_MK, *decided, strict=True):
        by = int(question.is_equality and verdict != OPPOSITE)  # an equality claims to be inside the margin
        share, n = (float(planned.shares(looks)[look]), looks[look]) if look >= 0 else (1.0, 0)
        share /= _spends(question)
        q = min(of_looks[look][by] / share, 1.0) if n else np.nan
        word = NOT_RUN if not question.is_run else VOID if question.void else str(verdict)
        levels = float(level), share, ALPHA * share / (len(family) + gone)
        claims.append(_write(question, Decision(word, n, bool(by_margin), *levels, float(p), q)))
    return claims


def _describe(question: Question) -> Claim:
    """Describe a check, or a hypothesis outside of every family."""
    n, verdict = len(question.values_STA), DESCRIBED
    if question.hypothesis["by_construction"]:
        verdict = (HOLDS if question.as_claimed().all() else FAILS) if n else NOT_RUN
    return _write(question, Decision(verdict, n))


def _write(question: Question, decision: Decision) -> Claim:
    """Return the claim of a question and its decision: effects as numbers, and the sentences that reports print."""
    hypothesis, n = question.hypothesis, decision.n
    effect = low = high = margin_sds = disagreement = np.nan
    tasks, size, short = tuple[TaskEffect, ...](), NONE, NONE
    if n and question.kind == "mean":
        y_S, tasks = question.pooled(n), effects.task_effects(question, decision)
        effect, low, high = decision.estimate(y_S)
        disagreement = question.disagreement(n)
        pooled = effects.in_points(question, effect, low, high)
        size, short = effects.effect_in_words(question, n, tasks, pooled, disagreement < ALPHA)
        if question.has_margins and np.isfinite(y_S).all() and np.ptp(y_S):
            margin_sds = float(1 / np.std(y_S, ddof=1))
        else:
            effect = low = high = np.nan  # no margin, so no unit
    elif n and question.kind == "label":
        of, minus = question.values_STA[:n].sum(axis=(0, 1)).astype(int)
        runs = n * len(question.tasks)
        size = short = f"{of} of {runs} runs against {minus} of {runs}"
    elif n:
        size = effects.trend_in_words(question, n)
        short = f"tau {size}"
    flags = tuple(effects.flags(question, decision, low, high))
    label, why = (CHECK, "") if hypothesis["by_construction"] else (question.label, question.why)
    found = effects.verdict_in_words(question, decision, tasks, disagreement < ALPHA)
    rollouts = effects.rollouts_in_words(question, n)
    kind, because, kind_is_registered = question.asks
    whole = "; ".join(filter(None, (size, rollouts)))
    record: dict[str, Any] = (
        {key: hypothesis[key] for key in ("id", "source", "metric")}
        | {"study": question.study, "where": question.where, "contrast": effects.contrast(question)}
        | {"says": effects.said(question), "registered": hypothesis["says"] if hypothesis.get("tested") else ""}
        | {"verdict": decision.verdict, "found": found, "label": label, "why": why, "rollouts": rollouts}
        | {"kind": kind, "because": because, "kind_is_registered": kind_is_registered}
        | {"also": tuple(also(hypothesis))}
        | {"n": n, "seeds": len(question.values_STA), "size": size, "short": short, "tasks": tasks}
        | {"effect": effect, "low": low, "high": high, "disagreement": disagreement, "margin_sds": margin_sds}
        | {"p": decision.p, "adjusted_p": decision.adjusted_p, "q": decision.q, "flags": flags}
        | {"sentence": effects.sentence(question, decision, f"{found} ({label})", whole, flags), "question": question}
    )
    return Claim(**record)


def _placebo(study: StudyRuns, first: str, second: str) -> Claim:
    """Check by hashes of journal and weights that two arms that compute the same function have bit-identical runs.

    Of two dialects only the weights are compared, because journals have the framework's metrics. A pair that differs
    counts as not comparable if its runs are from two kinds of CPU.
    """
    planned_cells = study.cells[study.cells["arm"].isin((first, second))]
    pairs = int((planned_cells["arm"] == first).sum())
    hashes, what = ["journal_sha256", "policy_sha256"], "whole journal and final weights"
    if "setting/framework" in planned_cells and planned_cells["setting/framework"].nunique(dropna=False) > 1:
        hashes, what = ["policy_sha256"], "final weights"
    done, equal, different, elsewhere = study.done, 0, list[str](), 0
    if len(done):
        done = done.assign(cpu=done["hardware"].map(kind_of_cpu))
        of, minus = (done[done["arm"] == arm].set_index(["facet", "seed"])[[*hashes, "cpu"]] for arm in (first, second))
        shared = of.index.intersection(minus.index, sort=False)
        of, minus = of.loc[shared], minus.loc[shared]
        same, one_kind = (of[hashes] == minus[hashes]).all(axis=1), of["cpu"] == minus["cpu"]
        equal, elsewhere = int(same.sum()), int((~same & ~one_kind).sum())
        different = [f"{facet} seed {seed}" for facet, seed in shared[~same & one_kind]]
    size = f"bit-identical in {equal} of {count(pairs, 'planned pair')}"
    notes = f"; they differ in {listing(different)}" if different else ""
    notes += f"; {count(elsewhere, 'pair')} of two kinds of CPU cannot be compared" if elsewhere else ""
    verdict = FAILS if different else HOLDS if equal == pairs > 0 else NOT_RUN
    compared = equal + len(different)
    record: dict[str, Any] = (
        {"study": study.name, "id": "placebo", "source": "identity O3", "metric": what, "label": CHECK}
        | {"says": f"`{second}` and `{first}` are the same function.", "contrast": f"{second} - {first}"}
        | {"verdict": verdict, "found": verdict, "n": compared, "seeds": compared, "size": size}
    )
    equality = size.replace("bit-identical", f"bit-identical ({what})")
    return Claim(**record, sentence=f"`{second}` and `{first}` are {equality}{notes}.")
