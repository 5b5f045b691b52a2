"""What a person sees in MLflow's pages: a study's charts ready made, names and descriptions, a run's picture and table.

MLflow keeps ready-made charts ("views") as tags of the experiment. Their format (JSON, zlib, base64) is internal to the
pages of MLflow 3.17; another version would open the plain page.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from grpolab import vocabulary
from grpolab.paths import plain
from grpolab.quantities import LABELS
from grpolab.run.tracking.colours import LINE, colours, line_of
from grpolab.run.tracking.points import Point, Record

# Charts that stand first on the page, after the study's primary metric.
HEADLINE = ("reward/mean", "entropy/behaviour", "clip/active_low", "clip/active_high", "kl_old/k3")
# As MLflow's pages write them; what is null here is filled in.
STATE = """
{"searchFilter": null, "orderByKey": null, "orderByAsc": false, "startTime": "ALL", "lifecycleFilter": "Active",
 "datasetsFilter": [], "modelVersionFilter": "All Runs", "selectedColumns": null, "columnOrder": [], "columnWidths": {},
 "runsHiddenMode": "SHOW_ALL", "viewMaximized": false, "runListHidden": false, "useGroupedValuesInCharts": true,
 "hideEmptyCharts": true,
 "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": null}]},
 "groupsExpanded": null,
 "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
 "isAccordionReordered": true, "compareRunSections": null, "compareRunCharts": null}
"""
SECTION = '{"uuid": null, "name": null, "display": true, "isReordered": false, "deleted": false, "isGenerated": false}'
LINE_CHART = """
{"uuid": null, "type": "LINE", "runsCountToCompare": 100, "metricSectionId": "headline", "deleted": false,
 "isGenerated": false, "metricKey": null, "displayName": null, "lineSmoothness": 0, "scaleType": "linear",
 "xAxisScaleType": "linear", "xAxisKey": "step", "selectedXAxisMetricKey": "", "yAxisKey": "metric",
 "yAxisExpressions": [], "range": {}, "ignoreOutliers": false, "useGlobalXaxisKey": true,
 "useGlobalLineSmoothing": true}
"""


@dataclass(frozen=True)
class View:
    """Charts of some of a study's variants: mean and range over the seeds of each."""

    key: str  # in the address and in the tag's name
    title: str
    pattern: str | None  # of the variants that it shows; None: all


# MLflow 3.17 opens its pages among those for GenAI, a run as one of the evaluations, unless the address says otherwise
# or the reader has chosen. The tag says the same to other versions.
WORKFLOW = "workflowType=machine_learning"
EXPERIMENTS = f"#/experiments?{WORKFLOW}"  # the list of all
KIND, MODEL_TRAINING = "mlflow.experimentKind", "custom_model_development"
EVERY_VARIANT = View("by_variant", "all variants", None)


def address(experiment_id: str, key: str) -> str:
    """Where a view is, below the root of the MLflow server."""
    return f"#/experiments/{experiment_id}/runs?{WORKFLOW}&compareRunsMode=CHART&viewStateShareKey={key}"


def report_address(experiment_id: str, run_id: str) -> str:
    """Where the report is that the summary run holds, below the root of the MLflow server."""
    return f"#/experiments/{experiment_id}/runs/{run_id}/artifacts/{REPORT}?{WORKFLOW}"


def views(plan: Record) -> list[View]:
    """Where factors besides the compared one vary, the arms at each of their combinations; and all variants."""
    compare = plan["compare"]
    conditions: dict[str, str] = {}
    for cell in plan["cells"]:
        levels = cell["levels"]
        condition = "/".join(level for factor, level in levels.items() if factor != compare)
        conditions[condition] = "/".join("%" if factor == compare else level for factor, level in levels.items())
    if len(conditions) < 2:
        return [EVERY_VARIANT]
    words = {name: re.sub(r"\W+", "_", name) for name in conditions}
    parts = [View(f"{EVERY_VARIANT.key}_{words[name]}", name, pattern) for name, pattern in conditions.items()]
    return [*parts, EVERY_VARIANT]


def variant_filter(pattern: str) -> str:
    """MLflow's search for runs whose variant matches; `%` stands for anything."""
    quote = '"' if "'" in pattern else "'"
    return f"tags.variant LIKE {quote}{pattern}{quote}"


def view_tags(plan: Record, created: int) -> dict[str, str]:
    """The experiment's tags that hold the views of the study; `created` in milliseconds since 1970."""
    tags = {}
    for view in views(plan):
        state = base64.b64encode(zlib.compress(json.dumps(_state(plan, view.pattern)).encode())).decode()
        name = f"Mean and range over seeds: {view.title}"
        content = {"name": name, "createdAt": created, "updatedAt": created, "state": f"deflate;{state}"}
        tags[f"mlflow.sharedViewState.{view.key}"] = json.dumps(content)
    return tags


