"""A study's cells: every variant composed and validated once, seeds applied after, and what makes no sense refused."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from pydantic import ValidationError

from grpolab import RESULTS_VERSION
from grpolab.errors import RequestError
from grpolab.paths import STUDY_NAME, available, project_root
from grpolab.quantities import Thresholds
from grpolab.registry import SURROGATES
from grpolab.run.memory import parameters
from grpolab.settings.resolved import Resolved, resolve_run
from grpolab.settings.run import RunSettings
from grpolab.settings.task import task_title
from grpolab.sweep.compose import Composer, key_of
from grpolab.sweep.registration import registered, texts
from grpolab.sweep.schema import MOST_LETTERS, Factors, sentences, show, unknown
from grpolab.sweep.study import Collection, Hypothesis, Levels, Study, called, load, unequal_budgets
from grpolab.sweep.tuning.settings import shared_seeds
from grpolab.vocabulary import LOOKS

PLAN_FORMAT = 1
TINY = 131_072  # weights of model=tiny
MOST_CELLS = 100_000  # of a study; more is a slip, and would fill the memory

# Of a study that `grpolab train` makes.
DEFAULT_NAME, PRIMARY_METRIC = "adhoc", "eval/accuracy_expected"
FIGURES = ["F1", "F2", "F16", "F26"]
MOST_LABEL, LONG_VALUE = 60, 40  # characters of a level's name, and of an override that is said whole in it
MOST_VALUES = 1000  # of one key: range(0,inf) has no end
# A sweep over one of these asks what clipping does.
CLIP_KEYS = {"epsilon", "epsilon_high", "delta", "importance_sampling_level"}


@dataclass(frozen=True)
class Cell:
    """One run that a study asks for."""

    levels: Levels
    settings: Resolved

    @property
    def variant(self) -> str:
        """The levels joined: `symmetric/addition/healthy`."""
        return "/".join(self.levels.values())

    @property
    def label(self) -> str:
        """The cell in words."""
        return f"{self.variant}, seed {self.settings.seed}"

    @property
    def signature(self) -> str:
        """Name of the run's folder."""
        return self.settings.signature

    @property
    def warm_start(self) -> str:
        """Name of its warm start's folder."""
        return self.settings.warm_start_signature

    @property
    def cost(self) -> float:
        """Relative length of the run: tokens sampled and learnt from; sampling costs about as much as a pass."""
        settings = self.settings
        tokens = settings.batch_size * settings.max_completion_length
        return settings.planned_steps * (1 + settings.num_iterations) * tokens * self.cost_of_token

    @property
    def warm_start_cost(self) -> float:
        """Relative length of its warm start, at most."""
        warm = self.settings.warm_start
        return warm.max_steps * warm.batch_size * self.settings.max_completion_length * self.cost_of_token

    @property
    def cost_of_token(self) -> float:
        """Half of a token's time in the tiny model is not its weights': 8 times as many took 4.7 times the time."""
        return 1 + parameters(self.settings.model) / TINY

    def document(self) -> dict[str, Any]:
        """The cell's entry in plan.json; `settings` holds the flat ones, which figures use as axes."""
        values = self.settings.model_dump()
        flat = {key: value for key, value in values.items() if not isinstance(value, dict | list)}
        if path := values["model"].get("path"):  # a tiny one has none
            flat["model"] = Path(path).name
        titled = {"task_title": title} if (title := task_title(self.settings.task)) != self.settings.task.name else {}
        return {
            "variant": self.variant,
            "levels": self.levels,
            **titled,
            "seed": self.settings.seed,
            "signature": self.signature,
            "rollout_steps": self.settings.planned_steps,
            "settings": {**flat, "task": self.settings.task.name},
        }


@dataclass(frozen=True)
class Variant:
    """One combination of a study's levels, without a seed."""

    levels: Levels
    settings: RunSettings  # as composed

    @property
    def name(self) -> str:
        """The levels joined, as in `Cell.variant`."""
        return "/".join(self.levels.values())

    def cell(self, seed: int) -> Cell:
        """Its run with this seed."""
        return Cell(self.levels, resolve_run(self.settings.model_copy(update={"seed": seed})))


