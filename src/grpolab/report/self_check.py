"""`grpolab self-check`: whether a report's statistics keep their promises, in simulations and on one arm as two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from grpolab.errors import RequestError
from grpolab.paths import Results, write_text_atomic
from grpolab.report.load import Study, load
from grpolab.report.measures import at, measure
from grpolab.report.statistics import looks
from grpolab.report.statistics.intervals import COVERAGE, LEAST_FOR_BOOTSTRAP, iqm, resample, sd_interval, t_interval
from grpolab.report.statistics.power import (
    equivalence_power,
    paired_t_power,
    rate_seeds_to_decide,
    trend_seeds_to_decide,
)
from grpolab.report.statistics.tests import Difference, equivalence, fisher, holm, paired_difference, rank_trend, wilson
from grpolab.report.style import NOTE_COLOUR, QUIET, TEXT_WIDTH, Manifest, arm_styles, manifest, paper_style, save
from grpolab.report.text import NONE, markdown_table, probability

ALPHA = 0.05
LEVEL, BELOW, COVERS = (0.03, 0.07), (0.0, 0.06), (0.93, 0.97)  # the promises: a rate must lie within
POWER_SLACK = 0.04
TASKS, REPLICATES = 3, 500  # of a bootstrap
FAMILY, SLOPE = 6, 0.35  # true null hypotheses of one family; of a trend from level to level, in deviations
LEAST_HALF, SPLITS = 3, 1000  # of one arm as two: seeds of one half, and how often it is split
METRICS = ("final_score", "entropy_last", "clip/active", "kl_old", "grad_norm_max")
KINDS = ("false positives", "coverage", "power")
FIGURE = "self_check"
Rng = np.random.Generator


@dataclass(frozen=True)
class Check:
    """A rate over simulated studies of `n` seeds, and between which bounds it was promised to lie."""

    kind: str  # false positives, coverage or power
    name: str
    n: int
    rate: float
    low: float
    high: float
    studies: int

    @property
    def promised(self) -> bool:
        """Whether anything is: every rate lies between 0 and 1."""
        return (self.low, self.high) != (0.0, 1.0)

    @property
    def promise(self) -> str:
        """The bounds in words."""
        low = probability(self.low) if self.low else "0"
        return f"{low} to {probability(self.high)}" if self.promised else "nothing"

    @property
    def holds(self) -> bool:
        """Whether the promise is kept."""
        return self.low <= self.rate <= self.high


def simulate(studies: int, rng: Rng) -> list[Check]:
    """Every check, each over so many studies."""
    checks: list[Check] = []

    def add(kind: str, name: str, n: int, events: Iterable[Any], low: float, high: float) -> None:
        checks.append(Check(kind, name, n, float(np.mean(list(events))), low, high, studies))

    wrong, covered, power = KINDS
    for n in (3, 5, 10):
        pairs = _differences(studies, n, rng)
        add(wrong, "paired t-test", n, (pair.p < ALPHA for pair in pairs), *LEVEL)
        add(covered, "paired t-interval", n, (pair.low <= 0 <= pair.high for pair in pairs), *COVERS)
        if n > 5:  # below six seeds no rank test can fall below .05
            add(wrong, "sign test", n, (pair.sign_p < ALPHA for pair in pairs), *BELOW)
            add(wrong, "Wilcoxon's test", n, (pair.wilcoxon_p < ALPHA for pair in pairs), *BELOW)
    for n in (3, 5):  # of log-normal values
        logs = zip(*rng.normal(size=(2, studies, n)), strict=True)
        add(wrong, "t-test of the log ratio", n, (_paired(of, minus).p < ALPHA for of, minus in logs), *LEVEL)
    for n in (5, 10):  # the true difference is the margin: nothing is equivalent
        same = [equivalence(pd.Series(row), pd.Series(np.zeros(n)), 1.0) for row in rng.normal(1, 1, (studies, n))]
        add(wrong, "equivalence (TOST)", n, (pair.p < ALPHA and abs(pair.effect) < 1 for pair in same), *BELOW)
    for n in (5, 10):
        counts = rng.binomial(n, 0.4, size=(studies, 2)).tolist()
        add(wrong, "Fisher's exact test", n, (fisher(a, n, b, n) < ALPHA for a, b in counts), *BELOW)
    for n in (3, 5):
        trends = [rank_trend(values_SL) for values_SL in rng.normal(size=(studies, n, 4))]
        add(wrong, "Page's test, four levels", n, (trend.p < ALPHA for trend in trends), *BELOW)
    families = np.array([pair.p for pair in _differences(studies * FAMILY, 5, rng)]).reshape(studies, FAMILY)
    add(wrong, f"Holm, any of {FAMILY}", 5, ((holm(row) < ALPHA).any() for row in families.tolist()), *BELOW)

    for n in (3, 10):
        values = rng.normal(size=(studies, n))
        means, spreads = ([interval(row) for row in values] for interval in (t_interval, sd_interval))
        add(covered, "t-interval of a mean", n, (mean.low <= 0 <= mean.high for mean in means), *COVERS)
        add(covered, "chi² interval of a spread", n, (sd.low <= 1 <= sd.high for sd in spreads), *COVERS)
        rates = [wilson(count, n) for count in rng.binomial(n, 0.4, studies).tolist()]
        add(covered, "Wilson's interval of a rate", n, (rate.low <= 0.4 <= rate.high for rate in rates), 0.92, 1.0)
    # The table by which a report refuses a bootstrap says what it holds.
    statistics = {"mean": lambda scores_RTS: scores_RTS.mean(axis=(-2, -1)), "IQM": iqm}
    for name, covers in COVERAGE.items():
        for n, share in covers.items():
            scores_NTS = rng.normal(size=(studies, TASKS, n))
            bounds = [resample(scores_TS, statistics[name], rng, REPLICATES)[1:] for scores_TS in scores_NTS]
            held = (low <= 0 <= high for low, high in bounds)
            add(covered, f"bootstrap of the {name}", n, held, share - 0.02, share + 0.02)

    def add_power(name: str, n: int, events: Iterable[Any], promised: float, slack: float = POWER_SLACK) -> None:
        add(power, name, n, events, max(promised - slack, 0), min(promised + slack, 1))

    # Known effects are found as often as the power functions say.
    for n, effect in ((5, 1.5), (10, 1.0)):
        found = (pair.p < ALPHA for pair in _differences(studies, n, rng, effect))
        add_power("paired t-test", n, found, paired_t_power(effect, 1, n))
    within = [equivalence(pd.Series(row), pd.Series(np.zeros(10)), 1.2) for row in rng.normal(0, 1, (studies, 10))]
    add_power("equivalence (TOST)", 10, (pair.p < ALPHA for pair in within), equivalence_power(0, 1, 10, 1.2))
    n = rate_seeds_to_decide(0.1, 0.8) or 0
    counts = rng.binomial(n, [0.1, 0.8], size=(studies, 2)).tolist()
    add(power, "Fisher's exact test", n, (fisher(a, n, b, n) < ALPHA for a, b in counts), 0.8 - POWER_SLACK, 1.0)
    levels = SLOPE * np.arange(4)  # so many seeds as a large pilot says decide four times in five
    n = trend_seeds_to_decide(rng.normal(levels, 1, (2000, 4))) or 0
    found = (rank_trend(values_SL).p < ALPHA for values_SL in rng.normal(levels, 1, (studies, n, 4)))
    add_power("Page's test, four levels", n, found, 0.8, 0.08)
    return checks + planned_looks(studies, rng)


# Power of planned looks at an effect of one standard deviation, by hypotheses of a study that share a baseline.
POWER_OF_LOOKS = {1: 0.985, 4: 0.97, 10: 0.945}
SHAPES = {
    "normal": lambda rng, size: rng.normal(size=size),
    "t with 3 degrees": lambda rng, size: rng.standard_t(3, size) / 3**0.5,
    "exponential": lambda rng, size: rng.exponential(size=size) - 1,
}


def planned_looks(studies: int, rng: Rng) -> list[Check]:
    """All looks and both Holm procedures together: a false direction anywhere in a study, what the printed intervals
    hold, and what is found at an effect of one standard deviation. Of skewed differences nothing is promised.
    """
    last, checks = looks.LOOKS[-1], list[Check]()

    def add(kind: str, name: str, events: NDArray, low: float, high: float) -> None:
        checks.append(Check(kind, f"planned looks, {name}", last, float(events.mean()), low, high, len(events)))

    wrong, covered, power = KINDS
    for m, promised in POWER_OF_LOOKS.items():
        for shape, draw_ in SHAPES.items():
            # Differences to one baseline correlate by a half; those of a skewed shape are skewed themselves.
            own, shared = draw_(rng, (studies, m, last)), draw_(rng, (studies, 1, last))
            null = (own - shared) * 0.5**0.5 if shape != "exponential" else own
            found = looks.decide(looks.evidence(null, 0.0, 1.0))
            bounds = {"normal": (0.03, 0.06), "exponential": (0.0, 1.0)}.get(shape, BELOW)
            add(wrong, f"m={m}, {shape}", (found.verdict != looks.INCONCLUSIVE).any(-1), *bounds)
        effect = (rng.normal(size=(studies, m, last)) - rng.normal(size=(studies, 1, last))) * 0.5**0.5 + 1
        found = looks.decide(looks.evidence(effect, 0.0, 1.0))
        seeds = np.array(looks.LOOKS)[found.look]
        add(
            power, f"m={m}, {seeds.mean():.1f} seeds on average", found.verdict == looks.SUPPORTED, promised - 0.03, 1.0
        )
        held = []
        for rows in zip(
            effect[:, 0], found.verdict[:, 0], found.level[:, 0], found.look[:, 0], seeds[:, 0], strict=True
        ):
            values, verdict, level, look, n = rows
            low, high = looks.interval(values[:n], verdict, level, look)
            held.append(low <= 1 <= high)
        add(covered, f"m={m}", np.array(held), 0.94, 1.0)
    return checks


def _differences(studies: int, n: int, rng: Rng, effect: float = 0.0) -> list[Difference]:
    """Paired differences of two arms that share what a seed brings with it; their own noise has a spread of 1."""
    seed, of, minus = rng.normal(size=(3, studies, n)) * np.array([2.0, 0.5**0.5, 0.5**0.5])[:, None, None]
    return [_paired(a, b) for a, b in zip(seed + of + effect, seed + minus, strict=True)]


def _paired(of_S: NDArray, minus_S: NDArray) -> Difference:
    return paired_difference(pd.Series(of_S), pd.Series(minus_S))


def write(results: Results, study: str, studies: int, seed: int) -> tuple[list[Check], Path]:
    """Run every check, write figure, manifest and page below results/self_check/; the checks and the page.

    `study`: tracked runs whose baseline is compared with itself. Raises RequestError where it is not planned or its
    baseline has too few seeds for two halves.
    """
    part, rng = load(results, study)[-1], np.random.default_rng(seed)
    twice = one_arm_twice(part, rng)  # first: it may refuse
    checks = [*simulate(studies, rng), *twice]
    folder = results.root / FIGURE
    with paper_style():
        figure, shown = draw(part, checks)
    save(figure, folder / FIGURE)
    shown.write(folder / f"{FIGURE}.json")
    write_text_atomic(folder / f"{FIGURE}.md", page(checks, study, seed))
    return checks, folder / f"{FIGURE}.md"


def one_arm_twice(study: Study, rng: np.random.Generator) -> list[Check]:
    """The A/A study from tracked runs: the baseline under two names, each with other seeds, paired at random.

    Of every split into two halves the paired t-test of the report asks whether they differ. The splits of one set of
    runs are no independent studies, so that nothing is promised of a single rate; it should be near ALPHA.

    Raises RequestError where the baseline has no facet with two halves of LEAST_HALF seeds.
    """
    checks = []
    for metric in METRICS:
        values = measure(study, metric)
        arms = [at(values, facet, study.baseline).dropna().to_numpy() for facet in study.facets]
        enough = [values_S for values_S in arms if len(values_S) >= 2 * LEAST_HALF]
        if not enough:
            needed = f"{2 * LEAST_HALF} seeds of {study.plan.get('baseline', 'a baseline')}"  # a collection has none
            raise RequestError(f"study={study.name}: an A/A study of its runs needs {needed}: name a study with more")
        differ = []
        for values_S in enough:
            half = len(values_S) // 2
            splits = (np.split(rng.permutation(values_S)[: 2 * half], 2) for _ in range(SPLITS))
            differ += [_paired(*halves).p < ALPHA for halves in splits]
        half, name = min(len(values_S) for values_S in arms) // 2, f"one arm twice: {metric}"
        checks.append(Check("false positives", name, half, float(np.mean(differ)), 0.0, 1.0, len(differ)))
    return checks


def draw(study: Study, checks: Sequence[Check]) -> tuple[Figure, Manifest]:
    """Each rate as a dot on what was promised of it, a panel for each kind of promise."""
    of_kind = {kind: [check for check in checks if check.kind == kind] for kind in KINDS}
    figure = Figure(figsize=(TEXT_WIDTH, 0.13 * len(checks) + 1.2), layout="constrained")
    panels = figure.subplots(len(KINDS), 1, height_ratios=[len(drawn) + 1 for drawn in of_kind.values()])
    for panel, (kind, drawn) in zip(panels, of_kind.items(), strict=True):
        for place, check in enumerate(drawn):
            if check.promised:
                panel.hlines(place, check.low, check.high, color=QUIET, linewidth=5, alpha=0.35)
            kept, broken = (arm_styles(["grpo"])["grpo"].colour, "o"), (NOTE_COLOUR, "X")
            colour, marker = kept if check.holds else broken
            panel.plot(check.rate, place, marker, color=colour)
        panel.set_yticks(range(len(drawn)), [f"{check.name}, n={check.n}" for check in drawn])
        panel.set_ylim(len(drawn) - 0.5, -0.5)
        panel.grid(axis="y", visible=False)
        panel.set_title(kind, loc="left")
    panels[-1].set_xlabel("share of studies")
    caption = (
        "What the statistics of a report promise and keep, over simulated studies with a known truth (n: seeds). Bars:"
        " what is promised; crosses: not kept. Above, how often a test rejects what is true; then, how often an"
        f" interval holds the truth (no report bootstraps below {LEAST_FOR_BOOTSTRAP} runs of each task); below, how"
        f" often a known effect is found. `one arm twice`: halves of the tracked runs of `{study.baseline}` in"
        f" {study.name} that differ in nothing but their seeds."
    )
    numbers = [asdict(check) | {"holds": check.holds} for check in checks]
    return figure, manifest(study, FIGURE, caption, "share of studies", numbers)


def page(checks: Sequence[Check], study: str, seed: int) -> str:
    """The checks as Markdown."""
    rows = [
        {
            "promise about": check.kind,
            "of": check.name,
            "n": check.n,
            "studies": f"{check.studies:,}",
            "found": probability(check.rate),
            "promised": check.promise,
            "kept": NONE if not check.promised else "yes" if check.holds else "**no**",
        }
        for check in checks
    ]
    head = f"# Self-check of the statistics\n\nSimulated studies (generator seed {seed}), and runs of `{study}`."
    return f"{head}\n\n![self-check]({FIGURE}.png)\n\n{markdown_table(pd.DataFrame(rows))}\n"
