"""What the rules look at: one run's numbers, as far as they can be read; and how a run folder is read.

Logs of other frameworks: `readers/logs.py`.

A column or a table that is not there is empty: a rule that needs it stays silent, and never guesses.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from grpolab.errors import Damaged, RequestError
from grpolab.identity import dotted
from grpolab.paths import Results, read_json
from grpolab.quantities import Thresholds
from grpolab.readers.logs import RunLog
from grpolab.records import check_policy, read_provenance, read_result, read_settings
from grpolab.report.journals import both, column, read_samples, table, tail_length
from grpolab.report.scores import collapsed, final_score
from grpolab.report.text import count, listing
from grpolab.run_files import WEIGHTS, read_outcome
from grpolab.vocabulary import DIVERGED, STOPPED

Floats = NDArray[np.float64]
Read = TypeVar("Read")

MOST = 0.9  # share of updates or rollout steps that 'nearly all' means
ROUNDING = 1e-4  # |log ratio| that two float32 forward passes of one policy can differ by (the loop asserts it)
TRUNCATED = 0.5  # share of completions that are cut off, above which the usual one has no end
STILL_REACH = 0.2  # largest |ratio - 1| of nearly all updates on a used batch: the usual clip range, never reached
STILL_KL = 1e-4  # nat per token from the start, at the end of the run; only where no batch is reused
REWARD = "reward/mean"  # the score of a run that was not evaluated
SCORES = ("eval/accuracy_expected", "eval/accuracy_greedy", REWARD)  # the first that a run has is its score
SPANS = 10  # equal pieces of a log, whose mean rewards stand for evaluations
NOISE = 4  # standard errors of a piece's mean that a fall must be larger than, to be called a collapse
HALF = 0.5  # of a run: a batch has too few groups to count one alone
LEAST_OF_TREND = 4  # rewards: fewer have no trend with an error
ONE_SIDE = 0.9  # of the groups with equal rewards (or of the range of the rewards): nearly all on one side
# The field's clip range at each ratio level: PPO's and GRPO's, and GSPO's.
USUAL_RANGE = {"token": 0.2, "sequence": 3e-4}

TABLES = {"update": "updates", "rollout": "rollouts", "evaluation": "evaluations"}
NOT_LOGGED = (
    "the settings (epsilon, beta, num_iterations, max_grad_norm, warm-up): they are not in such a log",
    "advantages and single tokens: they are not in such a log",
)
PLANTED = ("fault", "reward.function")  # what `make bench WHAT=doctor` plants stands in settings, and must not be known
MOST_SAMPLES = 12  # tables of completions that are read, evenly over the run
SAMPLE_COLUMNS = ["prompt_index", "sample", "reward", "advantage", "position", "old_log_prob", "ratio", "clipped"]
MOST_WEIGHTS = 1_000_000  # of a tensor that are looked at: enough to tell, and a large model is read in a moment


def largest(frame: pd.DataFrame, metric: str) -> float:
    """The largest value; NaN where there is none."""
    values = column(frame, metric)
    return float(values.max()) if len(values) else np.nan


def median(frame: pd.DataFrame, metric: str) -> float:
    """The median; NaN where there is none."""
    values = column(frame, metric)
    return float(np.median(values)) if len(values) else np.nan


def reach_of(updates: pd.DataFrame) -> Floats:
    """Largest |ratio - 1| of each update that has its least and largest token ratio."""
    if not {"ratio/token_min", "ratio/token_max"} <= set(updates):
        return np.empty(0)
    known = updates[["ratio/token_min", "ratio/token_max"]].dropna()
    return np.maximum(known["ratio/token_max"] - 1, 1 - known["ratio/token_min"]).to_numpy(dtype=np.float64)


def trend(values: Floats) -> tuple[float, float]:
    """How much the values change from first to last along their least-squares line, and the standard error of that."""
    places = np.linspace(-0.5, 0.5, len(values))
    slope, mean = np.polyfit(places, values, 1)
    residuals = values - mean - slope * places
    freedom, length = max(len(values) - 2, 1), float(np.sqrt((places**2).sum()))
    return float(slope), float(np.sqrt((residuals**2).sum() / freedom)) / length


def pieces(rollouts: pd.DataFrame) -> list[tuple[int, float]]:
    """Last step and mean reward of each of SPANS equal pieces of a log (fewer where it has fewer rows)."""
    if REWARD not in rollouts:
        return []
    rewards, steps = rollouts[REWARD].to_numpy(), rollouts["rollout_step"].to_numpy()
    known = np.flatnonzero(~np.isnan(rewards))
    parts = np.array_split(known, min(SPANS, len(known)) or 1)
    return [(int(steps[rows].max()), float(rewards[rows].mean())) for rows in parts if len(rows)]


def least_fall(logs: Sequence[pd.DataFrame]) -> float:
    """How far the mean reward of these rollouts must fall to be a collapse: out of the noise, and a tenth of its range.

    The noise of a piece's mean is that of its rows, whose differences from row to row have no trend.
    """
    means = [reward for log in logs for _, reward in pieces(log)]
    least = [Thresholds.collapse_drop * max(1.0, max(means) - min(means))] if means else []
    for values in (column(log, REWARD) for log in logs):
        if len(values) > 2:
            noise = float(np.std(np.diff(values))) / np.sqrt(2)
            least.append(NOISE * noise / np.sqrt(max(1, len(values) // SPANS)))
    return max(least, default=Thresholds.collapse_drop)


@dataclass(frozen=True)
class Weights:
    """The weights at the end of a run beside those at its start."""

    count: int  # of all weights
    on_grid: float  # share that is exactly a bfloat16 number
    moved: float  # share that differs from the start; NaN where the start is not known
    still: tuple[str, ...] = ()  # names of tensors of which nothing moved


@dataclass(frozen=True, eq=False)
class Evidence:
    """One run. Tables as in `report/journals.py`; an update's numbers are those before its optimiser step."""

    run: str
    state: str  # how the run ended, or that it has not
    settings: Mapping[str, Any] = field(default_factory=dict)  # dotted keys; empty where a log does not hold them
    updates: pd.DataFrame = field(default_factory=pd.DataFrame)
    rollouts: pd.DataFrame = field(default_factory=pd.DataFrame)
    evaluations: pd.DataFrame = field(default_factory=pd.DataFrame)
    samples: pd.DataFrame = field(default_factory=pd.DataFrame)  # tokens of the rollout steps that were kept
    weights: Weights | None = None
    unknown: tuple[str, ...] = ()  # what could not be read, one sentence each
    not_finite: Mapping[str, Sequence[int]] = field(default_factory=dict)  # metric -> steps where it is NaN or infinite
    framework: str = "grpolab"  # whose log it is
    config: Mapping[str, Any] = field(default_factory=dict)  # what a log prints of its config, dotted, in its own words
    # `stability.run_quantities` of a run whose updates are not kept: what is left of them
    numbers: Mapping[str, float | bool] = field(default_factory=dict)
    thresholds: Thresholds | None = None  # of its study, and the metric that this is about; empty: of no study
    metric: str = ""

    def setting(self, key: str, default: float = 0.0) -> float:
        """A number among the settings; empty is 0."""
        return float(self.settings.get(key, default) or 0)

    @cached_property
    def first(self) -> pd.DataFrame:
        """Updates that are the first on their batch."""
        return self.updates[self._is_first]

    @cached_property
    def later(self) -> pd.DataFrame:
        """The other updates: the ratio can differ from 1 there."""
        return self.updates[~self._is_first] if len(self.updates) else self.updates

    @cached_property
    def _is_first(self) -> pd.Series:
        if not {"iteration", "minibatch"} <= set(self.updates):  # one row a batch, or who knows: not told apart
            return pd.Series(False, index=self.updates.index)
        return (self.updates["iteration"] == 0) & (self.updates["minibatch"] == 0)

    @cached_property
    def updates_per_batch(self) -> int:
        """Optimiser steps on one batch; 0 where the log does not tell."""
        return int(self.updates["rollout_step"].value_counts().max()) if self._is_first.any() else 0

    @cached_property
    def first_reach(self) -> Floats:
        """Largest |ratio - 1| of each batch's first update."""
        return reach_of(self.first)

    @cached_property
    def reach(self) -> Floats:
        """Largest |ratio - 1| of each later update; empty where no batch is reused."""
        return reach_of(self.later)

    @property
    def farthest(self) -> float:
        """The largest of them; NaN where there is none."""
        return float(self.reach.max()) if len(self.reach) else np.nan

    @property
    def peak_rate(self) -> float:
        """The largest learning rate: of the updates, else as it was set; NaN where neither tells."""
        rate, set_to = largest(self.updates, "learning_rate"), self.settings.get("learning_rate")
        return float(set_to) if np.isnan(rate) and isinstance(set_to, int | float) else rate

    @cached_property
    def is_still(self) -> bool:
        """Whether the policy hardly moves: on a used batch, or from the start where no batch is reused."""
        if len(self.reach):
            return bool(np.quantile(self.reach, MOST) < STILL_REACH)
        from_start = column(self.rollouts, "kl_ref/exact")
        return len(from_start) > 0 and bool(from_start[-1] < STILL_KL)

    @cached_property
    def has_moved(self) -> bool:
        """Whether the policy provably moved while a batch was used, whatever the ratio says.

        The sampler's log-probs stay what they were; the old ones, where they follow the weights, leave them behind.
        """
        gap = median(self.rollouts, "gap/sampler_trainer")
        return largest(self.rollouts, "kl_ref/exact") > STILL_KL if np.isnan(gap) else gap > ROUNDING

    @property
    def has_outer_cap(self) -> bool:
        """Whether the settings bound the ratio of tokens with A < 0 too."""
        return bool(self.settings.get("delta") or self.settings.get("dual_clip"))

    @cached_property
    def score(self) -> tuple[str, Floats]:
        """How good the policy is over time: on held-out items where it was evaluated twice, else the mean reward."""
        for metric in dict.fromkeys((*([self.metric] if self.metric else []), *SCORES)):
            values = column(self.rollouts if metric == REWARD else self.evaluations, metric)
            values = values[np.isfinite(values)]
            if len(values) > 1:
                break
        return metric, values

    @cached_property
    def course(self) -> Floats:
        """The score as reports have it: that of each evaluation, or mean rewards of the pieces of a log."""
        metric, values = self.score
        return np.array([reward for _, reward in pieces(self.rollouts)]) if metric == REWARD else values

    @property
    def final_score(self) -> float:
        """The score at the end, as reports have it."""
        return final_score(self.course, self._thresholds.score_tail)

    @cached_property
    def is_collapsed(self) -> bool:
        """Whether the run lost its score and did not win it back: the report's label, however the run ended."""
        return collapsed(self.course, self._thresholds)

    @property
    def lost(self) -> str:
        """The report's label of a lost run (collapsed, diverged, stopped); empty for a run that was not lost."""
        ended = next((how for how in (DIVERGED, STOPPED) if self.state.startswith(how)), "")
        return ended or ("collapsed" if self.is_collapsed else "")

    @cached_property
    def _thresholds(self) -> Thresholds:
        if self.thresholds:
            return self.thresholds
        drop = least_fall([self.rollouts]) if self.score[0] == REWARD else Thresholds.collapse_drop
        return Thresholds(collapse_drop=drop)

    @cached_property
    def reward_went(self) -> Literal["up", "down", "nowhere", "unknown"]:
        """Where the mean reward went over the run: the trend, where it is larger than two standard errors."""
        rewards = column(self.rollouts, REWARD)
        if len(rewards) < LEAST_OF_TREND:
            return "unknown"
        change, error = trend(rewards)
        return "nowhere" if abs(change) <= 2 * error else "up" if change > 0 else "down"

    @cached_property
    def why_equal(self) -> Literal["right", "wrong", "mixed", "unknown"]:
        """Why groups have equal rewards in the second half of the run: nearly all of these are right, or wrong, or not.

        A log does not say what is right: there the mean reward lies at an end of what it logs as the range of rewards.
        """
        equal = self.ends("zero_variance/share", HALF)[1]
        right, wrong = (self.ends(f"zero_variance/all_{what}", HALF)[1] for what in ("right", "wrong"))
        if equal > 0 and not np.isnan(right + wrong):
            return "right" if right > ONE_SIDE * equal else "wrong" if wrong > ONE_SIDE * equal else "mixed"
        least, most = (column(self.rollouts, f"reward/{end}") for end in ("min", "max"))
        reward = self.ends(REWARD, HALF)[1]
        if not len(least) or not len(most) or not (width := most.max() - least.min()) > 0 or np.isnan(reward):
            return "unknown"
        place = (reward - least.min()) / width
        return "right" if place > ONE_SIDE else "wrong" if place < 1 - ONE_SIDE else "mixed"

    @cached_property
    def equal_groups(self) -> Floats:
        """Share of groups with equal rewards; of a log without it 1 where all rewards of a row are equal, else empty.

        A standard deviation of 0, or one reward for the whole batch, say that; nothing says how many groups are equal
        where they are not all.
        """
        if len(shares := column(self.rollouts, "zero_variance/share")):
            return shares
        if len(spread := column(self.rollouts, "reward/std")):
            return (spread == 0).astype(np.float64)
        least, most = both(self.rollouts, "reward/min", "reward/max")
        return (least == most).astype(np.float64)

    def ends(self, metric: str, share: float = Thresholds.tail) -> tuple[float, float]:
        """Mean of a rollout metric over the first and the last `share` of the run; NaN where there is none."""
        values = column(self.rollouts, metric)
        if not len(values):
            return np.nan, np.nan
        n = tail_length(len(values), share)
        return float(values[:n].mean()), float(values[-n:].mean())