@dataclass(frozen=True)
class Plan:
    """A study with its cells; a collection has none of its own, but the plans that it includes."""

    study: Study | Collection
    seeds: list[int]
    cells: list[Cell] = field(default_factory=list)
    variants: list[Variant] = field(default_factory=list)
    parts: list[Plan] = field(default_factory=list)

    @property
    def hypotheses(self) -> dict[str, str]:
        """Name -> all that is said of it: those of the study, or the primary ones of a collection (`study.id`)."""
        if isinstance(self.study, Study):
            return texts(self.study, {variant.name: variant.settings for variant in self.variants})
        known = {f"{part.study.name}.{name}": text for part in self.parts for name, text in part.hypotheses.items()}
        return {name: known[name] for name in self.study.primary}

    @property
    def registered(self) -> dict[str, dict[str, Any]]:
        """The registration of each hypothesis that is registered as this plan has it (`sweep/registration.py`)."""
        return registered(self.study.name, self.hypotheses)

    def with_seeds(self, seeds_of: Mapping[str, Sequence[int]]) -> Plan:
        """The same study with these seeds of each of its variants."""
        cells = [variant.cell(seed) for variant in self.variants for seed in seeds_of.get(variant.name, ())]
        return Plan(self.study, sorted({cell.settings.seed for cell in cells}), cells, self.variants)

    def document(self, created: str, commit: str | None) -> dict[str, Any]:
        """plan.json: all that the report knows about the study."""
        study = self.study
        comparison: dict[str, Any] = {"placebo": [], "hypotheses": []}
        if isinstance(study, Collection):
            comparison |= {"primary": study.primary, "shown": study.shown}
        else:
            comparison = {
                "compare": study.compare,
                "baseline": study.baseline,
                "primary_metric": study.primary_metric,
                "factors": {factor: list(levels) for factor, levels in study.factors.items()},
                "placebo": study.placebo,
                "hypotheses": [claim.model_dump() for claim in study.hypotheses],
                "stability": study.stability.model_dump(),
                **({"tuned": study.tunings} if study.tunings else {}),
            }
        return {
            "format": PLAN_FORMAT,
            "study": study.name,
            **({"file": study.file} if called(study) != study.name else {}),
            "title": study.title,
            "question": study.question,
            "results_version": RESULTS_VERSION,
            "created": created,
            "commit": commit,
            "includes": study.includes if isinstance(study, Collection) else [],
            **comparison,
            "looks": study.looks,
            "registered": self.registered,
            "figures": study.figures,
            "seeds": self.seeds,
            "cells": [cell.document() for cell in self.cells],
        }


def plans(name: str, overrides: Sequence[str] = (), seeds: list[int] | None = None) -> list[Plan]:
    """The plan of a study; of a collection, the plans of the studies that it includes and, last, its own.

    `overrides` stand after those of every variant; `seeds` replaces the file's. Raises RequestError with all that is
    wrong in any of the files or variants.
    """
    study, composer = load(name), Composer()
    if isinstance(study, Study):
        return [expand(study, composer, overrides, seeds)]
    included, problems = [], []
    for part in study.includes:
        try:
            plain = load(_beside(study, part))
            if isinstance(plain, Collection):
                raise RequestError(f"{study.file}: includes={part} has includes of its own: name its studies")
            included.append(expand(plain, composer, overrides, seeds or study.seeds))
        except RequestError as error:
            problems += error.problems
    whole = Plan(study, sorted({seed for plan in included for seed in plan.seeds}), parts=included)
    if not problems:
        known = [f"{plan.study.name}.{claim.id}" for plan in included for claim in _hypotheses(plan)]
        problems += unknown(f"{study.file}: primary", study.primary, known)
        drawn = [f"{plan.study.name}.{figure}" for plan in included for figure in plan.study.figures]
        problems += unknown(f"{study.file}: shown", study.shown, drawn)
    if problems:
        raise RequestError(dict.fromkeys(problems))
    return [*included, whole]


def _beside(collection: Collection, part: str) -> str:
    """An included study as `load` takes it: one of experiments/, else one whose file lies beside the collection's."""
    beside = project_root() / collection.file
    file = beside.with_name(f"{part}{beside.suffix}")
    return str(file) if part not in available() and file.is_file() else part


def _hypotheses(plan: Plan) -> list[Hypothesis]:
    return plan.study.hypotheses if isinstance(plan.study, Study) else []


