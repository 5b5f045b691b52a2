"""The style of every figure: one colour per arm everywhere, two-column paper width, the same bytes each time."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from grpolab.paths import map_leaves, write_text_atomic
from grpolab.report.load import StudyRuns
from grpolab.report.text import listing
from grpolab.vocabulary import DAMAGED, DIVERGED, FAILED, STOPPED

if TYPE_CHECKING:  # matplotlib is loaded when a figure is drawn: reports on logs have none
    from matplotlib.figure import Figure

TEXT_WIDTH = 6.8  # inches: both columns of a two-column paper
COLUMN_WIDTH = 3.3
DPI = 200
NOTE_COLOUR = "#b2182b"  # what is missing
QUIET = "0.45"  # ceilings, starts, theory

# Okabe and Ito's colours (the yellow left out: it vanishes on paper), then Tol's; line styles tell them apart in grey.
_SLOTS: list[tuple[str, Any, str]] = [
    ("#0072b2", "-", "o"),
    ("#d55e00", "--", "s"),
    ("#009e73", "-.", "^"),
    ("#cc79a7", (0, (5, 1, 1, 1, 1, 1)), "D"),
    ("#000000", ":", "v"),
    ("#e69f00", (0, (3, 1)), "P"),
    ("#56b4e9", (0, (1, 1)), "X"),
    ("#882255", (0, (6, 2)), "<"),
    ("#999933", (0, (4, 1, 1, 1)), ">"),
    ("#332288", (0, (2, 2)), "h"),
    ("#44aa99", (0, (8, 2)), "d"),
    ("#6b3d1e", (0, (3, 1, 1, 1)), "p"),
    ("#9e7bb5", (0, (1, 2)), "*"),
]
_FRAMEWORKS = (
    *("deepspeed_chat", "trl", "verl", "roll", "openrlhf", "slime", "areal", "nemo_rl", "open_instruct", "prime_rl"),
    *("skyrl", "torchtune"),
)
# Known arm names -> slot, so that equal settings have one colour under all their names: slot 0 is plain GRPO.
_KNOWN = {
    **dict.fromkeys(("symmetric", "token", "min_positive", "grpo", "4", "clip 0.2 / 0.2", "trainer", "base"), 0),
    **dict.fromkeys(("weighted", "healthy"), 0),
    **dict.fromkeys(("no_clip", "sequence", "no clip", "sampler", "unweighted"), 1),
    **dict.fromkeys(("clip_higher", "token_higher", "dapo", "max_negative", "clip 0.2 / 0.28", "full"), 2),
    **dict.fromkeys(("outer_cap", "sequence_gspo", "gspo", "clip 0.2 / 0.2, delta 2"), 3),
    **dict.fromkeys(("lower_only", "dr_grpo", "8", "lower clip only"), 4),
    **dict.fromkeys(("cispo", "1", "cispo, cap 1.28"), 5),
    **dict.fromkeys(("bnpo", "2"), 6),
    **{framework: slot for slot, framework in enumerate(_FRAMEWORKS, 1)},
}


class ArmStyle(NamedTuple):
    """Colour, line style and marker of an arm."""

    colour: str
    line: Any  # what matplotlib takes for a line style
    marker: str

    @property
    def line_options(self) -> dict[str, Any]:
        """For matplotlib's `plot`."""
        return {"color": self.colour, "linestyle": self.line, "marker": self.marker}


def arm_styles(arms: Sequence[str]) -> dict[str, ArmStyle]:
    """Return a style for each arm: fixed for known names, else one that follows from the name.

    Where two arms of one study would share a style, the later one takes the next free one, if any is left.
    """
    owners = {_KNOWN[arm]: arm for arm in reversed(arms) if arm in _KNOWN}  # of two that share a slot the first
    slots = {arm: slot for slot, arm in owners.items()}
    for arm in arms:
        if arm not in slots:
            wish = _KNOWN.get(arm, int(hashlib.sha256(arm.encode()).hexdigest(), 16) % len(_SLOTS))
            order = [(wish + step) % len(_SLOTS) for step in range(len(_SLOTS))]
            slots[arm] = next((slot for slot in order if slot not in slots.values()), wish)
    return {arm: ArmStyle(*_SLOTS[slots[arm]]) for arm in arms}


# fmt: off
_PAPER: Any = {
    # seaborn's style `ticks` in its context `paper`; to import seaborn, with scipy.stats, takes a second
    "text.color": ".15", "axes.labelcolor": ".15", "axes.edgecolor": ".15", "xtick.color": ".15", "ytick.color": ".15",
    "axes.axisbelow": True, "lines.solid_capstyle": "round", "patch.edgecolor": "w", "patch.force_edgecolor": True,
    "patch.linewidth": 0.8, "xtick.minor.width": 0.8, "ytick.minor.width": 0.8, "legend.title_fontsize": 9.6,
    # ours
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same bytes on every machine
    "font.size": 7.5, "axes.titlesize": 8, "axes.labelsize": 7.5, "legend.fontsize": 7.5, "figure.titlesize": 7.5,
    "xtick.labelsize": 7, "xtick.major.width": 0.6, "xtick.major.size": 2.5, "xtick.minor.size": 1.5,
    "ytick.labelsize": 7, "ytick.major.width": 0.6, "ytick.major.size": 2.5, "ytick.minor.size": 1.5,
    "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "0.92", "grid.linewidth": 0.5,
    "lines.linewidth": 1.3, "lines.markersize": 3.2, "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType
}
# fmt: on


