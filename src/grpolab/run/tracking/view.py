"""Ready-made views of a study's charts, which MLflow keeps as tags of the experiment.

Their format (JSON, zlib, base64) is internal to the pages of MLflow 3.17; another version would open the plain page.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import dataclass

from grpolab import vocabulary
from grpolab.run.tracking.folder import Record

ALL_VARIANTS = "by_variant"
# Charts that stand first on the page, after the study's primary metric.
HEADLINE = ("reward/mean", "entropy/behaviour", "clip/active_low", "clip/active_high", "kl_old/k3")


@dataclass(frozen=True)
class View:
    """Charts of some of a study's variants: mean and range over the seeds of each."""

    key: str  # in the address and in the tag's name
    title: str
    pattern: str | None  # of the variants that it shows; None: all


def address(experiment_id: str, key: str) -> str:
    """Where a view is, below the root of the MLflow server."""
    query = f"workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey={key}"
    return f"#/experiments/{experiment_id}/runs?{query}"


def views(plan: Record) -> list[View]:
    """Where factors besides the compared one vary, the arms at each of their combinations; and all variants."""
    compare = plan["compare"]
    conditions: dict[str, str] = {}
    for cell in plan["cells"]:
        levels = cell["levels"]
        condition = "/".join(level for factor, level in levels.items() if factor != compare)
        conditions[condition] = "/".join("%" if factor == compare else level for factor, level in levels.items())
    parts = [View(f"{ALL_VARIANTS}_{_word(name)}", name, pattern) for name, pattern in conditions.items()]
    return [*(parts if len(parts) > 1 else []), View(ALL_VARIANTS, "all variants", None)]


def _word(text: str) -> str:
    return re.sub(r"\W+", "_", text)


def variant_filter(pattern: str) -> str:
    """MLflow's search for runs whose variant matches; `%` stands for anything."""
    quote = '"' if "'" in pattern else "'"
    return f"tags.variant LIKE {quote}{pattern}{quote}"


def view_tags(plan: Record, created: int) -> dict[str, str]:
    """The experiment's tags that hold the views of the study; `created` in milliseconds since 1970."""
    return {f"mlflow.sharedViewState.{view.key}": _encoded(plan, view, created) for view in views(plan)}


def _encoded(plan: Record, view: View, created: int) -> str:
    state = base64.b64encode(zlib.compress(json.dumps(_state(plan, view.pattern)).encode())).decode()
    name = f"Mean and range over seeds: {view.title}"
    return json.dumps({"name": name, "createdAt": created, "updatedAt": created, "state": f"deflate;{state}"})


def _state(plan: Record, pattern: str | None) -> Record:
    primary_metric = plan["primary_metric"]
    variants = dict.fromkeys(cell["variant"] for cell in plan["cells"])
    headline = list(dict.fromkeys([primary_metric, *HEADLINE]))
    drawn = [name for name, metric in vocabulary.METRICS.items() if metric.mirrored]
    prefixes = dict.fromkeys(name.partition("/")[0] for name in drawn if "/" in name and name not in headline)
    return {
        "searchFilter": "" if pattern is None else variant_filter(pattern),
        "orderByKey": f"metrics.`{primary_metric}`",  # the best variant first
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": ["tags.`outcome`", f"metrics.`{primary_metric}`", "attributes.`Models`"],
        "columnOrder": [],
        "columnWidths": {},
        "runsHiddenMode": "SHOW_ALL",
        "viewMaximized": False,
        "runListHidden": False,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": "variant"}]},
        "groupsExpanded": {f"tag.variant.{variant}": False for variant in variants},
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
        # Sections in this order; MLflow adds the charts of all other metrics to the section of their prefix.
        "isAccordionReordered": True,
        "compareRunSections": [_section("headline", "At a glance"), *(_section(name, name) for name in prefixes)],
        "compareRunCharts": [_line_chart(name) for name in headline],
    }


def _section(uuid: str, name: str) -> Record:
    return {"uuid": uuid, "name": name, "display": True, "isReordered": False, "deleted": False, "isGenerated": False}


def _line_chart(metric: str) -> Record:
    return {
        "uuid": f"headline-{metric}",
        "type": "LINE",
        "runsCountToCompare": 100,
        "metricSectionId": "headline",
        "deleted": False,
        "isGenerated": False,
        "metricKey": metric,
        "displayName": metric,
        "lineSmoothness": 0,
        "scaleType": "linear",
        "xAxisScaleType": "linear",
        "xAxisKey": "step",
        "selectedXAxisMetricKey": "",
        "yAxisKey": "metric",
        "yAxisExpressions": [],
        "range": {},
        "ignoreOutliers": False,
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }
