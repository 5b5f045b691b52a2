"""Simulated studies: whether the statistics of a report keep what they promise. Every draw is the given generator's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpolab.errors import RequestError
from grpolab.paths import Results, write_text_atomic
from grpolab.report.load import Study, load
from grpolab.report.measures import at, measure
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
    def holds(self) -> bool:
        """Whether the promise is kept."""
        return self.low <= self.rate <= self.high


def simulate(studies: int, rng: Rng) -> list[Check]:
    """Every check, each over so many studies."""
    makers = (_paired, _log_paired, _equivalence, _fisher, _page, _holm, _intervals, _bootstrap, _power)
    return [check for maker in makers for check in maker(studies, rng)]


def _differences(studies: int, n: int, rng: Rng, effect: float = 0.0) -> list[Difference]:
    """Paired differences of two arms that share what a seed brings with it; their own noise has a spread of 1."""
    seed, of, minus = rng.normal(size=(3, studies, n)) * np.array([2.0, 0.5**0.5, 0.5**0.5])[:, None, None]
    return [
        paired_difference(pd.Series(a), pd.Series(b)) for a, b in zip(seed + of + effect, seed + minus, strict=True)
    ]


def _share(found: list[Difference], event: Callable[[Difference], bool]) -> float:
    return float(np.mean([event(difference) for difference in found]))


def _paired(studies: int, rng: Rng) -> Iterator[Check]:
    for n in (3, 5, 10):
        found = _differences(studies, n, rng)
        rejected = _share(found, lambda d: d.p < ALPHA)
        yield Check("false positives", "paired t-test", n, rejected, *LEVEL, studies)
        held = _share(found, lambda d: d.low <= 0 <= d.high)
        yield Check("coverage", "paired t-interval", n, held, *COVERS, studies)
        if n > 5:  # below six seeds no rank test can fall below .05
            sign, ranks = _share(found, lambda d: d.sign_p < ALPHA), _share(found, lambda d: d.wilcoxon_p < ALPHA)
            yield Check("false positives", "sign test", n, sign, *BELOW, studies)
            yield Check("false positives", "Wilcoxon's test", n, ranks, *BELOW, studies)


def _log_paired(studies: int, rng: Rng) -> Iterator[Check]:
    for n in (3, 5):
        of, minus = np.exp(rng.normal(size=(2, studies, n)))
        found = [paired_difference(pd.Series(np.log(a)), pd.Series(np.log(b))) for a, b in zip(of, minus, strict=True)]
        rejected = _share(found, lambda d: d.p < ALPHA)
        yield Check("false positives", "t-test of the log ratio", n, rejected, *LEVEL, studies)


def _equivalence(studies: int, rng: Rng) -> Iterator[Check]:
    """The true difference is the margin: nothing is equivalent."""
    for n in (5, 10):
        found = [equivalence(pd.Series(row), pd.Series(np.zeros(n)), 1.0) for row in rng.normal(1, 1, (studies, n))]
        claimed = _share(found, lambda d: d.p < ALPHA and abs(d.effect) < 1)
        yield Check("false positives", "equivalence (TOST)", n, claimed, *BELOW, studies)


def _fisher(studies: int, rng: Rng) -> Iterator[Check]:
    for n in (5, 10):
        counts = rng.binomial(n, 0.4, size=(studies, 2))
        rejected = float(np.mean([fisher(a, n, b, n) < ALPHA for a, b in counts.tolist()]))
        yield Check("false positives", "Fisher's exact test", n, rejected, *BELOW, studies)


def _page(studies: int, rng: Rng) -> Iterator[Check]:
    for n in (3, 5):
        found = [rank_trend(values_SL) for values_SL in rng.normal(size=(studies, n, 4))]
        rejected = _share(found, lambda d: d.p < ALPHA)
        yield Check("false positives", "Page's test, four levels", n, rejected, *BELOW, studies)


def _holm(studies: int, rng: Rng, family: int = 6) -> Iterator[Check]:
    """Whether any of a family of true null hypotheses is rejected."""
    p = np.array([difference.p for difference in _differences(studies * family, 5, rng)]).reshape(studies, family)
    wrong = float(np.mean([(holm(row) < ALPHA).any() for row in p.tolist()]))
    yield Check("false positives", f"Holm, any of {family}", 5, wrong, *BELOW, studies)


def _intervals(studies: int, rng: Rng) -> Iterator[Check]:
    for n in (3, 10):
        values = rng.normal(size=(studies, n))
        mean, sd = ([interval(row) for row in values] for interval in (t_interval, sd_interval))
        held = float(np.mean([i.low <= 0 <= i.high for i in mean]))
        yield Check("coverage", "t-interval of a mean", n, held, *COVERS, studies)
        held = float(np.mean([i.low <= 1 <= i.high for i in sd]))
        yield Check("coverage", "chi² interval of a spread", n, held, *COVERS, studies)
        lost = rng.binomial(n, 0.4, studies).tolist()
        held = float(np.mean([wilson(count, n).low <= 0.4 <= wilson(count, n).high for count in lost]))
        yield Check("coverage", "Wilson's interval of a rate", n, held, 0.92, 1.0, studies)


def _bootstrap(studies: int, rng: Rng) -> Iterator[Check]:
    """Means and IQMs over tasks: the table by which a report refuses a bootstrap says what it holds."""
    statistics = {"mean": lambda scores_RTS: scores_RTS.mean(axis=(-2, -1)), "IQM": iqm}
    for name, covers in COVERAGE.items():
        for n, said in covers.items():
            scores_NTS = rng.normal(size=(studies, TASKS, n))
            found = [resample(scores_TS, statistics[name], rng, REPLICATES) for scores_TS in scores_NTS]
            held = float(np.mean([low <= 0 <= high for _, low, high in found]))
            yield Check("coverage", f"bootstrap of the {name}", n, held, said - 0.02, said + 0.02, studies)


def _power(studies: int, rng: Rng) -> Iterator[Check]:
    """Known effects are found as often as the power functions say."""
    for n, effect in ((5, 1.5), (10, 1.0)):
        found = _share(_differences(studies, n, rng, effect), lambda d: d.p < ALPHA)
        yield _as_promised("paired t-test", n, found, paired_t_power(effect, 1, n), studies)
    rows = rng.normal(0, 1, (studies, 10))
    same = _share([equivalence(pd.Series(r), pd.Series(np.zeros(10)), 1.2) for r in rows], lambda d: d.p < ALPHA)
    yield _as_promised("equivalence (TOST)", 10, same, equivalence_power(0, 1, 10, 1.2), studies)
    n = rate_seeds_to_decide(0.1, 0.8) or 0
    counts = rng.binomial(n, [0.1, 0.8], size=(studies, 2)).tolist()
    apart = float(np.mean([fisher(a, n, b, n) < ALPHA for a, b in counts]))
    yield Check("power", "Fisher's exact test", n, apart, 0.8 - POWER_SLACK, 1.0, studies)
    yield _power_of_page(studies, rng)


def _power_of_page(studies: int, rng: Rng, slope: float = 0.35) -> Check:
    """So many seeds as a large pilot says decide four times in five."""
    levels = slope * np.arange(4)
    n = trend_seeds_to_decide(rng.normal(levels, 1, (2000, 4))) or 0
    found = [rank_trend(values_SL) for values_SL in rng.normal(levels, 1, (studies, n, 4))]
    return _as_promised("Page's test, four levels", n, _share(found, lambda d: d.p < ALPHA), 0.8, studies, 0.08)


def _as_promised(name: str, n: int, found: float, promised: float, studies: int, slack: float = POWER_SLACK) -> Check:
    return Check("power", name, n, found, max(promised - slack, 0), min(promised + slack, 1), studies)


# ----------------------------------------------------------------------------------------------------------------------
# `grpolab self-check`: whether the statistics keep their promises, on simulated studies and on one arm as two.


FIGURE = "self_check"
LEAST_HALF = 3  # seeds of one half
SPLITS = 1000
METRICS = ("final_score", "entropy_last", "clip/active", "kl_old", "grad_norm_max")
KINDS = ("false positives", "coverage", "power")


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
        found = [_splits(values_S, rng) for values_S in arms if len(values_S) >= 2 * LEAST_HALF]
        if not found:
            needed = f"{2 * LEAST_HALF} seeds of {study.baseline}"
            raise RequestError(f"study={study.name}: an A/A study of its runs needs {needed}: name a study with more")
        rejected = float(np.mean(np.concatenate(found)))
        half, name = min(len(values_S) for values_S in arms) // 2, f"one arm twice: {metric}"
        checks.append(Check("false positives", name, half, rejected, 0.0, 1.0, SPLITS * len(found)))
    return checks


def _splits(values_S: np.ndarray, rng: np.random.Generator) -> list[bool]:
    """Whether the two halves of each random split are said to differ."""
    half = len(values_S) // 2
    halves = (np.split(rng.permutation(values_S)[: 2 * half], 2) for _ in range(SPLITS))
    return [paired_difference(pd.Series(of), pd.Series(minus)).p < ALPHA for of, minus in halves]


def draw(study: Study, checks: Sequence[Check]) -> tuple[Figure, Manifest]:
    """Each rate as a dot on what was promised of it, a panel for each kind of promise."""
    of_kind = {kind: [check for check in checks if check.kind == kind] for kind in KINDS}
    figure = Figure(figsize=(TEXT_WIDTH, 0.13 * len(checks) + 1.2), layout="constrained")
    panels = figure.subplots(len(KINDS), 1, height_ratios=[len(own) + 1 for own in of_kind.values()])
    for panel, (kind, own) in zip(panels, of_kind.items(), strict=True):
        _draw_panel(panel, own)
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


def _draw_panel(panel: Axes, checks: Sequence[Check]) -> None:
    kept, broken = (arm_styles(["grpo"])["grpo"].colour, "o"), (NOTE_COLOUR, "X")
    for place, check in enumerate(checks):
        if check.promised:
            panel.hlines(place, check.low, check.high, color=QUIET, linewidth=5, alpha=0.35)
        colour, marker = kept if check.holds else broken
        panel.plot(check.rate, place, marker, color=colour)
    panel.set_yticks(range(len(checks)), [f"{check.name}, n={check.n}" for check in checks])
    panel.set_ylim(len(checks) - 0.5, -0.5)
    panel.grid(axis="y", visible=False)


def page(checks: Sequence[Check], study: str, seed: int) -> str:
    """The checks as Markdown."""
    table = pd.DataFrame(
        {
            "promise about": [check.kind for check in checks],
            "of": [check.name for check in checks],
            "n": [check.n for check in checks],
            "studies": [f"{check.studies:,}" for check in checks],
            "found": [probability(check.rate) for check in checks],
            "promised": [_promise(check) for check in checks],
            "kept": [_kept(check) for check in checks],
        }
    )
    head = f"# Self-check of the statistics\n\nSimulated studies (generator seed {seed}), and runs of `{study}`."
    return f"{head}\n\n![self-check]({FIGURE}.png)\n\n{markdown_table(table)}\n"


def _kept(check: Check) -> str:
    return NONE if not check.promised else "yes" if check.holds else "**no**"


def _promise(check: Check) -> str:
    if not check.promised:
        return "nothing: the splits share their runs"
    return f"{probability(check.low) if check.low else '0'} to {probability(check.high)}"
