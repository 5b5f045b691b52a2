"""What can be known to be wrong before anything starts. Importing this is cheap: no torch."""

from __future__ import annotations

import shutil

from grpolab.errors import RequestError
from grpolab.learn.rewards import try_score
from grpolab.learn.tasks import make_task
from grpolab.learn.tasks.jsonl import Jsonl
from grpolab.paths import Results
from grpolab.settings import RunSettings
from grpolab.vocabulary import evaluated

LEAST_FREE_BYTES = 200 * 2**20


def check(settings: RunSettings, results: Results) -> list[str]:
    """A sentence for each problem of the task, its files, the reward's path or the disk; empty when all is well."""
    problems = []
    free = shutil.disk_usage(results.root).free
    if free < LEAST_FREE_BYTES:
        problems.append(
            f"machine.results={results.root} has {free // 2**20} MiB left on its disk,"
            f" at least {LEAST_FREE_BYTES // 2**20} are needed"
        )
    try:
        task = make_task(settings.task)
        in_files = task.problems() if isinstance(task, Jsonl) else []
        problems += in_files
        if not in_files:
            try_score(settings.reward, task, task.examples("evaluation", 1)[0])
        problems += _unmeasured(settings, evaluated(task.unique_answer))
    except RequestError as error:
        problems += error.problems
    return problems


def _unmeasured(settings: RunSettings, metrics: list[str]) -> list[str]:
    """The early stop must watch something that this task's evaluation measures."""
    rule = settings.early_stop
    if rule is None or rule.metric in metrics:
        return []
    return [
        f"early_stop.metric={rule.metric} is not measured with task={settings.task.name}:"
        f" it must be one of {', '.join(metrics)}"
    ]