def expand(
    study: Study,
    composer: Composer,
    overrides: Sequence[str] = (),
    seeds: list[int] | None = None,
    clipping: bool = True,
) -> Plan:
    """The cells of one study; `clipping`: refuse it where no cell can clip.

    Raises RequestError with all that is wrong.
    """
    problems: list[str] = []
    variants = list[Variant]()
    names_of = defaultdict[str, list[str]](list)  # each different problem, with the variants that have it
    for levels in study.variants():
        try:
            variants.append(Variant(levels, composer.compose([*study.overrides_of(levels), *overrides])))
        except RequestError as error:
            for problem in error.problems:
                names_of[problem].append("/".join(levels.values()))
    for problem, names in names_of.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        where = "" if len(names) == len(study.variants()) else f", variant {names[0]}{more}"
        problems.append(f"{problem} (study {study.name}{where})")
    written = dict.fromkeys(text for levels in study.variants() for text in study.overrides_of(levels))
    problems += [
        f"{show(text)}: study {study.name} sets its seeds itself, use `seeds:` or --seeds"
        for text in (*written, *overrides)
        if key_of(text) == "seed"
    ]
    if not problems:
        problems = _senseless(study, variants, clipping)
    seeds = seeds or study.seeds
    if not problems:
        problems = shared_seeds(study.tunings, seeds)
    if len(variants) * len(seeds) > MOST_CELLS:
        problems.append(f"study {study.name}: {len(seeds)} seeds make more than {MOST_CELLS} cells: ask for fewer")
    if problems:
        raise RequestError(problems)
    return Plan(study, seeds, [variant.cell(seed) for variant in variants for seed in seeds], variants)


def _senseless(study: Study, variants: Sequence[Variant], clipping: bool) -> list[str]:
    """What of variants that can each be run makes no sense in one study."""
    problems: list[str] = []
    seen: dict[str, Variant] = {}
    placebo = {frozenset(pair) for pair in study.placebo}
    for variant in variants:  # one run under two names, unless its arms are declared a placebo
        first = seen.setdefault(resolve_run(variant.settings).signature, variant)
        arms = frozenset({first.levels[study.compare], variant.levels[study.compare]})
        if first is not variant and arms not in placebo:
            problems.append(
                f"{first.name} and {variant.name} have equal settings: drop one, or name them under `placebo:`"
            )
    clipped = [variant.settings for variant in variants if SURROGATES[variant.settings.kernel].clips]
    if clipping and clipped and not any(settings.clip_can_bind for settings in clipped):
        problems.append(
            "clipping can act in no cell, because each that clips has one update per fresh batch (every ratio is then"
            " exactly 1): give a variant num_iterations or num_minibatches above 1"
        )
    problems += unequal_budgets(study.hypotheses, study.compare, [(v.levels, v.settings) for v in variants])
    return [f"study {study.name}: {text}" for text in problems]


# `grpolab train`: one run, or with `-m` a study of every combination of the values given on the command line.


def cell_of(settings: RunSettings, overrides: Sequence[str]) -> Cell:
    """One run, named by the overrides that asked for it."""
    named = [text for text in overrides if not key_of(text).startswith(("seed", "machine.", "launcher"))]
    return Cell({"run": _level(named)}, resolve_run(settings))


def run_document(name: str, cell: Cell, overrides: Sequence[str], created: str, commit: str | None) -> dict[str, Any]:
    """plan.json of a single run, by which report and tracking find it under a study's name."""
    level = cell.levels["run"]
    return {
        "format": PLAN_FORMAT,
        "study": name,
        "title": "",
        "question": f"Asked on the command line: {' '.join(overrides)}",
        "results_version": RESULTS_VERSION,
        "created": created,
        "commit": commit,
        "includes": [],
        "compare": "run",
        "baseline": level,
        "primary_metric": PRIMARY_METRIC,
        "factors": {"run": [level]},
        "placebo": [],
        "hypotheses": [],
        "stability": asdict(Thresholds()),
        "looks": list(LOOKS),
        "registered": {},
        "figures": FIGURES,
        "seeds": [cell.settings.seed],
        "cells": [cell.document()],
    }