@contextmanager
def paper_style() -> Iterator[None]:
    """Let matplotlib draw for print: seaborn's ticks style, fonts of 7-8 points, embedded TrueType."""
    from matplotlib import rc_context

    with rc_context(_PAPER):
        yield


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.pdf without dates, so that drawing again gives the same bytes."""
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    stem.parent.mkdir(parents=True, exist_ok=True)
    image, pdf = Path(f"{stem}.png"), Path(f"{stem}.pdf")  # a stem may have a dot
    image.write_bytes(png(figure))
    figure.set_layout_engine("none")  # drawing the PNG laid it out
    with paper_style():
        FigureCanvasPdf(figure).print_pdf(pdf, metadata={"CreationDate": None})
    return [image, pdf]


def png(figure: Figure) -> bytes:
    """Return the figure as a PNG file in 256 colours, which take a third of the bytes of full colour."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    with paper_style(), BytesIO() as file:
        figure.set_dpi(DPI)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()  # `savefig` would draw everything twice
        image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        image.quantize(256, dither=Image.Dither.NONE).save(file, "png", optimize=True, dpi=(DPI, DPI))
        return file.getvalue()


# Labels (row, facet, arm, ...) and lists of equal length (x, mean, low, high, n); `seeds` maps a seed to its list.
Series = dict[str, Any]


@dataclass(frozen=True)
class Manifest:
    """Everything needed to draw the figure again and to check it."""

    figure: str
    study: str
    caption: str
    alt: str  # the picture in words, for those who cannot see it
    statistic: str
    seeds: list[int]
    commits: list[str]
    results_versions: list[int]
    locks: list[str]
    signatures: list[str]
    diverged: list[str]
    stopped: list[str]
    missing: list[str]
    failed: list[str]
    numbers: list[Series]  # empty where the study lacks what the figure needs

    def write(self, path: Path) -> Path:
        """Write it as JSON with five digits a number."""
        text = json.dumps(map_leaves(vars(self), _rounded), allow_nan=False, ensure_ascii=False)
        write_text_atomic(path, f"{text}\n")
        return path


def _notes(study: StudyRuns) -> Iterator[str]:
    """Yield the sentences of a caption about the study's runs."""
    seeds = study.done.groupby("variant")["seed"].nunique()
    if seeds.nunique() > 1:  # looks add seeds to some: means are not over the same ones
        yield f"Variants have {seeds.min()} to {seeds.max()} seeds."
    if names := cell_names(study.cells[study.cells["outcome"] == DAMAGED]):
        yield f"Damaged and left out: {listing(names, 2)}."
    if study.note_on_labels:
        yield study.note_on_labels


def manifest(
    study: StudyRuns, figure: str, caption: str, statistic: str, numbers: list[Series], alt: str = ""
) -> Manifest:
    """Return the manifest of a figure; the alt text is the caption with the arms, unless it is given."""
    done, absent = study.done, study.absent
    failed = absent["outcome"] == FAILED

    def distinct(column: str) -> list:
        return sorted(done[column].dropna().unique().tolist()) if column in done else []

    return Manifest(
        figure=figure,
        study=study.name,
        caption=" ".join([caption, *(_notes(study) if numbers else ())]),
        alt=alt or caption + ("" if study.cells.empty else f" Arms of {study.name}: {', '.join(study.arms)}."),
        statistic=statistic,
        seeds=sorted(int(seed) for seed in done["seed"].unique()),
        commits=distinct("commit"),
        results_versions=distinct("results_version"),
        locks=distinct("lock_sha256"),
        signatures=sorted(done["signature"].unique()),
        diverged=cell_names(done[done["outcome"] == DIVERGED]),
        stopped=cell_names(done[done["outcome"] == STOPPED]),
        missing=cell_names(absent[~failed]),
        failed=cell_names(absent[failed]),
        numbers=numbers,
    )


def cell_names(cells: pd.DataFrame) -> list[str]:
    """Write `variant seed 2` of each cell."""
    return [f"{cell.variant} seed {cell.seed}" for cell in cells.itertuples()]


def _rounded(value: Any) -> Any:
    """Return a number as strict JSON: five digits, null for NaN, a string for an infinity."""
    if not isinstance(value, float):
        return value
    if math.isnan(value):
        return None
    return float(f"{value:.5g}") if math.isfinite(value) else str(value)
