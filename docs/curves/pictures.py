"""Draw the pictures of docs/healthy_or_sick.md from curves.csv, and write the page's table of last steps.

    python docs/curves/pictures.py            from curves.csv
    python docs/curves/pictures.py RESULTS    after reading curves.csv anew from the runs of `make bench WHAT=pictures`

The page's tables name the faults of each picture and their order.
"""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from PIL.PngImagePlugin import PngInfo

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "healthy_or_sick.md"
CURVES = HERE / "curves.csv"
STUDY = "doctor_pictures"
HEALTHY = "healthy"  # kind of a case in curves.csv, beside `sick`
TWIN = "four_passes"  # the control that differs from a sick run by the fault alone
BY_SEQUENCE = "gspo"  # its clip fraction, half of the tokens, would hide all others
LAST = re.compile(r"^\| fault, at its last step .*?(?=\n\n)", re.MULTILINE | re.DOTALL)
# Column of curves.csv -> the metric of a rollout step, or of its updates: their mean, or the first one alone.
ROLLOUT = {
    "entropy": "entropy/behaviour",
    "kl": "kl_ref/exact",
    "length": "length/mean",
    "truncated": "truncation/share",
    "reward": "reward/mean",
}
MEAN, FIRST = {"clip": "clip/active"}, {"clip_first": "clip/active", "kl_first": "kl_old/k3"}
# Title of a panel -> its line, its dashed line, and where its axis turns from linear to logarithmic (None: linear).
PANELS: dict[str, tuple[str, str | None, float | None]] = {
    "entropy (nat per token)": ("entropy", None, None),
    "KL to the start (nat per token)\n- - ratio's KL, first update": ("kl", "kl_first", 1e-6),
    "clip fraction, mean of updates\n- - first update": ("clip", "clip_first", None),
    "length (tokens)": ("length", None, None),
    "share cut off": ("truncated", None, None),
    "reward": ("reward", None, None),
}


def read(results: str) -> pd.DataFrame:
    """Return a row for each case and rollout step of the study's runs; NaN where a metric has no number."""
    from grpolab.paths import Results
    from grpolab.report.load import load

    (study,) = load(Results.open(results), STUDY)
    sick = {file.stem for file in (HERE.parents[1] / "conf" / "fault").glob("*.yaml")}
    keys = ["arm", "rollout_step"]
    rollouts = study.rollouts.set_index(keys)[[*ROLLOUT.values()]].set_axis([*ROLLOUT], axis=1)
    of_updates = study.updates.sort_values("optimizer_step").groupby(keys)
    means = of_updates[[*MEAN.values()]].mean().set_axis([*MEAN], axis=1)
    firsts = of_updates.nth(0).set_index(keys)[[*FIRST.values()]].set_axis([*FIRST], axis=1)
    curves = rollouts.join([means, firsts]).reset_index().rename(columns={"arm": "case", "rollout_step": "step"})
    curves.insert(0, "kind", curves["case"].map(lambda case: "sick" if case in sick else HEALTHY))
    return curves.sort_values(["kind", "case", "step"])


def sections() -> dict[str, list[str]]:
    """Return the page's pictures and the faults of the table above each, in its order."""
    parts = re.split(r"!\[[^\]]*\]\(curves/(\w+)\.png\)", PAGE.read_text())
    above = (re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) for text in parts[::2])
    return dict(zip(parts[1::2], above, strict=False))  # nothing is drawn of what stands below the last picture


def draw(curves: pd.DataFrame, faults: list[str]) -> Figure:
    """Return a sheet with a row of panels for each fault, on the band from the least to the greatest healthy run."""
    healthy = curves[curves["kind"] == HEALTHY].copy()
    healthy.loc[healthy["case"] == BY_SEQUENCE, "clip"] = np.nan
    healthy = healthy.groupby("step")
    least, most = healthy.min(numeric_only=True), healthy.max(numeric_only=True)
    twin = curves[curves["case"] == TWIN]
    figure = Figure(figsize=(12, 0.6 + 1.15 * len(faults)), layout="constrained")
    axes = figure.subplots(len(faults), len(PANELS), squeeze=False)
    for row, fault in zip(axes, faults, strict=True):
        run = curves[curves["case"] == fault]
        for axis, (title, (line, dashed, linear)) in zip(row, PANELS.items(), strict=True):
            axis.fill_between(least.index, least[line], most[line], color="0.82", linewidth=0)
            axis.plot(twin["step"], twin[line], color="0.45", linewidth=1)
            if dashed:
                axis.plot(run["step"], run[dashed], color="#0072b2", linestyle="--", linewidth=1.2)
            axis.plot(run["step"], run[line], color="#d55e00", linewidth=1.8, marker="." if len(run) < 3 else None)
            if linear:
                axis.set_yscale("symlog", linthresh=linear)
                axis.set_ylim(0, max(10, 2 * run[line].max()))
                axis.set_yticks([0, 1e-6, 1e-3, 1])
            elif line != "entropy":
                axis.set_ylim(bottom=min(0, run[line].min()))
            axis.tick_params(labelsize=7, length=2)
            axis.spines[["top", "right"]].set_visible(False)
            if axis in axes[0]:
                axis.set_title(title, fontsize=8)
        row[0].set_ylabel(fault.replace("_", "_\n"), fontsize=8, rotation=0, ha="right", va="center")
    for axis in axes[-1]:
        axis.set_xlabel("rollout step", fontsize=7)
    return figure


def last_steps(curves: pd.DataFrame, faults: list[str]) -> str:
    """Return the page's table: each fault's numbers at its last rollout step, below the healthy runs' range."""
    columns = [column for column in curves.columns if column not in {"kind", "case", "step"}]
    ends = curves.sort_values("step").groupby("case").nth(-1).set_index("case")
    healthy = ends[ends["kind"] == HEALTHY]
    rows = [["fault, at its last step", "step", *(f"`{column}`" for column in columns)]]
    rows += [["---"] * len(rows[0])]
    rows += [["healthy, least to greatest", f"{healthy['step'].max()}"]]
    rows[-1] += [f"{shown(healthy[column].min())} to {shown(healthy[column].max())}" for column in columns]
    for fault in faults:
        rows.append([f"{fault}", f"{ends.loc[fault, 'step']}", *(shown(ends.loc[fault, column]) for column in columns)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def shown(number: float) -> str:
    """Return a number in two significant digits; – for none."""
    return "–" if pd.isna(number) else f"{number:.2g}"


def seen(faults: list[str]) -> str:
    """Return what a picture was drawn from: a hash of curves.csv, and its faults."""
    return " ".join([hashlib.sha256(CURVES.read_bytes()).hexdigest()[:16], *faults])


def main() -> None:
    if sys.argv[1:]:
        CURVES.write_text(read(sys.argv[1]).to_csv(index=False, float_format="%.4g"))
    curves = pd.read_csv(CURVES)
    for name, faults in sections().items():
        canvas = FigureCanvasAgg(draw(curves, faults))
        canvas.figure.set_dpi(100)
        canvas.draw()
        picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
        notes = PngInfo()
        notes.add_text("seen", seen(faults))
        picture.quantize(32, dither=Image.Dither.NONE).save(HERE / f"{name}.png", optimize=True, pnginfo=notes)
    everything = [fault for faults in sections().values() for fault in faults]
    PAGE.write_text(LAST.sub(lambda _: last_steps(curves, everything), PAGE.read_text(), count=1))


if __name__ == "__main__":
    main()