def expand_multirun(overrides: Sequence[str], name: str = DEFAULT_NAME) -> Plan:
    """The plan of a Hydra sweep (`epsilon=0.1,0.2 seed=0,1`, `range(0,3)`): each key with several values is a factor.

    Raises RequestError with all that is wrong.
    """
    composer, problems = Composer(), list[str]()
    parsed = [override for text in overrides if (override := composer.parse(text, problems, sweep=True))]
    swept = {o.key_or_group: _swept_values(o, problems) for o in parsed if o.is_sweep_override()}
    fixed = [str(o.input_line) for o in parsed if not o.is_sweep_override()]
    if seeds_given := swept.pop("seed", None):
        seeds = [int(value) for value in seeds_given if value.isdecimal()]
        if len({*seeds}) < len(seeds_given):
            problems.append(f"seed={','.join(seeds_given)} is not allowed: seeds are different whole numbers >= 0")
            seeds = [0]
    else:
        seeds = [composer.compose([text for text in fixed if key_of(text) == "seed"]).seed]
    factors: Factors = {
        key: {_level([f"{key}={value}"]): [f"{key}={value}"] for value in values}
        for key, values in swept.items()
        if values
    }
    problems += [f"{key}: two of its values have one name" for key in factors if len(factors[key]) < len(swept[key])]
    rest = [text for text in fixed if key_of(text) != "seed"]
    try:
        study = _study(name, rest, factors or {"run": {_level([]): []}}, seeds)
        plan = expand(study, composer, clipping=bool(CLIP_KEYS & swept.keys()))
    except RequestError as error:
        problems += error.problems
    if problems:
        raise RequestError(problems)
    return plan


def _swept_values(override: Override, problems: list[str]) -> list[str]:
    shuffled = getattr(override.value(), "shuffle", False)  # Hydra would list a range without end to shuffle it
    values: list[str] = []
    with suppress(HydraException, ValueError, ArithmeticError):
        values = [] if shuffled else [str(value) for value in islice(override.sweep_string_iterator(), MOST_VALUES + 1)]
    if not 0 < len(set(values)) == len(values) <= MOST_VALUES:
        problems.append(
            f"{show(override.input_line)} cannot be swept: write up to {MOST_VALUES} different values, as a"
            " comma list, choice(...) or range(...)"
        )
        return []
    return values


def _level(overrides: Sequence[str]) -> str:
    """Overrides as the name of a level: short, one word without a slash, for slashes join levels to variants.

    Where that leaves something out, folders of a long path or the last of many overrides, four digits of a hash keep
    names apart that would be one.
    """
    texts = [text if len(text) <= LONG_VALUE else re.sub(r"[^=,{}:\[\]]*/", "", text) for text in overrides]
    short = [text for index, text in enumerate(texts) if len(",".join(texts[: index + 1])) <= MOST_LABEL]
    short = short or [text[:MOST_LABEL] for text in texts[:1]]
    more = [f"+{len(texts) - len(short)}"] if len(short) < len(texts) else []
    name, whole = ",".join([*short, *more]), ",".join(overrides)
    mark = "" if name == whole else f"~{hashlib.sha256(whole.encode()).hexdigest()[:4]}"
    return re.sub(r"[\s/]+", "_", name + mark) or "defaults"


def refuse_taken_name(name: str) -> None:
    """Raises RequestError where a name cannot be a folder's, or its runs would be taken for those of a study."""
    if len(name) > MOST_LETTERS or not STUDY_NAME.fullmatch(name):
        raise RequestError(f"name={name} is not allowed: {STUDY_NAME.pattern}, length <= {MOST_LETTERS}")
    if name in available():
        raise RequestError(f"--name {name} is a study of experiments/: choose another name")


def _study(name: str, overrides: list[str], factors: Factors, seeds: list[int]) -> Study:
    refuse_taken_name(name)
    compare, levels = next(iter(factors.items()))
    try:
        return Study(
            name=name,
            question=f"Asked on the command line: {' '.join([*overrides, *factors])}",
            overrides=overrides,
            factors=factors,
            compare=compare,
            baseline=next(iter(levels)),
            seeds=seeds,
            primary_metric=PRIMARY_METRIC,
            figures=FIGURES,
        )
    except ValidationError as error:
        raise RequestError(sentences(Study, error)) from error