def to_evidence(log: RunLog) -> Evidence:
    """Return the evidence in the log of another framework."""
    told = [f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in log.settings.items()]
    settings = f"settings that the log does not print (it prints {listing(told, 8)})" if told else NOT_LOGGED[0]
    return Evidence(
        run=log.run,
        state=f"a log of {log.framework} with {count(log.rows, 'row')}",
        settings=log.settings,
        updates=log.updates,
        rollouts=log.rollouts,
        unknown=(settings, NOT_LOGGED[1], *log.problems),
        not_finite=log.not_finite,
        framework=log.framework,
        config=log.config,
    )


def read_run(folder: Path) -> Evidence:
    """The evidence in a run folder. Raises RequestError where its settings cannot be read."""
    try:
        if not (settings := dict(dotted(read_settings(folder)))):
            raise Damaged(f"{folder / 'settings.yaml'} is not there, or says nothing")
    except Damaged as wrong:
        raise RequestError(f"run {folder.name}: settings.yaml cannot be read: {wrong}") from wrong
    beat, damaged = read_json(folder / "running.json"), list[str]()
    outcome = _read_or_note(read_outcome, folder, damaged)
    if outcome:
        _read_or_note(read_result, folder, damaged)
    tables, damage, not_finite = _journal(folder / "journal.jsonl", running=outcome is None)
    samples, unreadable = _samples(folder)
    weights = None
    provenance = _read_or_note(read_provenance, folder, damaged) or {}
    if outcome:
        weights = _read_or_note(partial(_weights, outcome, provenance.get("warm_start") or {}), folder, damaged)
    steps = count(len(tables["rollouts"]), "rollout step")
    if outcome:
        state = f"{outcome.get('outcome')} after {steps}" + (f": {outcome['reason']}" if outcome.get("reason") else "")
    elif beat is None:
        state = f"unfinished after {steps}: this is a diagnosis of what there is"
    else:
        state = f"still going, after {steps} of {beat.get('rollout_steps')}: this is a diagnosis so far"
    if damaged:
        state += "; damaged: its files are not those that it ended with, and no report counts it"
    return Evidence(
        run=folder.name,
        state=state,
        settings={key: value for key, value in settings.items() if key not in PLANTED},
        samples=samples,
        weights=weights,
        unknown=(*damaged, *damage, *unreadable, *([] if weights else ["the weights: they are kept when a run ends"])),
        not_finite=not_finite,
        framework=(provenance.get("framework") or {}).get(
            "name", "grpolab"
        ),  # readers/trl_callback.py writes such a folder
        **tables,
    )


