"""`grpolab self-check`: whether a report's statistics keep their promises, in simulations and on one arm as two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

from grpolab.errors import RequestError
from grpolab.paths import Results, write_text_atomic
from grpolab.report.load import StudyRuns, load
from grpolab.report.measures import by_cell
from grpolab.report.statistics import looks
from grpolab.report.statistics.intervals import COVERAGE, LEAST_FOR_BOOTSTRAP, iqm, resample, sd_interval, t_interval
from grpolab.report.statistics.power import POWER, detectable_difference
from grpolab.report.statistics.tests import Difference, fisher, holm, paired_difference, rank_trend, sign_test, wilson
from grpolab.report.style import NOTE_COLOUR, QUIET, TEXT_WIDTH, Manifest, arm_styles, manifest, paper_style, save
from grpolab.report.text import NONE, count, markdown_table, probability

ALPHA = 0.05
LEVEL, BELOW, COVERS = (0.03, 0.07), (0.0, 0.06), (0.93, 0.97)  # the promises: a rate must lie within
POWER_SLACK = 0.04
TASKS, REPLICATES = 3, 500  # of a bootstrap
FAMILY = 6  # true null hypotheses of one family
# Of planned looks: as many more studies, since they promise more exactly.
MORE, LOOKS_LEVEL, LOOKS_BELOW, LOOKS_COVER, LOOKS_SLACK = 10, (0.03, 0.055), (0.0, 0.055), (0.94, 1.0), 0.02
LEAST_RUNS, RESAMPLES = 40, 1000  # of one arm as two
METRICS = ("final_score", "entropy_last", "clip/active", "kl_old", "grad_norm_max")
KINDS = ("false positives", "coverage", "power")
FIGURE, ONE_ARM = "self_check", "one arm twice"
OVERLAP = (
    f"`{ONE_ARM}`: {{runs}} that differ in nothing but their seeds within each of {{facets}}, paired at random, each in"
    " one pair at most. The resamples are of the same runs and overlap, so that the interval of that share is too"
    " narrow, and nothing is promised of it."
)
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
    counted: bool = True  # whether it is a share of these studies

    @property
    def promised(self) -> bool:
        """Whether anything is: every rate lies between 0 and 1."""
        return (self.low, self.high) != (0.0, 1.0)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of the rate after Clopper and Pearson (1934), as if its studies were independent."""
        if not self.counted:
            return np.nan, np.nan
        found = stats.binomtest(round(self.rate * self.studies), self.studies).proportion_ci(method="exact")
        return float(found.low), float(found.high)

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
    signs = rng.choice([-1.0, 0.0, 1.0], size=(studies, 15))
    add(wrong, "sign test, a third ties", 15, (sign_test(row) < ALPHA for row in signs), *BELOW)
    for n in (5, 10):
        counts = rng.binomial(n, 0.4, size=(studies, 2)).tolist()
        add(wrong, "Fisher's exact test", n, (fisher(a, n, b, n) < ALPHA for a, b in counts), *BELOW)
    for n in (3, 5):
        trends = [rank_trend(values_SL) for values_SL in rng.normal(size=(studies, n, 4))]
        add(wrong, "Page's test, four levels", n, (trend.p < ALPHA for trend in trends), *BELOW)
    families = np.array([pair.p for pair in _differences(studies * FAMILY, 5, rng)]).reshape(studies, FAMILY)
    add(wrong, f"Holm, any of {FAMILY}", 5, ((holm(row) < ALPHA).any() for row in families.tolist()), *BELOW)
    tasks_RTS = rng.normal(size=(studies, TASKS, 10)) * np.array([1, 1, 3])[:, None]
    add(wrong, "tasks disagree", 10, (looks.disagreement(values_TS) < ALPHA for values_TS in tasks_RTS), *LEVEL)

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

    for n in (5, 10):  # what `compare` says would have been found
        effect = detectable_difference(1 / n**0.5, n - 1)
        found = (pair.p < ALPHA for pair in _differences(studies, n, rng, effect))
        add(power, "paired t-test", n, found, POWER - POWER_SLACK, POWER + POWER_SLACK)
    return checks + planned_looks(MORE * studies, rng)


# By hypotheses of a study that share a baseline: power and seeds on average at an effect of one standard deviation, and
# how often no effect is found negligible with a margin of one.
OF_LOOKS = {1: (0.985, 12.7, 0.96), 4: (0.97, 14.2, 0.97), 10: (0.945, 15.5, 0.95)}
SHAPES = {
    "normal": (lambda rng, size: rng.normal(size=size), LOOKS_LEVEL),
    "t with 3 degrees": (lambda rng, size: rng.standard_t(3, size) / 3**0.5, LOOKS_BELOW),
    "exponential": (lambda rng, size: rng.exponential(size=size) - 1, (0.0, 1.0)),
}


