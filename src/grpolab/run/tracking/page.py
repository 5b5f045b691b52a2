"""What a person reads in MLflow's pages: names and descriptions (Markdown)."""

from __future__ import annotations

import re
from datetime import datetime

from grpolab import vocabulary
from grpolab.run.tracking.folder import Record
from grpolab.run.tracking.view import address, views

SUMMARY_NAME = "summary"
NOTE = "mlflow.note.content"  # the tag that MLflow shows as description
MAX_ERROR = 4000  # characters: a tag takes 8000


def run_name(cell: Record) -> str:
    """`symmetric/addition/healthy, seed 0`."""
    return f"{cell['variant']}, seed {cell['seed']}"


def model_name(cell: Record) -> str:
    """The same as a name that MLflow allows for a model: `symmetric-addition-healthy-seed-0`."""
    return re.sub(r"[^\w-]+", "-", run_name(cell))


def experiment_note(plan: Record, experiment_id: str) -> str:
    """What the study asks, and how to read its page; the first paragraph is all that MLflow shows at first."""
    summary = f"The run `{SUMMARY_NAME}` holds the report, figures and tables."
    if plan["includes"]:
        members = ", ".join(f"`{name}`" for name in plan["includes"])
        asks = plan["question"]
        how = f"Made of the studies {members}, each with an experiment of its own. {summary}"
    else:
        links = " · ".join(f"[{view.title}]({address(experiment_id, view.key)})" for view in views(plan))
        asks = f"{plan['question']} Charts: {links}"
        how = (
            f"A run is one cell of the study: a variant ({' / '.join(plan['factors'])}) with one seed. On the chart"
            " page, grouped by the tag `variant`, a line is the mean over seeds, its band reaches from the lowest to"
            f" the highest. {summary}"
        )
    claims = "\n".join(f"- {claim['id']}: {claim['says']}" for claim in plan.get("hypotheses", []))
    parts = [asks, how, *(["Hypotheses of the study file:", claims] if claims else [])]
    return "\n\n".join(parts)


def run_note(cell: Record, outcome: Record | None) -> str:
    """How the run ended, and where the rest of it is."""
    signature = cell["signature"]
    rest = (
        "A chart has one value per rollout step (of its updates the last; values that are not finite are left out). The"
        " artifact `journal.jsonl` has every optimiser step, `course.png` is a picture of its course, `samples.json` a"
        " table of completions with rewards and ratios. The same token by token:"
        f" `grpolab show {signature}`."
    )
    return "\n\n".join([*(_ending(outcome) if outcome else ["Not finished."]), rest])


def _ending(outcome: Record) -> list[str]:
    name = outcome["outcome"]
    lines = [f"**{name.capitalize()}**: {vocabulary.OUTCOMES[name]}."]
    if outcome.get("reason"):
        lines.append(f"Reason: {outcome['reason']}")
    if outcome.get("error"):
        lines.append(f"```\n{outcome['error'][-MAX_ERROR:]}\n```")
    if outcome.get("final"):
        lines.append("At the end: " + ", ".join(f"{key} {value:.4g}" for key, value in outcome["final"].items()))
    return lines


def summary_note(plan: Record) -> str:
    """What the summary run is for."""
    return (
        f"The study `{plan['study']}` as a whole: its report, figures, tables and plan are among the artifacts. It has"
        " no variant, so it enters no mean."
    )


def milliseconds(iso_time: str) -> int:
    """ISO time as MLflow counts it."""
    return round(1000 * datetime.fromisoformat(iso_time).timestamp())