def _read_or_note(read: Callable[[Path], Read], folder: Path, damaged: list[str]) -> Read | None:
    """What `read` says of a folder; None where that is damaged, which is added to what is, each once."""
    try:
        return read(folder)
    except Damaged as damage:
        if str(damage) not in damaged:
            damaged.append(str(damage))
        return None


def _weights(outcome: Mapping[str, Any], warm_start: Mapping[str, Any], folder: Path) -> Weights | None:
    """Raises Damaged where the weights are not those of the outcome."""
    check_policy(folder, dict(outcome))
    made = warm_start.get("signature")
    start = Results(folder.parents[1]).warm_start(made) / WEIGHTS if made else folder / "no warm start"
    return compare(folder / WEIGHTS, start)


def _journal(path: Path, running: bool) -> tuple[dict[str, pd.DataFrame], list[str], dict[str, list[int]]]:
    """Its tables, what of it cannot be read, and by metric the steps where it is not finite: a string.

    `report/journals.py` reads whole journals faster; this one reads the whole part of a damaged one too.
    """
    records: dict[str, list[dict[str, Any]]] = {name: [] for name in TABLES.values()}
    damage: list[str] = []
    not_finite: dict[str, list[int]] = defaultdict(list)
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError:
        lines, damage = [], ["the journal: there is none"]
    for number, line in enumerate(lines, start=1):
        if running and number == len(lines) and not line.endswith(b"\n"):
            break  # it is being written
        try:
            record = json.loads(line)
            kind = record.pop("kind")
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            damage.append(f"the journal from line {number} of {len(lines)} on: the line is damaged")
            break
        if kind in TABLES:
            records[TABLES[kind]].append(record)
            for name, value in record.items():
                if isinstance(value, str):
                    not_finite[name].append(int(record.get("rollout_step", 0)))
    return {name: table(rows) for name, rows in records.items()}, damage, not_finite