def planned_looks(studies: int, rng: Rng) -> list[Check]:
    """All looks and both Holm procedures together: a false decision anywhere in a study, what the printed intervals
    hold, and what is found with how many seeds. Of skewed differences nothing is promised.
    """
    last, checks = looks.LOOKS[-1], list[Check]()
    wrong, covered, power = KINDS

    def add(kind: str, name: str, events: NDArray, bounds: tuple[float, float], counted: bool = True) -> None:
        checks.append(Check(kind, f"planned looks, {name}", last, float(events.mean()), *bounds, studies, counted))

    def differences(m: int, effect: float) -> NDArray:  # to one baseline: they correlate by a half
        return (rng.normal(size=(studies, m, last)) - rng.normal(size=(studies, 1, last))) * 0.5**0.5 + effect

    def decided(values_RMS: NDArray, margin: float = np.nan) -> looks.Decisions:
        return looks.decide(looks.evidence(values_RMS, margin, 1.0))

    for m, promised in OF_LOOKS.items():
        of_power, of_seeds, of_negligible = (
            (share / of - LOOKS_SLACK, min(share / of + LOOKS_SLACK, 1.0))
            for share, of in zip(promised, (1, last, 1), strict=True)
        )
        for shape, (draw_, bounds) in SHAPES.items():  # a difference of two skewed values is not skewed
            own, shared = draw_(rng, (studies, m, last)), draw_(rng, (studies, 1, last))
            null = own if shape == "exponential" else (own - shared) * 0.5**0.5
            add(wrong, f"m={m}, {shape}", (decided(null).verdict != looks.INCONCLUSIVE).any(-1), bounds)
        at_margin = looks.evidence(differences(m, 4.0), 4.0, 1.0)
        at_margin = at_margin._replace(direction_p=np.ones_like(at_margin.margin_p))  # which would come first
        is_inside = looks.decide(at_margin).verdict == looks.NEGLIGIBLE
        add(wrong, f"m={m}, 'negligible' at the margin", is_inside.any(-1), LOOKS_LEVEL)
        values = differences(m, 1.0)
        found = decided(values)
        seeds, held = np.array(looks.LOOKS)[found.look], []
        of_first = zip(values[:, 0], seeds[:, 0], found.level[:, 0], found.look[:, 0], strict=True)
        for row, n, level, look in of_first:
            low, high = looks.interval(row[:n], False, level, look)
            held.append(low <= 1 <= high)
        add(covered, f"m={m}", np.array(held), LOOKS_COVER)
        add(power, f"m={m}, an effect of 1 sd", found.verdict == looks.SUPPORTED, of_power)
        add(power, f"m={m}, seeds for it as a share of {last}", seeds / last, of_seeds, counted=False)
        nothing = decided(differences(m, 0.0), margin=1.0).verdict == looks.NEGLIGIBLE
        add(power, f"m={m}, 'negligible' at no effect", nothing, of_negligible)
    return checks


def _differences(studies: int, n: int, rng: Rng, effect: float = 0.0) -> list[Difference]:
    """Paired differences of two arms that share what a seed brings with it; their own noise has a spread of 1."""
    seed, of, minus = rng.normal(size=(3, studies, n)) * np.array([2.0, 0.5**0.5, 0.5**0.5])[:, None, None]
    sides = zip(seed + of + effect, seed + minus, strict=True)
    return [paired_difference(pd.Series(of_S), pd.Series(minus_S)) for of_S, minus_S in sides]


def write(results: Results, study: str, studies: int, seed: int) -> tuple[list[Check], Path]:
    """Run every check, write figure, manifest and page below results/self_check/; the checks and the page.

    `study`: the study or collection whose baselines are compared with themselves. Raises RequestError where it is not
    planned or they have too few runs.
    """
    parts, rng = load(results, study), np.random.default_rng(seed)
    used, facets = one_arm(parts)  # first: it may refuse
    checks = [*simulate(studies, rng), *one_arm_twice(facets, rng)]
    folder, about = results.root / FIGURE, replace(parts[-1], cells=used)
    note = OVERLAP.format(runs=count(len(used), "run"), facets=count(len(facets), "facet"))
    with paper_style():
        figure, shown = draw(about, checks, note)
    save(figure, folder / FIGURE)
    shown.write(folder / f"{FIGURE}.json")
    write_text_atomic(folder / f"{FIGURE}.md", page(checks, study, seed, note))
    return checks, folder / f"{FIGURE}.md"


