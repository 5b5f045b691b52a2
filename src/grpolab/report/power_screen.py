"""`grpolab power`: how many seeds a difference needs, for the noise of a study's runs, of a table, or of two numbers.

Letters: S seeds, A two arms (of, minus).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from grpolab.errors import RequestError, near_matches
from grpolab.report import power
from grpolab.report.power import RATES
from grpolab.report.statistics.looks import ALPHA, detectable_difference
from grpolab.report.text import listing, number, signed

if TYPE_CHECKING:
    from grpolab.report.load import StudyRuns

PAPER_SEEDS = (1, 3, 5)
COLUMNS = ("arm", "seed", "score")
TOGETHER = "together"
MOST_TOLD = 3
USELESS = 0.9  # of the unpaired standard deviation
MOST_BYTES = 50_000_000


@dataclass(frozen=True, eq=False)
class Noise:
    """How much one contrast scatters over seeds, and the difference that is to be seen.

    `paired_sd`, `unpaired_sd`: of the difference of two runs, of one seed and of two. `score_SA`: (S, 2), none without
    runs; NaN pairs nothing.
    """

    arm: str
    baseline: str
    task: str
    difference: float
    paired_sd: float
    unpaired_sd: float
    score_SA: NDArray | None = None

    @property
    def seeds(self) -> int:
        return 0 if self.score_SA is None else len(self.score_SA)

    @property
    def name(self) -> str:
        return f"{self.arm} - {self.baseline}" + (f" on {self.task}" if self.task else "")


def of_scores(
    arm: str, baseline: str, task: str, difference: float, score_SA: NDArray, is_paired: bool = True
) -> Noise:
    """Return the noise of two arms' scores; (S, 2). Those of one row are of one seed, if the runs are paired."""
    paired_sd = float((score_SA @ [1, -1]).std(ddof=1)) if is_paired else np.nan
    unpaired_sd = float(np.sqrt(score_SA.var(axis=0, ddof=1).sum()))
    return Noise(arm, baseline, task, difference, paired_sd, unpaired_sd, score_SA)


def of_numbers(sd: float, correlation: float, difference: float) -> Noise:
    """Return the noise of two arms whose scores have this standard deviation over seeds, and this correlation."""
    paired_sd, unpaired_sd = (sd * float(np.sqrt(2 * (1 - shared))) for shared in (correlation, 0.0))
    return Noise("one arm", "another", "", difference, paired_sd, unpaired_sd)


def of_study(study: StudyRuns, difference: float | None) -> list[Noise]:
    """Return the noise of every arm against the baseline, in each facet and over the tasks of like facets together.

    Without a difference it is the margin of the facet. Together, tasks count by 1 / difference, as in a decision.
    Raises RequestError if no two arms share two seeds, or no margin is known.
    """
    from grpolab.report.how_many_seeds import contrasts

    pairs = contrasts(study)
    if not pairs:
        raise RequestError(f"{study.name} has no arm with two seeds that {study.baseline}, the baseline, has too")
    wanted = {id(pair): difference or pair.margin for pair in pairs}
    if not np.isfinite(list(wanted.values())).any():
        raise RequestError(
            f"STUDY={study.name}: {study.baseline} gains nothing, so that no margin is known: --difference"
        )
    place = dict(zip(study.cells["facet"], study.places(), strict=True))
    noises = list[Noise]()
    for arm in dict.fromkeys(pair.arm for pair in pairs):
        of_arm = [pair for pair in pairs if pair.arm == arm and np.isfinite(wanted[id(pair)])]
        for where in dict.fromkeys(place[pair.facet] for pair in of_arm):
            here = [pair for pair in of_arm if place[pair.facet] == where]
            noises += [
                of_scores(arm, pair.baseline, pair.facet, wanted[id(pair)], pair.score_SA, study.is_paired)
                for pair in here
            ]
            if len(here) > 1 and len({tuple(pair.seeds) for pair in here}) == 1:
                weight_T = np.array([1 / wanted[id(pair)] for pair in here])
                score_SA = np.tensordot(weight_T / weight_T.sum(), np.stack([pair.score_SA for pair in here]), 1)
                name = "/".join(filter(None, (TOGETHER, where)))
                noises.append(of_scores(arm, study.baseline, name, float(1 / weight_T.mean()), score_SA))
    return noises


