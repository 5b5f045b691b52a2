"""MLflow's pages of a study: charts, report, colours, and descriptions in Markdown.

A ready-made chart page is a tag of the experiment, and a group's colour is a hash of its name. Both are internal to the
pages of MLflow 3.17; another version opens the plain page in colours of its own.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

from grpolab import meanings, vocabulary
from grpolab.quantities import LABELS

Record = dict[str, Any]
NOTE = "mlflow.note.content"  # the tag that MLflow shows as description
SUMMARY, REPORT = "summary", "report.html"
MAX_ERROR = 4000  # characters: a tag takes 8000
# Without it MLflow 3.17 opens its pages for GenAI.
WORKFLOW = "workflowType=machine_learning"
VIEW = "by_variant"
# Charts that stand first on the page, after the study's primary metric.
HEADLINE = ("reward/mean", "entropy/behaviour", "clip/active_low", "clip/active_high", "kl_old/k3")
STATE = {
    **{"orderByAsc": False, "startTime": "ALL", "lifecycleFilter": "Active", "modelVersionFilter": "All Runs"},
    **{"datasetsFilter": [], "columnOrder": [], "columnWidths": {}, "runsHiddenMode": "SHOW_ALL", "searchFilter": ""},
    **{"viewMaximized": False, "runListHidden": False, "useGroupedValuesInCharts": True, "hideEmptyCharts": True},
    "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    "isAccordionReordered": True,
}
SECTION = {"display": True, "isReordered": False, "deleted": False, "isGenerated": False}
LINE_CHART = {
    **{"type": "LINE", "runsCountToCompare": 100, "metricSectionId": "headline", "deleted": False, "range": {}},
    **{"isGenerated": False, "lineSmoothness": 0, "scaleType": "linear", "xAxisScaleType": "linear"},
    **{"xAxisKey": "step", "selectedXAxisMetricKey": "", "yAxisKey": "metric", "yAxisExpressions": []},
    **{"ignoreOutliers": False, "useGlobalXaxisKey": True, "useGlobalLineSmoothing": True},
}


def charts_address(experiment_id: str) -> str:
    """Return the address of a study's charts below the root of the MLflow server."""
    return f"#/experiments/{experiment_id}/runs?{WORKFLOW}&compareRunsMode=CHART&viewStateShareKey={VIEW}"


def report_address(experiment_id: str, run_id: str) -> str:
    """Return the address of the report that the summary run holds."""
    return f"#/experiments/{experiment_id}/runs/{run_id}/artifacts/{REPORT}?{WORKFLOW}"


def experiment_tags(plan: Record, created: int) -> dict[str, str]:
    """Return the tags of a study's experiment: its kind, and the charts unless it only includes other studies."""
    tags = {"mlflow.experimentKind": "custom_model_development"}
    if not plan["includes"]:
        state = base64.b64encode(zlib.compress(json.dumps(_page_state(plan)).encode())).decode()
        about = {"name": "Mean and range over seeds", "createdAt": created, "updatedAt": created}
        tags[f"mlflow.sharedViewState.{VIEW}"] = json.dumps({**about, "state": f"deflate;{state}"})
    return tags


def _page_state(plan: Record) -> Record:
    """Group runs by the tag `line`, best variant first; charts of HEADLINE, and a section for each prefix below."""
    primary_metric = plan["primary_metric"]
    headline = list(dict.fromkeys([primary_metric, *HEADLINE]))
    names = [name for name, metric in meanings.METRICS.items() if metric.mirrored and "/" in name]
    prefixes = dict.fromkeys(name.partition("/")[0] for name in names if name not in headline)
    sections = {"headline": "At a glance", **{name: name for name in prefixes}}
    return STATE | {
        "orderByKey": f"metrics.`{primary_metric}`",
        "selectedColumns": [
            *(f"tags.`{name}`" for name in ("outcome", "lost", "cause")),
            *(f"metrics.`{name}`" for name in (primary_metric, "final_score", "gain")),
            "attributes.`Models`",
        ],
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": LINE}]},
        "groupsExpanded": {f"tag.{LINE}.{line}": False for line in lines_of(plan).values()},
        "compareRunSections": [SECTION | {"uuid": key, "name": name} for key, name in sections.items()],
        "compareRunCharts": [
            LINE_CHART | {"uuid": f"headline-{name}", "metricKey": name, "displayName": name} for name in headline
        ],
    }