def one_arm(studies: Sequence[StudyRuns]) -> tuple[pd.DataFrame, list[NDArray]]:
    """The runs of each facet's baseline with at least as many seeds as the first look has, each run once.

    Their cells; and by facet, the values of METRICS in units of their spread there: (S, metrics). Left out are runs
    without a value of each, and facets where one has no spread. Raises RequestError below LEAST_RUNS.
    """
    found = []
    for study in studies:
        if not study.cells.empty:
            values = pd.DataFrame({metric: by_cell(study, metric) for metric in METRICS})
            runs = study.done[study.done["arm"] == study.baseline]
            runs = runs[np.isfinite(values.loc[runs.index]).all(axis=1)]
            found += [(of_facet, values.loc[of_facet.index]) for _, of_facet in runs.groupby("facet", sort=False)]
    used, facets, seen = list[pd.DataFrame](), list[NDArray](), set[str]()
    for runs, values in sorted(found, key=lambda of_facet: -len(of_facet[0])):  # studies share runs: the most at once
        new = ~runs["signature"].isin(seen).to_numpy()
        own = values.to_numpy()[new]
        if len(own) >= looks.LOOKS[0] and (spread := own.std(axis=0, ddof=1)).all():
            used, seen = [*used, runs[new]], seen | set(runs["signature"])
            facets.append(own / spread)
    if sum(map(len, used)) < LEAST_RUNS:
        raise RequestError(
            f"study={studies[-1].name}: an A/A study of its runs needs {LEAST_RUNS} runs of a baseline in facets of"
            f" {looks.LOOKS[0]} seeds or more, it has {sum(map(len, used))}: name a study with more"
        )
    return pd.concat(used, ignore_index=True), facets


def one_arm_twice(facets: Sequence[NDArray], rng: Rng) -> list[Check]:
    """The A/A study from tracked runs: one arm under two names, runs of a facet paired at random, and decided as the
    differences of two arms are: by the planned looks where there are pairs for all, else by one at the first five.

    Each metric by itself, and all of them as one study's hypotheses.
    """
    resamples = []
    for _ in range(RESAMPLES):
        shuffled = [rng.permutation(values) for values in facets]
        pairs = [values[: len(values) // 2] - values[len(values) // 2 :][: len(values) // 2] for values in shuffled]
        resamples.append(rng.permutation(np.concatenate(pairs))[: looks.LOOKS[-1]].T)
    values_RMS = np.array(resamples)
    planned = looks.LOOKS if values_RMS.shape[-1] == looks.LOOKS[-1] else looks.LOOKS[:1]
    checks = []
    for name, of in [(metric, [m]) for m, metric in enumerate(METRICS)] + [("any of these", [*range(len(METRICS))])]:
        found = looks.decide(looks.evidence(values_RMS[:, of], np.nan, 1.0, looks=planned))
        rate = float((found.verdict != looks.INCONCLUSIVE).any(-1).mean())
        checks.append(Check(KINDS[0], f"{ONE_ARM}: {name}", planned[-1], rate, 0.0, 1.0, RESAMPLES))
    return checks


def draw(study: StudyRuns, checks: Sequence[Check], note: str) -> tuple[Figure, Manifest]:
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
            panel.hlines(place, *check.interval, color=colour, linewidth=1)
        panel.set_yticks(range(len(drawn)), [f"{check.name}, n={check.n}" for check in drawn])
        panel.set_ylim(len(drawn) - 0.5, -0.5)
        panel.grid(axis="y", visible=False)
        panel.set_title(kind, loc="left")
    panels[-1].set_xlabel("share of studies")
    caption = (
        "What the statistics of a report promise and keep, over simulated studies with a known truth (n: seeds). Bars:"
        " what is promised; lines: 95% intervals of what was found (Clopper and Pearson); crosses: not kept. Above, how"
        " often a test rejects what is true; then, how often an interval holds the truth (no report bootstraps below"
        f" {LEAST_FOR_BOOTSTRAP} runs of each task); below, how often a known effect is found. {note}"
    )
    numbers = [asdict(check) | {"interval": check.interval, "holds": check.holds} for check in checks]
    return figure, manifest(study, FIGURE, caption, "share of studies", numbers, alt=caption)


def page(checks: Sequence[Check], study: str, seed: int, note: str) -> str:
    """The checks as Markdown."""
    rows = [
        {
            "promise about": check.kind,
            "of": check.name,
            "n": check.n,
            "studies": f"{check.studies:,}",
            "found": probability(check.rate),
            "[95%]": f"[{', '.join(map(probability, check.interval))}]" if check.counted else NONE,
            "promised": check.promise,
            "kept": NONE if not check.promised else "yes" if check.holds else "**no**",
        }
        for check in checks
    ]
    head = f"# Self-check of the statistics\n\nSimulated studies (generator seed {seed}), and runs of `{study}`."
    return f"{head}\n\n![self-check]({FIGURE}.png)\n\n{markdown_table(pd.DataFrame(rows))}\n\n{note}\n"
