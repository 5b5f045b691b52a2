"""`grpolab self-check`: whether the statistics keep their promises, on simulated studies and on one arm as two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from grpolab.errors import RequestError
from grpolab.paths import Results, write_text_atomic
from grpolab.report.load import Study, load
from grpolab.report.manifest import Manifest, manifest
from grpolab.report.measures import at, measure
from grpolab.report.simulation import ALPHA, Check, simulate
from grpolab.report.statistics import LEAST_FOR_BOOTSTRAP, paired_difference
from grpolab.report.style import NOTE_COLOUR, QUIET, TEXT_WIDTH, arm_styles, paper_style, save
from grpolab.report.text import NONE, markdown_table, probability

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
