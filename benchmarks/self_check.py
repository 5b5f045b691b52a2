"""Do the statistics of a report keep their promises? `make bench WHAT=self-check`

    python benchmarks/self_check.py [--studies 2000] [--seed 0] [--results FOLDER]

Writes the rates to results/self_check/; the exit code is 1 if one is not as promised. See README.md here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from grpolab.paths import Results, write_text_atomic
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
MORE, LOOKS_LEVEL, LOOKS_BELOW, LOOKS_COVER, LOOKS_SLACK = 10, (0.03, 0.055), (0.0, 0.055), (0.94, 1.0), 0.02
# By the number of hypotheses that share a baseline: power and mean seeds at an effect of one standard deviation, and
# how often no effect is found negligible within a margin of one.
LOOKS_PROMISE = {1: (0.985, 12.7, 0.96), 4: (0.97, 14.2, 0.97), 10: (0.945, 15.5, 0.95)}
SHAPES = {
    "normal": (lambda rng, size: rng.normal(size=size), LOOKS_LEVEL),
    "t with 3 degrees": (lambda rng, size: rng.standard_t(3, size) / 3**0.5, LOOKS_BELOW),
    "exponential": (lambda rng, size: rng.exponential(size=size) - 1, NOTHING),
}
WRONG, COVERAGE_OF, POWER_OF = "false positives", "coverage", "power"
Rng = np.random.Generator


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
        found = paired_studies(studies, n, rng, tests.detectable_difference(1 / n**0.5, n - 1))
        bounds = (tests.POWER - POWER_SLACK, tests.POWER + POWER_SLACK)
        add(POWER_OF, "paired t-test", n, (pair.p < ALPHA for pair in found), bounds)
    return checks + planned_looks(MORE * studies, rng)


def planned_looks(studies: int, rng: Rng) -> list[Check]:
    """Check all looks and both Holm procedures together.

    A false decision anywhere in a study counts; then what the printed intervals hold, and what is found with how many
    seeds. Nothing is promised of skewed differences.
    """
    last, checks = looks.LOOKS[-1], list[Check]()

    def add(kind: str, name: str, events: NDArray, bounds: tuple[float, float], is_share: bool = True) -> None:
        checks.append(Check(kind, f"planned looks, {name}", last, float(events.mean()), bounds, studies, is_share))

    def differences(m: int, effect: float) -> NDArray:  # to one baseline: they correlate by a half
        return (rng.normal(size=(studies, m, last)) - rng.normal(size=(studies, 1, last))) * 0.5**0.5 + effect

    def decide(values_RMS: NDArray, margin: float = np.nan) -> looks.Decisions:
        return looks.decide(looks.run_tests(values_RMS, margin, 1.0))

    for m, promised in LOOKS_PROMISE.items():
        shares = (promised[0], promised[1] / last, promised[2])
        of_power, of_seeds, of_negligible = ((s - LOOKS_SLACK, min(s + LOOKS_SLACK, 1.0)) for s in shares)
        for shape, (draw, bounds) in SHAPES.items():  # a difference of two skewed values is not skewed
            arm, baseline = draw(rng, (studies, m, last)), draw(rng, (studies, 1, last))
            null = arm if shape == "exponential" else (arm - baseline) * 0.5**0.5
            add(WRONG, f"m={m}, {shape}", (decide(null).verdict != looks.INCONCLUSIVE).any(-1), bounds)
        at_margin = looks.run_tests(differences(m, 4.0), 4.0, 1.0)
        at_margin = at_margin._replace(direction_p=np.ones_like(at_margin.margin_p))  # which would come first
        is_negligible = looks.decide(at_margin).verdict == looks.NEGLIGIBLE
        add(WRONG, f"m={m}, 'negligible' at the margin", is_negligible.any(-1), LOOKS_LEVEL)
        values = differences(m, 1.0)
        decisions = decide(values)
        seeds = np.array(looks.LOOKS)[decisions.look]
        firsts = (of[:, 0] for of in (values, seeds, decisions.level, decisions.look))  # of each study
        held = [looks.interval(row[:n], False, level, look) for row, n, level, look in zip(*firsts, strict=True)]
        add(COVERAGE_OF, f"m={m}", np.array([low <= 1 <= high for low, high in held]), LOOKS_COVER)
        add(POWER_OF, f"m={m}, an effect of 1 sd", decisions.verdict == looks.SUPPORTED, of_power)
        add(POWER_OF, f"m={m}, seeds for it as a share of {last}", seeds / last, of_seeds, is_share=False)
        no_effect = decide(differences(m, 0.0), margin=1.0).verdict == looks.NEGLIGIBLE
        add(POWER_OF, f"m={m}, 'negligible' at no effect", no_effect, of_negligible)
    return checks


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
    about = f"Simulated studies, generator seed {options.seed}."
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
