"""Tasks. A task makes prompts, demonstrates answers and scores completions. It never runs text as code."""

from __future__ import annotations

import inspect

from grpolab.credentials import with_environment
from grpolab.errors import RequestError
from grpolab.registry import LOAD_OBJECT, TASKS, resolve
from grpolab.settings.task import TaskSettings
from grpolab.tasks.base import Example, Task

__all__ = ["Example", "Task", "make_task"]


def make_task(settings: TaskSettings) -> Task:
    """Make the task that the settings name.

    Raises RequestError if a user's class cannot be imported, refuses its options or lacks a member of `Task`, or if a
    dataset is absent.
    """
    if settings.name != "custom":
        task: Task = resolve(TASKS[settings.name])(**settings.model_dump(exclude={"name"}))
        return task
    try:
        options = with_environment(settings.options)
    except KeyError as name:
        raise RequestError(f"task.options asks for {name} of the environment, which is not set: export it") from name
    try:
        task = resolve(LOAD_OBJECT)("task.path", settings.path)(**options)
    except TypeError as error:
        raise RequestError(f"task.options={settings.options} do not fit {settings.path}: {error}") from error
    members = [name for name, _ in inspect.getmembers(Task) if not name.startswith("_")] + list(Task.__annotations__)
    absent = sorted({name for name in members if not hasattr(task, name)})
    if absent:
        raise RequestError(f"task.path={settings.path} lacks {', '.join(absent)}: see grpolab.tasks.Task")
    return task