def _state(plan: Record, pattern: str | None) -> Record:
    """What the page shows: the best variant first; charts of HEADLINE, and below them a section for each prefix.

    MLflow adds the charts of all other metrics to the section of their prefix.
    """
    primary_metric = plan["primary_metric"]
    headline = list(dict.fromkeys([primary_metric, *HEADLINE]))
    drawn = [name for name, metric in vocabulary.METRICS.items() if metric.mirrored]
    prefixes = dict.fromkeys(name.partition("/")[0] for name in drawn if "/" in name and name not in headline)
    sections = {"headline": "At a glance", **{name: name for name in prefixes}}
    state = json.loads(STATE)
    state["groupBy"]["groupByKeys"][0]["groupByData"] = LINE
    drawn_in = colours(plan)
    return state | {
        "searchFilter": "" if pattern is None else variant_filter(pattern),
        "orderByKey": f"metrics.`{primary_metric}`",
        "selectedColumns": [
            *(f"tags.`{name}`" for name in ("outcome", "lost", "cause")),
            *(f"metrics.`{name}`" for name in (primary_metric, "final_score", "gain")),
            "attributes.`Models`",
        ],
        "groupsExpanded": {f"tag.{LINE}.{line_of(*named)}": False for named in drawn_in.items()},
        "compareRunSections": [json.loads(SECTION) | {"uuid": key, "name": name} for key, name in sections.items()],
        "compareRunCharts": [
            json.loads(LINE_CHART) | {"uuid": f"headline-{name}", "metricKey": name, "displayName": name}
            for name in headline
        ],
    }


# Names and descriptions (Markdown).
SUMMARY_NAME, REPORT = "summary", "report.html"
NOTE = "mlflow.note.content"  # the tag that MLflow shows as description
COLLAPSED = "collapsed"
MAX_ERROR = 4000  # characters: a tag takes 8000


def run_name(cell: Record) -> str:
    """`symmetric/addition/healthy, seed 0`."""
    return f"{cell['variant']}, seed {cell['seed']}"


def model_name(cell: Record) -> str:
    """The same as a name that MLflow allows for a model: `symmetric-addition-healthy-seed-0`."""
    return re.sub(r"[^\w-]+", "-", run_name(cell))


def experiment_note(plan: Record, experiment_id: str, summary_id: str | None = None) -> str:
    """What the study asks, and how to read its page; the first paragraph is all that MLflow shows at first."""
    link = f"[{SUMMARY_NAME}]({report_address(experiment_id, summary_id)})" if summary_id else f"`{SUMMARY_NAME}`"
    summary = f"The run {link} holds the report, figures and tables."
    if plan["includes"]:
        members = ", ".join(f"`{name}`" for name in plan["includes"])
        asks = plan["question"]
        how = f"Made of the studies {members}, each with an experiment of its own. {summary}"
    else:
        links = " · ".join(f"[{view.title}]({address(experiment_id, view.key)})" for view in views(plan))
        asks = f"{plan['question']} Charts: {links}"
        how = (
            f"A run is one cell of the study: a variant ({' / '.join(plan['factors'])}) with one seed. On the chart"
            f" page, grouped by the tag `{LINE}` (the variant, in its colour), a line is the mean over seeds, its band"
            f" reaches from the lowest to the highest. {summary}"
        )
    claims = "\n".join(f"- {claim['id']}: {claim['says']}" for claim in plan.get("hypotheses", []))
    return "\n\n".join([asks, how, *(["Hypotheses of the study file:", claims] if claims else [])])


def run_note(cell: Record, outcome: Record | None, words: dict[str, str]) -> str:
    """How the run ended, what is said of it, and where the rest of it is."""
    paragraphs = []
    if outcome is None:
        paragraphs.append("Not finished.")
    else:
        name = outcome["outcome"]
        paragraphs.append(f"**{name.capitalize()}**: {vocabulary.OUTCOMES[name]}.")
        if outcome.get("reason"):
            paragraphs.append(f"Reason: {outcome['reason']}")
        if outcome.get("error"):
            paragraphs.append(f"```\n{outcome['error'][-MAX_ERROR:]}\n```")
        if (how := words.get("lost")) == COLLAPSED:
            paragraphs.append(f"**Collapsed**: {LABELS[how]}. It is lost.")
        if "cause" in words:
            paragraphs.append(f"First cause that the doctor finds: {words['cause']} (`grpolab diagnose RUN`).")
        if outcome.get("final"):
            figures = ", ".join(f"{metric} {value:.4g}" for metric, value in outcome["final"].items())
            paragraphs.append(f"At the end: {figures}")
    paragraphs.append(
        "A chart has one value per rollout step (of its updates the last; values that are not finite are left out). The"
        " artifact `journal.jsonl` has every optimiser step, `course.png` is a picture of its course, `samples.json` a"
        " table of completions with rewards and ratios. The same token by token:"
        f" `grpolab show {cell['signature']}`."
    )
    return "\n\n".join(paragraphs)