def _samples(folder: Path) -> tuple[pd.DataFrame, list[str]]:
    """One row per token of kept rollout steps, with its `rollout_step`; and what cannot be read."""
    files = sorted(folder.glob("samples/step_*.parquet"))
    if not files:
        return pd.DataFrame(), ["advantages and single tokens: diagnostics.samples_every kept none"]
    frames, problems = [], []
    for file in sorted({files[round(place)] for place in np.linspace(0, len(files) - 1, MOST_SAMPLES)}):
        try:
            frame = read_samples(file, SAMPLE_COLUMNS)
        except Damaged as damage:
            problems.append(str(damage))
        else:
            frames.append(frame.assign(rollout_step=int(file.stem.removeprefix("step_"))))
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(), problems


def compare(end: Path, start: Path) -> Weights | None:
    """The weights in `end` beside those in `start`, if that is there; None where `end` is no readable file."""
    try:
        after = _read_weights(end)
        before = _read_weights(start) if start.is_file() else {}
    except (OSError, SafetensorError):
        return None
    changed = {name: values != before[name][1] for name, (_, values) in after.items() if name in before}
    values = np.concatenate([values for _, values in after.values()])
    return Weights(
        count=sum(size for size, _ in after.values()),
        on_grid=float(((values.view(np.uint32) & 0xFFFF) == 0).mean()),  # bfloat16 is the upper half of a float32
        moved=float(np.concatenate(list(changed.values())).mean()) if changed else np.nan,
        still=tuple(name for name, differs in changed.items() if not differs.any()),
    )


def _read_weights(path: Path) -> dict[str, tuple[int, NDArray]]:
    """Each tensor's number of weights, and the first of them, flat and in float32."""
    tensors = {}
    with safe_open(path, framework="numpy") as file:
        for name in file.keys():  # noqa: SIM118  (not a mapping)
            part = file.get_slice(name)
            shape = part.get_shape() or [1]
            rows = min(shape[0], max(1, MOST_WEIGHTS // max(1, int(np.prod(shape[1:])))))
            tensors[name] = int(np.prod(shape)), np.asarray(part[:rows], dtype=np.float32).ravel()
    return tensors
