"""Do the statistics of a report keep their promises? `make bench WHAT=self-check`

    python benchmarks/self_check.py [--studies 2000] [--seed 0] [--results FOLDER]

Writes the rates to results/self_check/; the exit code is 1 if one is not as promised. See README.md here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from grpolab.paths import Results, project_root, write_text_atomic
from grpolab.report.claims import decide
from grpolab.report.load import load
from grpolab.report.plans import outcome_at
from grpolab.report.statistics import looks, tests
from grpolab.report.statistics.intervals import COVERAGE, iqm, resample, sd_interval, t_interval
from grpolab.report.text import NONE, markdown_table, probability

ALPHA = 0.05
LEVEL, BELOW, COVERS = (0.03, 0.07), (0.0, 0.06), (0.93, 0.97)  # promises: a rate must lie within
POWER_SLACK = 0.04
NOTHING = (0.0, 1.0)  # is promised: every rate lies there
TASKS, REPLICATES = 3, 500  # of a bootstrap
FAMILY = 6  # true null hypotheses of one family
# Planned looks promise more exactly, so ten times as many studies are simulated.
MORE, LOOKS_WRONG, LOOKS_COVER, LOOKS_SLACK = 10, (0.0, 0.05), (0.95, 1.0), 0.02
# By the number of hypotheses that share a baseline: power and mean seeds at an effect of one standard deviation, and
# how often no effect is found negligible within a margin of one.
LOOKS_PROMISE = {1: (0.95, 14.7, 0.955), 5: (0.89, 17.0, 0.91), 10: (0.83, 17.9, 0.825)}
LEAST_SEEDS = 15  # of a question whose residuals are drawn from
FLIPS = 4000
WRONG, COVERAGE_OF, POWER_OF = "false positives", "coverage", "power"
Rng = np.random.Generator
Draw = Callable[[tuple[int, ...]], NDArray]  # values of this shape, from the generator of the check


@dataclass(frozen=True)
class Check:
    """A rate over simulated studies of `n` seeds, and the bounds that are promised for it."""

    kind: str  # WRONG, COVERAGE_OF or POWER_OF
    name: str
    n: int
    rate: float
    bounds: tuple[float, float]
    studies: int
    is_share: bool = True  # of these studies

    @property
    def holds(self) -> bool:
        return self.bounds[0] <= self.rate <= self.bounds[1]

    def row(self) -> dict[str, Any]:
        """Return the row of the page, with the interval of Clopper and Pearson (1934)."""
        found = stats.binomtest(round(self.rate * self.studies), self.studies).proportion_ci(method="exact")
        low = probability(self.bounds[0]) if self.bounds[0] else "0"
        is_promised = self.bounds != NOTHING
        return {
            "promise about": self.kind,
            "of": self.name,
            "n": self.n,
            "studies": f"{self.studies:,}",
            "found": probability(self.rate),
            "[95%]": f"[{probability(found.low)}, {probability(found.high)}]" if self.is_share else NONE,
            "promised": f"{low} to {probability(self.bounds[1])}" if is_promised else "nothing",
            "kept": NONE if not is_promised else "yes" if self.holds else "**no**",
        }


def simulate(studies: int, rng: Rng) -> list[Check]:
    """Run every check, each over so many studies."""
    checks: list[Check] = []

    def add(kind: str, name: str, n: int, events: Iterable[Any], bounds: tuple[float, float]) -> None:
        checks.append(Check(kind, name, n, float(np.mean(list(events))), bounds, studies))

    for n in (3, 5, 10):
        pairs = paired_studies(studies, n, rng)
        add(WRONG, "paired t-test", n, (pair.p < ALPHA for pair in pairs), LEVEL)
        add(COVERAGE_OF, "paired t-interval", n, (pair.low <= 0 <= pair.high for pair in pairs), COVERS)
    signs = rng.choice([-1.0, 0.0, 1.0], size=(studies, 15))
    add(WRONG, "sign test, a third ties", 15, (tests.sign_test(row) < ALPHA for row in signs), BELOW)
    for n in (5, 10):
        counts = rng.binomial(n, 0.4, size=(studies, 2)).tolist()
        add(WRONG, "Fisher's exact test", n, (tests.fisher(a, n, b, n) < ALPHA for a, b in counts), BELOW)
    for n in (3, 5):
        trends = [tests.rank_trend(values_SL) for values_SL in rng.normal(size=(studies, n, 4))]
        add(WRONG, "Page's test, four levels", n, (trend.p < ALPHA for trend in trends), BELOW)
    families = np.array([pair.p for pair in paired_studies(studies * FAMILY, 5, rng)]).reshape(studies, FAMILY)
    add(WRONG, f"Holm, any of {FAMILY}", 5, ((tests.holm(row) < ALPHA).any() for row in families.tolist()), BELOW)
    tasks_RTS = rng.normal(size=(studies, TASKS, 10)) * np.array([1, 1, 3])[:, None]
    add(WRONG, "tasks disagree", 10, (looks.disagreement(values_TS) < ALPHA for values_TS in tasks_RTS), LEVEL)
    for n in (3, 10):
        values = rng.normal(size=(studies, n))
        means, spreads = ([interval(row) for row in values] for interval in (t_interval, sd_interval))
        add(COVERAGE_OF, "t-interval of a mean", n, (mean.low <= 0 <= mean.high for mean in means), COVERS)
        add(COVERAGE_OF, "chi² interval of a spread", n, (sd.low <= 1 <= sd.high for sd in spreads), COVERS)
        rates = [tests.wilson(count, n) for count in rng.binomial(n, 0.4, studies).tolist()]
        add(COVERAGE_OF, "Wilson's interval of a rate", n, (rate.low <= 0.4 <= rate.high for rate in rates), (0.92, 1))
    # A report refuses a bootstrap by this table of what its intervals hold.
    statistics = {"mean": lambda scores_RTS: scores_RTS.mean(axis=(-2, -1)), "IQM": iqm}
    for name, covers in COVERAGE.items():
        for n, share in covers.items():
            scores_NTS = rng.normal(size=(studies, TASKS, n))
            bounds = [resample(scores_TS, statistics[name], rng, REPLICATES)[1:] for scores_TS in scores_NTS]
            held = (low <= 0 <= high for low, high in bounds)
            add(COVERAGE_OF, f"bootstrap of the {name}", n, held, (share - 0.02, share + 0.02))
    for n in (5, 10):  # the difference that `compare` says would have been found
        found = paired_studies(studies, n, rng, looks.detectable_difference(1 / n**0.5, n - 1))
        promised = (looks.POWER - POWER_SLACK, looks.POWER + POWER_SLACK)
        add(POWER_OF, "paired t-test", n, (pair.p < ALPHA for pair in found), promised)
    return checks + planned_looks(MORE * studies, rng)


def nulls(rng: Rng, studies: int) -> dict[str, tuple[Draw, tuple[float, float]]]:
    """Return values without effect, (R, M, S), with the promise about them.

    Arms that are exchangeable given the seed have symmetric differences, whatever a run's own distribution: `pairs`
    draws one baseline and an arm for each hypothesis. Arms whose means are equal and whose distributions are not have
    skewed differences: of these, residuals of committed runs keep the promise, and nothing is promised of the others.
    """
    pools_PS = residuals()
    sizes_P = np.array([len(pool_S) for pool_S in pools_PS])
    padded_PS = np.array([np.resize(pool_S, sizes_P.max()) for pool_S in pools_PS])

    def pairs(draw: Draw) -> Draw:
        return lambda size: draw(size) - draw((studies, 1, size[-1]))

    def of_runs(size: tuple[int, ...]) -> NDArray:
        pool_RM = rng.integers(len(sizes_P), size=size[:-1])
        return padded_PS[pool_RM[..., None], (rng.random(size) * sizes_P[pool_RM][..., None]).astype(int)]

    return {
        "normal pairs": (pairs(lambda size: rng.normal(size=size)), LOOKS_WRONG),
        "pairs on a grid of one sd (ties)": (pairs(lambda size: rng.normal(size=size).round()), LOOKS_WRONG),
        "pairs of t with 3 degrees": (pairs(lambda size: rng.standard_t(3, size)), LOOKS_WRONG),
        "lognormal pairs": (pairs(lambda size: rng.lognormal(size=size)), LOOKS_WRONG),
        "pairs of which half are lost": (
            pairs(lambda size: rng.integers(2, size=size) + 0.1 * rng.normal(size=size)),
            LOOKS_WRONG,
        ),
        "residuals of runs": (of_runs, LOOKS_WRONG),
        "lognormal differences, sigma .5": (lambda size: rng.lognormal(0, 0.5, size) - np.exp(0.125), NOTHING),
        "exponential differences": (lambda size: rng.exponential(size=size) - 1, NOTHING),
        "lognormal differences, sigma 1": (lambda size: rng.lognormal(size=size) - np.exp(0.5), NOTHING),
    }


def residuals() -> list[NDArray]:
    """Return the differences by seed of each question of the committed `claims`, as decided, minus their mean; (S,).

    They are divided by their standard deviation. Questions of few seeds or few different values are left out.
    """
    pools = list[NDArray]()
    for claim in decide(load(outcome_at(project_root() / "results" / "reference"), "claims")):
        question = claim.question
        if question and claim.is_finding and question.kind == "mean" and len(question.seeds) >= LEAST_SEEDS:
            y_S = question.pooled(len(question.seeds))
            if np.isfinite(y_S).all() and len(np.unique(y_S)) >= LEAST_SEEDS / 2:
                pools.append((y_S - y_S.mean()) / y_S.std())
    return pools


def planned_looks(studies: int, rng: Rng) -> list[Check]:
    """Check all looks and both Holm procedures together.

    A false decision anywhere in a study counts; then what the printed intervals hold, and what is found with how many
    seeds. Of residuals of runs it also counts what other rules would say: t as for normal values, and sign flips.
    """
    last, checks = looks.LOOKS[-1], list[Check]()

    def add(kind: str, name: str, events: NDArray, bounds: tuple[float, float], is_share: bool = True) -> None:
        checks.append(Check(kind, f"planned looks, {name}", last, float(events.mean()), bounds, len(events), is_share))

    def found(values_RMS: NDArray, margin: float = np.nan) -> looks.Decisions:
        return looks.decide(looks.run_tests(values_RMS[..., None, :], margin, 1.0))

    def is_any(decisions: looks.Decisions, verdict: str = "") -> NDArray:
        words = decisions.verdict
        return np.asarray((words == verdict if verdict else words != looks.INCONCLUSIVE).any(-1))

    drawn = nulls(rng, studies)
    of_runs, _ = drawn["residuals of runs"]
    for m, promised in LOOKS_PROMISE.items():
        size, shares = (studies, m, last), (promised[0], promised[1] / last, promised[2])
        of_power, of_seeds, of_negligible = ((s - LOOKS_SLACK, min(s + LOOKS_SLACK, 1.0)) for s in shares)
        for shape, (draw, bounds) in drawn.items():
            add(WRONG, f"m={m}, {shape}", is_any(found(draw(size))), bounds)
        with mock.patch.object(looks, "degrees", lambda n: n - 1):
            add(WRONG, f"m={m}, residuals of runs, by n - 1 degrees", is_any(found(of_runs(size))), NOTHING)
        flipped = by_flips(of_runs((studies // MORE, m, last)), rng)
        add(WRONG, f"m={m}, residuals of runs, by sign flips", is_any(flipped), NOTHING)
        # 'As well as': of three tasks one is at its margin, three sd of a seed from 0.
        for shape in ("normal pairs", "residuals of runs"):
            values_RMTS = np.stack([drawn[shape][0](size) / 3 for _ in range(TASKS)], axis=2) + np.array(
                [[1.0], [0], [0]]
            )
            tests_RMK = looks.run_tests(values_RMTS, 1.0, 1.0, equal_M=True)
            equal = is_any(looks.decide(tests_RMK, equal_M=True), looks.SUPPORTED)
            add(WRONG, f"m={m}, 'as well as' with one of {TASKS} tasks at its margin, {shape}", equal, LOOKS_WRONG)
        arm, baseline = rng.normal(size=size), rng.normal(size=(studies, 1, last))
        noise = (arm - baseline) * 0.5**0.5
        decisions = found(noise + 1.0)
        seeds = np.array(looks.LOOKS)[decisions.look]
        firsts = (noise[:, 0] + 1.0, seeds[:, 0], (decisions.level * looks.shares()[decisions.look])[:, 0])
        held = [looks.interval(row[:n], level) for row, n, level in zip(*firsts, strict=True)]
        add(COVERAGE_OF, f"m={m}", np.array([low <= 1 <= high for low, high in held]), LOOKS_COVER)
        add(POWER_OF, f"m={m}, an effect of 1 sd", decisions.verdict == looks.SUPPORTED, of_power)
        add(POWER_OF, f"m={m}, seeds for it as a share of {last}", seeds / last, of_seeds, is_share=False)
        add(POWER_OF, f"m={m}, 'negligible' at no effect", found(noise, 1.0).verdict == looks.NEGLIGIBLE, of_negligible)
    return checks


def by_flips(values_RMS: NDArray, rng: Rng) -> looks.Decisions:
    """Decide by p of random sign flips, all looks as planned; five seeds have 16 pairs of signs, and decide nothing."""
    p = []
    for n in looks.LOOKS:
        signs_SF = rng.choice([-1.0, 1.0], (n, FLIPS))
        first_RMS = values_RMS[..., :n]
        sums_RM = np.abs(first_RMS.sum(-1)) * (1 - 1e-9)
        p.append(
            [
                1 + (np.abs(of_MS @ signs_SF) >= sums_M[:, None]).sum(-1)
                for of_MS, sums_M in zip(first_RMS, sums_RM, strict=True)
            ]
        )
    direction_p = np.moveaxis(np.array(p) / (1 + FLIPS), 0, -1)
    return looks.decide(looks.LookTests(direction_p, np.ones_like(direction_p), direction_p > 0))


def paired_studies(studies: int, n: int, rng: Rng, effect: float = 0.0) -> list[tests.Difference]:
    """Return paired differences of two arms that share the effect of a seed (sd 2) and have noise of sd 1."""
    seed, arm, baseline = rng.normal(size=(3, studies, n)) * np.array([2.0, 0.5**0.5, 0.5**0.5])[:, None, None]
    sides = zip(seed + arm + effect, seed + baseline, strict=True)
    return [tests.paired_difference(pd.Series(arm_S), pd.Series(baseline_S)) for arm_S, baseline_S in sides]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every check and write the page; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=2000, help="simulated studies of each check")
    parser.add_argument("--seed", type=int, default=0, help="of the generator")
    parser.add_argument("--results", type=Path, default=Path("results"))
    options = parser.parse_args(arguments)
    checks = simulate(options.studies, np.random.default_rng(options.seed))
    about = (
        f"Simulated studies, generator seed {options.seed}. Residuals are drawn with replacement from the differences"
        f" by seed of every question of `claims` with at least {LEAST_SEEDS} seeds, a question for each hypothesis."
    )
    table = markdown_table(pd.DataFrame([check.row() for check in checks]))
    page = Results.open(str(options.results)).root / "self_check" / "self_check.md"
    write_text_atomic(page, f"# Self-check of the statistics\n\n{about}\n\n{table}\n")
    for check in checks:
        if not check.holds:
            low, high = check.bounds
            print(f"{check.name}, n={check.n}: {check.kind} {check.rate:.3f}, not between {low:.3f} and {high:.3f}")
    print(page)
    return int(not all(check.holds for check in checks))


if __name__ == "__main__":
    sys.exit(main())