def summary_note(plan: Record) -> str:
    """What the summary run is for."""
    return (
        f"The study `{plan['study']}` as a whole: its report, figures, tables and plan are among the artifacts. It has"
        " no variant, so it enters no mean."
    )


def milliseconds(iso_time: str) -> int:
    """ISO time as MLflow counts it."""
    return round(1000 * datetime.fromisoformat(iso_time).timestamp())


# A run's picture and table are made from its folder, once, when it has ended.
PICTURE, TABLE = "course.png", "samples.json"  # names of the artefacts
SIZE, DPI = (7.2, 2.4), 90  # inches; dots per inch
SAVED = {"format": "png", "metadata": {"Software": None}}
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


def picture(points: Sequence[Point]) -> Figure | None:
    """Accuracy, reward and clip fraction over the rollout steps; None where there is nothing to draw."""
    figure = Figure(figsize=SIZE, dpi=DPI)
    figure.subplots_adjust(left=0.06, right=0.985, bottom=0.19, top=0.89, wspace=0.14)
    panels = figure.subplots(1, len(PANELS))
    for panel, (title, lines) in zip(panels, PANELS.items(), strict=True):
        for name, label in lines.items():
            course = sorted((point.step, point.value) for point in points if point.name == name)
            if course:
                panel.plot(*zip(*course, strict=True), label=label, linewidth=1, marker="." if len(course) < 20 else "")
        panel.set_title(title, fontsize=8)
        panel.set_xlabel("rollout step", fontsize=7)
        panel.tick_params(labelsize=7)
        panel.grid(alpha=0.3)
        if panel.get_ylim()[0] < 0 == max((point.value for point in points if point.name in lines), default=1):
            panel.set_ylim(0, 0.01)  # nothing but zeros: no clip
        if panel.lines:
            panel.legend(fontsize=6, frameon=False)
    return figure if any(len(panel.lines) for panel in panels) else None


def table(samples: Path) -> str | None:
    """The kept completions as JSON that MLflow shows as a table; None where none can be read.

    One row a completion: which it is, its text, its prompt, reward and its parts, advantage, the least and largest
    ratio of its tokens, how many of them were clipped. Of the first, the last and two rollout steps between them.
    MLflow compares runs by the first column, and shows the second.
    """
    files = sorted(samples.glob("step_*.parquet"))
    chosen = {files[round(place * (len(files) - 1) / (MOST_STEPS - 1))] for place in range(MOST_STEPS)} if files else ()
    frames = []
    for file in sorted(chosen):
        try:
            tokens = pd.read_parquet(file)
        except (OSError, ValueError):  # it is damaged
            continue
        frames.append(_completions(tokens, int(file.stem.removeprefix("step_"))))
    if not frames or (rows := pd.concat(frames)).empty:
        return None
    return json.dumps(plain({"columns": list(rows), "data": rows.to_numpy(object).tolist()}))


def _completions(tokens: pd.DataFrame, step: int) -> pd.DataFrame:
    """A row for each of the first completions of a rollout step, from the rows of their tokens."""
    completions = tokens.groupby(["prompt_index", "sample"], sort=False)
    scores = [name for name in tokens if name.startswith("reward") or name == "advantage"]
    rows = completions[["completion", "prompt", *scores]].first()
    names = [f"step {step}, prompt {prompt}, sample {sample}" for prompt, sample in rows.index]  # equal in every arm
    rows.insert(0, "sample", names)
    rows["tokens"] = completions.size()
    rows["ratio_min"], rows["ratio_max"] = completions["ratio"].min(), completions["ratio"].max()
    for side in ("low", "high"):
        rows[f"clipped_{side}"] = (tokens["clipped"] == side).groupby([tokens["prompt_index"], tokens["sample"]]).sum()
    short = [*scores, "ratio_min", "ratio_max"]
    rows[short] = rows[short].map(lambda value: round(value, 4))
    return rows.head(MOST_COMPLETIONS)
