"""The first rollout steps of finished runs once more, in memory, for the table behind F11.

Every draw has its own seed, so that they are the runs' own steps, and a warm start is all that is needed.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError

from grpolab.errors import RequestError
from grpolab.identity import in_words, unrecorded
from grpolab.learn.batch import TrainingBatch
from grpolab.learn.learner import Learner
from grpolab.learn.policy import Policy
from grpolab.learn.surrogate import interpolate
from grpolab.learn.update import Diverged
from grpolab.paths import Results, read_json, write_csv_atomic
from grpolab.run import preflight, warm_start
from grpolab.run.assembly import assemble
from grpolab.run.torch_setup import set_up_torch
from grpolab.settings import RunSettings

ALPHAS = [step / 5 for step in range(11)]  # 0: before the update; 1: after it; then as far again
BATCHES = 4  # of each run
DIGITS = 7

Row = dict[str, str | float]
Rows = list[Row]


def extend_table(results: Results, signatures: Sequence[str], progress: Callable[[str], None]) -> Path:
    """Add the runs that the table lacks, one after the other; what is there stays. Its path.

    Raises RequestError where a run's settings are not those of this program.
    """
    path = results.surrogate
    rows: Rows = list(csv.DictReader(path.open())) if path.is_file() else []
    missing = [signature for signature in signatures if signature not in {row["signature"] for row in rows}]
    for done, signature in enumerate(missing, start=1):
        rows += surrogates(results, signature)
        if rows:  # none where the run diverged in its first rollout step
            write_csv_atomic(path, rows)
        progress(f"run {done}/{len(missing)}: {signature}")
    return path


def surrogates(results: Results, signature: str) -> Rows:
    """Surrogates and KL along the first updates of a run. Columns: signature, rollout_step, those of `interpolate`."""
    rows: Rows = []
    for step, (learner, before, after, batch) in enumerate(updates(results, signature)):
        place: Row = {"signature": signature, "rollout_step": step}
        points = interpolate(learner, before, after, batch, ALPHAS)
        rows += [{**place, **{key: round(value, DIGITS) for key, value in point.items()}} for point in points]
    return rows


def updates(results: Results, signature: str) -> Iterator[tuple[Learner, Policy, Policy, TrainingBatch]]:
    """The first BATCHES rollout steps of a run: the policy before and after, and the batch between them.

    Fewer where the run is shorter or diverges. The policy after goes on to the next step.
    """
    settings = _settings(results.run(signature), results)
    set_up_torch(settings)
    parts = assemble(settings, warm_start.ensure(settings, results))
    learner, state, policy = parts.learner, parts.state, parts.state.policy
    for step in range(min(BATCHES, settings.planned_steps)):
        before = policy.frozen_copy()
        batch = learner.collector.next(policy, step, state.waiting).batch
        minibatches, tokens = learner.minibatches(policy, batch, step), int(batch.mask_BT.sum())
        try:
            for _ in range(settings.num_iterations):
                minibatches = [learner.update(state, minibatch, tokens).batch for minibatch in minibatches]
        except Diverged:
            return
        state.rollout_step = step + 1
        yield learner, before, policy, batch


def _settings(folder: Path, results: Results) -> RunSettings:
    """A run's settings. Raises RequestError where they, its data or its device are not here any more."""
    written = yaml.safe_load((folder / "settings.yaml").read_text())
    unset = dict.fromkeys(RunSettings.model_fields)  # keys that are younger than the run
    try:
        settings = RunSettings.model_validate({**unset, **written})
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        raise RequestError(f"run {folder.name}: {key} of its settings.yaml is not allowed: {problem['msg']}") from error
    content = (read_json(folder / "provenance.json") or {}).get("content", {})
    problems = preflight.check(settings, results)
    if (now := settings.content()) != content or unrecorded(written, content):
        problems.append(f"what it was trained on was {in_words(content) or 'not recorded'}, now it is {in_words(now)}")
    if problems:
        raise RequestError(f"run {folder.name} cannot be replayed: {problem}" for problem in problems)
    return settings