# MLflow 3.17 draws a group in the colour that a hash of its name chooses. So charts are grouped by a tag of their own:
# the variant and behind it as many spaces, which no page shows, as give it the next colour.
LINE = "line"
COLOURS = 29
# Numbers of MLflow's colours: blue, orange, green, red, purple, yellow, grey, teal and pink, then their shades.
TURNS = (26, 15, 19, 22, 3, 8, 10, 6, 2, 28, 13, 20, 24, 4, 16, 12, 17, 21, 27, 0, 7, 23, 5, 14, 18, 1, 25, 11, 9)
MOST_SPACES = 500


def lines_of(plan: Record) -> dict[str, str]:
    """Return the tag `line` of each variant of a study."""
    lines = {}
    for turn, variant in enumerate(dict.fromkeys(cell["variant"] for cell in plan["cells"])):
        padded = (variant + " " * count for count in range(MOST_SPACES))
        lines[variant] = next((line for line in padded if colour_number(line) == TURNS[turn % COLOURS]), variant)
    return lines


def colour_number(line: str) -> int:
    """Return which of its colours MLflow 3.17 gives to the group of a tag `line`."""
    first = second = 0
    for letter in f"tag.{LINE}.{line}":
        first = (first + ord(letter)) % 255
        second = (second + first) % 255
    return (first | second << 8) % COLOURS


def describe_study(plan: Record, experiment_id: str, summary_id: str) -> str:
    """Describe a study: its question, where its charts and report are, and its hypotheses."""
    charts, parts = f" [Charts]({charts_address(experiment_id)})", ""
    if plan["includes"]:
        charts, parts = "", f"Made of the studies {', '.join(plan['includes'])}. "
    summary = f"The run [{SUMMARY}]({report_address(experiment_id, summary_id)}) holds report, figures and tables."
    claims = [f"- {claim['id']}: {claim['says']}" for claim in plan.get("hypotheses", [])]
    hypotheses = ["Hypotheses:", "\n".join(claims)] if claims else []
    return "\n\n".join([plan["question"] + charts, parts + summary, *hypotheses])


def describe_run(cell: Record, outcome: Record | None, said: Record | None) -> str:
    """Describe how a run ended, what report and doctor said about it, and where its details are."""
    name = outcome["outcome"] if outcome else ""
    lines = [f"**{name.capitalize()}**: {vocabulary.OUTCOMES[name]}." if name else "Not finished."]
    if outcome and outcome.get("reason"):
        lines.append(f"Reason: {outcome['reason']}")
    if outcome and outcome.get("error"):
        lines.append(f"```\n{outcome['error'][-MAX_ERROR:]}\n```")
    if said and said["tags"].get("lost") == "collapsed":
        lines.append(f"**Collapsed**: {LABELS['collapsed']}.")
    if said and "cause" in said["tags"]:
        lines.append(f"First cause that the doctor finds: {said['tags']['cause']}.")
    lines.append("A chart has a point per rollout step, of its last update; `journal.jsonl` has every optimiser step.")
    lines.append(f"`grpolab show {cell['signature']}` prints completions token by token.")
    return "\n\n".join(lines)


LINK = re.compile(r'<a href="(?!#|[a-z]+:)([^"#]*)(#[^"]*)?">(.*?)</a>', re.DOTALL)


def without_links(page: Path) -> str:
    """Return a page whose links to other files are words: MLflow shows it in a frame that follows none."""
    return LINK.sub(r"\3", page.read_text())