def of_table(path: Path, baseline: str | None, difference: float) -> list[Noise]:
    """Return the noise of every arm of a CSV file against the baseline (else its first arm), task by task.

    Columns: arm, seed, score, and task if there are several; a row is a run. Raises RequestError for anything else.
    """
    name = f"FILE={path}"
    try:
        if path.stat().st_size > MOST_BYTES:
            raise RequestError(f"{name} has more than {MOST_BYTES:,} bytes: it needs a row for each run")
        rows = list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines(), restkey=""))
    except OSError as error:
        raise RequestError(f"{name}: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise RequestError(f"{name} is no CSV file") from None
    if lacking := [column for column in COLUMNS if not rows or column not in rows[0]]:
        there = listing(list(rows[0]), 8) if rows else "no row"
        raise RequestError(f"{name} has no column {', '.join(lacking)} (there is {there}): it needs arm, seed, score")
    score = dict[tuple[str, str, str], float]()
    for line, row in enumerate(rows, start=2):
        arm, seed, text, task = (str(row.get(key) or "").strip() for key in (*COLUMNS, "task"))
        try:
            value = float(text)
        except ValueError:
            value = np.nan
        if not arm or not seed or not np.isfinite(value):
            raise RequestError(f"{name}, line {line}: arm={arm} seed={seed} score={text} is not a run with a number")
        if (task, arm, seed) in score:
            raise RequestError(
                f"{name}, line {line}: arm={arm} seed={seed} stands twice{f' for task={task}' * bool(task)}"
            )
        score[task, arm, seed] = value
    arms = list(dict.fromkeys(arm for _, arm, _ in score))
    baseline = baseline or arms[0]
    if baseline not in arms:
        raise RequestError(f"--baseline={baseline} is no arm of {name}{near_matches(baseline, arms)}: {listing(arms)}")
    noises = list[Noise]()
    for arm in (arm for arm in arms if arm != baseline):
        for task in dict.fromkeys(task for task, _, _ in score):
            of, minus = ({s: v for (t, a, s), v in score.items() if (t, a) == (task, one)} for one in (arm, baseline))
            shared = [seed for seed in of if seed in minus]
            if len(shared) > 1:
                score_SA = np.array([[of[seed], minus[seed]] for seed in shared])
                noises.append(of_scores(arm, baseline, task, difference, score_SA))
            elif min(len(of), len(minus)) > 1:  # other seeds: nothing can be paired
                sd = float(np.sqrt(sum(np.var(list(side.values()), ddof=1) for side in (of, minus))))
                noises.append(Noise(arm, baseline, task, difference, np.nan, sd))
    if not noises:
        raise RequestError(f"{name} has no two arms with two seeds each: one run has no spread")
    return noises


def screen(
    noises: Sequence[Noise], of: str, chance: float, hypotheses: int, looks: tuple[int, ...], about: str = ""
) -> str:
    """Write the table of all contrasts, and what its numbers mean. `chance`: the power; `about`: which difference."""
    rows = [line for noise in noises for line in _lines(noise, chance, hypotheses, looks)]
    need = {paired: [n for noise in noises if (n := _needed(noise, chance, paired))] for paired in (True, False)}
    sizes = listing(list(dict.fromkeys(number(noise.difference) for noise in noises)), 4)
    says = [_range(need[True], "seeds of each arm if they are paired")] if need[True] else []
    says.append(_range(need[False], "if not" if says else "seeds of each arm, which are not paired"))
    head = f"To see a difference of {sizes}{about} with a chance of {chance:.0%}, {of} needs {', '.join(says)}."
    has_runs = any(noise.seeds for noise in noises)
    notes = [
        "paired: both arms have the same seeds, which share warm start, prompts and noise; unpaired: other seeds",
        f"seeds: of each arm, for a t-test at .05{' [at the bounds of the 95% interval of sd]' * has_runs}",
        f"by looks: as this project decides (hypotheses: {hypotheses}), the first of {', '.join(map(str, looks))} seeds"
        " with that chance; in brackets those of a single look",
        f"sees: the smallest true difference that as many seeds find with a chance of {chance:.0%}" * has_runs,
        f"wrong sign: chance that {', '.join(map(str, PAPER_SEEDS))} seeds have the wrong arm ahead, if that is true",
        "one run: share of all single runs there are with the arm ahead by that difference or more" * has_runs,
    ]
    return "\n\n".join([head, _align(rows), "\n".join(filter(None, notes)), *_warnings(noises)])


def record(noises: Sequence[Noise], of: str, chance: float, hypotheses: int, looks: tuple[int, ...]) -> dict[str, Any]:
    """Return the numbers of `screen` for a program; seeds of None: more than the most that is looked for."""
    contrasts = [
        {
            **{"arm": noise.arm, "baseline": noise.baseline, "task": noise.task, "difference": noise.difference},
            **{"runs": noise.seeds, "paired_sd": noise.paired_sd, "unpaired_sd": noise.unpaired_sd},
            **{"paired_seeds": _needed(noise, chance, True), "unpaired_seeds": _needed(noise, chance, False)},
            "wrong_sign": {str(n): power.wrong_sign(noise.difference, noise.unpaired_sd, n) for n in PAPER_SEEDS},
        }
        for noise in noises
    ]
    return {"of": of, "power": chance, "hypotheses": hypotheses, "looks": looks, "contrasts": contrasts}


def _lines(noise: Noise, chance: float, hypotheses: int, looks: tuple[int, ...]) -> Iterator[dict[str, str]]:
    """Yield the line of paired seeds, unless nothing is paired, and that of unpaired ones."""
    n, score_SA = noise.seeds, noise.score_SA
    found = "" if score_SA is None else signed(float((score_SA @ [1, -1]).mean()))
    row = {f"minus {noise.baseline}": noise.arm, "task": noise.task, "runs": str(n or ""), "found": found}
    row["to see"] = number(noise.difference)
    for paired, sd in ((True, noise.paired_sd), (False, noise.unpaired_sd)):
        if np.isfinite(sd):
            wrong = [power.wrong_sign(noise.difference, sd, seeds) for seeds in PAPER_SEEDS]
            yield row | {
                **{"": "paired" if paired else "unpaired", "sd": number(sd)},
                "seeds": _write_needed(noise, chance, paired),
                "by looks": _by_looks(noise, chance, hypotheses, looks) if paired else "",
                "sees": number(_seen(n, sd, chance, paired)) if n else "",
                "wrong sign": " ".join(f"{share:3.0%}" for share in wrong),
                "one run": f"{_shown(noise, paired):.0%}" if n else "",
            }
            row = dict.fromkeys(row, "")


def _needed(noise: Noise, chance: float, paired: bool, factor: float = 1.0) -> int | None:
    sd = (noise.paired_sd if paired else noise.unpaired_sd) * factor
    return power.seeds_needed(noise.difference, sd, chance, paired) if np.isfinite(sd) else None


def _write_needed(noise: Noise, chance: float, paired: bool) -> str:
    """Write `9 [6, 17]`: the seeds needed, and those for the bounds of the standard deviation that is known so far.

    The bounds are those of a chi-squared with a degree of freedom for each seed but one, also if nothing is paired.
    """
    needed = _or_more(_needed(noise, chance, paired))
    if noise.seeds < 2:
        return needed
    freedom = noise.seeds - 1
    low, high = (float(np.sqrt(freedom / special.chdtri(freedom, tail))) for tail in (ALPHA / 2, 1 - ALPHA / 2))
    least, most = (_or_more(_needed(noise, chance, paired, end)) for end in (low, high))
    return f"{needed} [{least}, {most}]"


def _or_more(seeds: int | None) -> str:
    return f"{seeds:,}" if seeds else f"> {power.MOST_SEEDS:,}"


def _by_looks(noise: Noise, chance: float, hypotheses: int, looks: tuple[int, ...]) -> str:
    """Write the look at which the difference is found with this power; else the seeds of a single look."""
    if not noise.paired_sd:
        return str(looks[0])
    chance_K = power.chance_by_look(noise.difference / noise.paired_sd, hypotheses, looks)
    if chance_K[-1] >= chance:
        return str(looks[int(np.argmax(chance_K >= chance))])
    single = power.seeds_needed(noise.difference, noise.paired_sd, chance, True, hypotheses)
    return f"> {looks[-1]} ({_or_more(single)})"


def _seen(n: int, sd: float, chance: float, paired: bool) -> float:
    """Return the smallest true difference that a t-test of n seeds (of each arm) finds with this power."""
    return detectable_difference(sd / float(np.sqrt(n)), power.degrees(n, paired), ALPHA, chance)


def _shown(noise: Noise, paired: bool) -> float:
    """Return the share of pairs of single runs with the arm ahead by the difference or more; -1: none."""
    if noise.score_SA is None or (paired and np.isnan(noise.paired_sd)):
        return -1.0
    of_PN, minus_PN = power.draw_seeds(noise.seeds, 1, paired, np.random.default_rng(0))
    estimate_P, none_P = power.estimate(noise.score_SA, of_PN, minus_PN, paired)
    return float(power.rates(estimate_P, none_P, 0.0, noise.difference)[RATES.index("ahead")])


def _range(needed: Sequence[int], noun: str) -> str:
    if not needed:
        return f"more than {power.MOST_SEEDS:,} {noun}"
    low, high = min(needed), max(needed)
    return f"{low:,} {noun}" if low == high else f"{low:,} to {high:,} {noun}"


def _warnings(noises: Sequence[Noise]) -> Iterator[str]:
    """Say where a difference below the one to be seen would be claimed all the same, and where pairing is no help."""
    small = [n for n in noises if n.score_SA is not None and abs((n.score_SA @ [1, -1]).mean()) < n.difference]
    shown = sorted(((_shown(n, False), _shown(n, True), n.name) for n in small), reverse=True)
    if shown:
        told = [
            f"{name} in {of_two:.0%} of unpaired{f' and {of_one:.0%} of paired' * (of_one >= 0)} runs"
            for of_two, of_one, name in shown
        ]
        yield f"Arms that differ by less, which a single run shows all the same: {listing(told, MOST_TOLD)}."
    if useless := [n.name for n in noises if n.paired_sd > USELESS * n.unpaired_sd]:
        yield f"Pairing hardly helps, runs of one seed are as far apart as runs of two: {listing(useless, 4)}."


def _align(rows: Sequence[dict[str, str]]) -> str:
    """Write rows as columns of a terminal; empty columns are left out, words stand left and numbers right."""
    names = [name for name in rows[0] if any(row[name] for row in rows)]
    width = {name: max(len(name), *(len(row[name]) for row in rows)) for name in names}
    words = {names[0], "task", ""}
    return "\n".join(
        "  ".join(f"{row[name]:{'<' if name in words else '>'}{width[name]}}" for name in names).rstrip()
        for row in ({name: name for name in names}, *rows)
    )
