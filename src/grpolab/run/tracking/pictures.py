"""What a person sees of one run in MLflow's pages: a picture of its course, and a table of its completions.

Both are made from the run folder, once, when the run has ended; a folder that holds no points, or no samples that can
be read, has none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from grpolab.identity import plain
from grpolab.run.tracking.folder import Point

PICTURE, TABLE = "course.png", "samples.json"  # names of the artefacts
SIZE, DPI = (7.2, 2.4), 90  # inches; dots per inch
# Title of a panel -> its lines; what a run does not have is left out.
PANELS = {
    "Accuracy and reward": {
        "eval/accuracy_expected": "held-out accuracy (expected)",
        "eval/accuracy_greedy": "held-out accuracy (greedy)",
        "reward/mean": "mean reward of the batch",
    },
    "Clip fraction, last update of each batch": {
        "clip/active_low": "below the range, A < 0",
        "clip/active_high": "above the range, A > 0",
    },
}
MOST_STEPS, MOST_COMPLETIONS = 4, 50  # of the kept rollout steps, evenly; in the table, of each


def picture(points: Sequence[Point]) -> bytes | None:
    """PNG of accuracy, reward and clip fraction over the rollout steps; None where there is nothing to draw."""
    figure = Figure(figsize=SIZE, dpi=DPI)
    FigureCanvasAgg(figure)
    figure.subplots_adjust(left=0.06, right=0.985, bottom=0.19, top=0.89, wspace=0.14)
    drawn = 0
    for panel, (title, lines) in zip(figure.subplots(1, len(PANELS)), PANELS.items(), strict=True):
        for name, label in lines.items():
            course = sorted((point.step, point.value) for point in points if point.name == name)
            if course:
                panel.plot(*zip(*course, strict=True), label=label, linewidth=1, marker="." if len(course) < 20 else "")
                drawn += 1
        panel.set_title(title, fontsize=8)
        panel.set_xlabel("rollout step", fontsize=7)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.3)
        if panel.get_ylim()[0] < 0 == max((point.value for point in points if point.name in lines), default=1):
            panel.set_ylim(0, 0.01)  # nothing but zeros: no clip
        if panel.lines:
            panel.legend(fontsize=6, frameon=False)
    if not drawn:
        return None
    content = BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def table(samples: Path) -> str | None:
    """The kept completions as JSON that MLflow shows as a table; None where none can be read.

    One row a completion: which it is, its text, its prompt, reward and its parts, advantage, the least and largest
    ratio of its tokens, how many of them were clipped. Of the first, the last and two rollout steps between them.
    MLflow compares runs by the first column, and shows the second.
    """
    files = sorted(samples.glob("step_*.parquet"))
    chosen = {files[round(place * (len(files) - 1) / (MOST_STEPS - 1))] for place in range(MOST_STEPS)} if files else ()
    rows = [row for file in sorted(chosen) for row in _completions(file)]
    if not rows:
        return None
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return json.dumps(plain({"columns": columns, "data": [[row.get(name) for name in columns] for row in rows]}))


def _completions(file: Path) -> list[dict[str, Any]]:
    """Rows of one rollout step; none where its file is damaged."""
    try:
        tokens = pq.read_table(file).to_pylist()
    except (OSError, ValueError):
        return []
    step = int(file.stem.removeprefix("step_"))
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for token in tokens:
        key = (token["prompt_index"], token["sample"])
        if key not in rows:
            if len(rows) == MOST_COMPLETIONS:
                break
            name = f"step {step}, prompt {key[0]}, sample {key[1]}"  # the same in every arm with this seed
            said = {"sample": name, "completion": token["completion"], "prompt": token["prompt"]}
            scores = {name: round(token[name], 4) for name in token if name.startswith("reward") or name == "advantage"}
            least = {"tokens": 0, "ratio_min": math.inf, "ratio_max": 0.0, "clipped_low": 0, "clipped_high": 0}
            rows[key] = {**said, **scores, **least}
        row, ratio = rows[key], round(token["ratio"], 4)
        row["tokens"] += 1
        row["ratio_min"], row["ratio_max"] = min(row["ratio_min"], ratio), max(row["ratio_max"], ratio)
        if token["clipped"]:
            row[f"clipped_{token['clipped']}"] += 1
    return list(rows.values())
