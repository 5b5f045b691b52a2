"""The cells (runs) of a study or a command line: each variant is composed once, then resolved with each seed.

The runs of `grpolab train` become a study too: one cell, or with -m every combination of several values.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from pydantic import ValidationError

from grpolab import RESULTS_VERSION
from grpolab.errors import RequestError
from grpolab.paths import MOST_LETTERS, STUDY_NAME, project_root
from grpolab.registry import SURROGATES
from grpolab.run.memory import parameters
from grpolab.settings.resolved import Resolved, resolve_run
from grpolab.settings.run import RunSettings
from grpolab.settings.task import task_title
from grpolab.study_names import available
from grpolab.sweep.compose import Composer, key_of
from grpolab.sweep.fields import Factors, unknown
from grpolab.sweep.registration import find_registrations, find_withdrawn, hypothesis_texts
from grpolab.sweep.schema import sentences, show
from grpolab.sweep.study import Collection, Levels, Study, load, unequal_budgets, variant_name
from grpolab.sweep.tuning.settings import shared_seeds

PLAN_FORMAT = 1
TINY = 131_072  # weights of model=tiny
MOST_CELLS = 100_000  # in a study: a mistyped number must not fill the memory
DEFAULT_NAME = "adhoc"
MOST_LABEL, LONG_VALUE = 60, 40  # most characters of a level's name, and of an override that is not shortened in it
MOST_VALUES = 1000  # of one key: range(0,inf) has no end
CLIP_KEYS = {"epsilon", "epsilon_high", "delta", "importance_sampling_level"}


@dataclass(frozen=True)
class Cell:
    """One run of a study: a variant (its levels and settings as composed) with a seed."""

    levels: Levels
    composed: RunSettings
    seed: int

    def with_seed(self, seed: int) -> Cell:
        """Return the cell of the same variant with another seed."""
        return replace(self, seed=seed)

    @cached_property
    def settings(self) -> Resolved:
        return resolve_run(self.composed.model_copy(update={"seed": self.seed}))

    @property
    def variant(self) -> str:
        return variant_name(self.levels)

    @property
    def label(self) -> str:
        return f"{self.variant}, seed {self.seed}"

    @property
    def signature(self) -> str:
        return self.settings.signature

    @property
    def warm_start(self) -> str:
        """The signature of its warm start."""
        return self.settings.warm_start_signature

    @property
    def cost(self) -> float:
        """Relative duration: tokens sampled plus tokens learnt from, because sampling costs about as much as a pass."""
        settings = self.settings
        tokens = settings.batch_size * settings.max_completion_length
        return settings.planned_steps * (1 + settings.num_iterations) * tokens * self._cost_of_token

    @property
    def warm_start_cost(self) -> float:
        """Relative duration of its warm start, at most."""
        warm = self.settings.warm_start
        return warm.max_steps * warm.batch_size * self.settings.max_completion_length * self._cost_of_token

    @property
    def _cost_of_token(self) -> float:
        # Half of a token's time in the tiny model is independent of the weights (measured: 8x weights, 4.7x time).
        return 1 + parameters(self.settings.model) / TINY

    def document(self) -> dict[str, Any]:
        """Return the cell's entry in plan.json; `settings` holds flat values, which figures use as axes."""
        values = self.settings.model_dump()
        flat = {key: value for key, value in values.items() if not isinstance(value, dict | list)}
        if path := values["model"].get("path"):  # of a pretrained model
            flat["model"] = Path(path).name
        titled = {"task_title": title} if (title := task_title(self.settings.task)) != self.settings.task.name else {}
        return {
            "variant": self.variant,
            "levels": self.levels,
            **titled,
            "seed": self.seed,
            "signature": self.signature,
            "rollout_steps": self.settings.planned_steps,
            "settings": {
                **flat,
                "task": self.settings.task.name,
                "warm_start_target": values["warm_start"]["target_accuracy"],
            },
        }


@dataclass(frozen=True)
class Plan:
    """A study with its cells; a collection has the plans of its studies as `parts`."""

    study: Study | Collection
    seeds: list[int]
    cells: list[Cell] = field(default_factory=list)
    variants: list[Cell] = field(default_factory=list)  # each with seed 0, whatever the plan's seeds are
    parts: list[Plan] = field(default_factory=list)

    @property
    def hypotheses(self) -> dict[str, str]:
        """Text of each hypothesis by its id; of a collection the primary ones, by `study.id`."""
        if isinstance(self.study, Study):
            return hypothesis_texts(self.study, {cell.variant: cell.signature for cell in self.variants})
        known = {f"{part.study.name}.{name}": text for part in self.parts for name, text in part.hypotheses.items()}
        return {name: known[name] for name in self.study.primary}

    @property
    def registered(self) -> dict[str, dict[str, Any]]:
        """The registration of each hypothesis that is registered with the text that it has in this plan."""
        return find_registrations(self.study.name, self.hypotheses)

    def with_seeds(self, seeds_of: Mapping[str, Sequence[int]]) -> Plan:
        """Return the plan of the same study with these seeds for each variant."""
        cells = [cell.with_seed(seed) for cell in self.variants for seed in seeds_of.get(cell.variant, ())]
        return Plan(self.study, sorted({cell.seed for cell in cells}), cells, self.variants)

    def document(self, created: str, commit: str | None) -> dict[str, Any]:
        """Return the content of plan.json, all that the report knows about a study."""
        study = self.study
        document: dict[str, Any] = {
            **{"format": PLAN_FORMAT, "study": study.name, "question": study.question},
            **{"results_version": RESULTS_VERSION, "created": created, "commit": commit},
            **{"includes": [], "placebo": [], "hypotheses": []},
            **({"file": study.file} if study.argument != study.name else {}),
        }
        if isinstance(study, Collection):
            document |= {"includes": study.includes, "primary": study.primary, "shown": study.shown}
            document |= {"said": study.said} if study.said else {}
        else:
            whole = study.model_dump(include={"placebo", "hypotheses", "stability"})
            document |= {key: getattr(study, key) for key in ("compare", "baseline", "primary_metric")}
            document["factors"] = {factor: list(levels) for factor, levels in study.factors.items()}
            document |= {key: whole[key] for key in ("placebo", "hypotheses", "stability")}
            document |= {"tuned": study.tunings} if study.tunings else {}
        document |= {"title": study.title, "looks": study.looks, "registered": self.registered}
        document |= {"withdrawn": withdrawn} if (withdrawn := find_withdrawn(study.name)) else {}
        document |= {"figures": study.figures, "seeds": self.seeds}
        return document | {"cells": [cell.document() for cell in self.cells]}


def plans(name: str, overrides: Sequence[str] = (), seeds: list[int] | None = None) -> list[Plan]:
    """Return the plan of a study; for a collection the plans of its studies and, last, its own.

    `overrides` are applied after those of each variant; `seeds` replaces the file's. Raises RequestError with all
    problems of all files and variants.
    """
    study, composer = load(name), Composer()
    if isinstance(study, Study):
        return [expand(study, composer, overrides, seeds)]
    parts, problems = list[Plan](), list[str]()
    for part in study.includes:
        try:
            included = load(_locate(part, study))
            if isinstance(included, Collection):
                raise RequestError(f"{study.file}: includes={part} has includes of its own: name its studies")
            parts.append(expand(included, composer, overrides, seeds or study.seeds))
        except RequestError as error:
            problems += error.problems
    if not problems:
        studies = [plan.study for plan in parts if isinstance(plan.study, Study)]
        ids = [f"{part.name}.{claim.id}" for part in studies for claim in part.hypotheses]
        problems += unknown(f"{study.file}: primary", study.primary, ids)
        problems += unknown(f"{study.file}: said", study.said, ids)
        figures = [f"{part.name}.{figure}" for part in studies for figure in part.figures]
        problems += unknown(f"{study.file}: shown", study.shown, figures)
    if problems:
        raise RequestError(dict.fromkeys(problems))
    return [*parts, Plan(study, sorted({seed for plan in parts for seed in plan.seeds}), parts=parts)]


def _locate(part: str, collection: Collection) -> str:
    """Return what `load` takes for an included study: one of experiments/, else a file beside the collection's."""
    beside = project_root() / collection.file
    file = beside.with_name(f"{part}{beside.suffix}")
    return str(file) if part not in available() and file.is_file() else part


def expand(
    study: Study,
    composer: Composer,
    overrides: Sequence[str] = (),
    seeds: list[int] | None = None,
    needs_clipping: bool = True,
) -> Plan:
    """Return the plan of one study. With `needs_clipping`, refuse a study in which no cell can clip.

    Raises RequestError with all problems.
    """
    names, variants = [variant_name(levels) for levels in study.variants()], list[Cell]()
    written = dict.fromkeys(text for levels in study.variants() for text in study.overrides_of(levels))
    broken = defaultdict[str, list[str]](list)  # problem -> names of the variants that have it
    for name, levels in zip(names, study.variants(), strict=True):
        try:
            variants.append(Cell(levels, composer.compose([*study.overrides_of(levels), *overrides]), seed=0))
        except RequestError as error:
            for problem in error.problems:
                broken[problem].append(name)
    problems = list[str]()
    for problem, of in broken.items():
        more = f" and {len(of) - 1} more" if len(of) > 1 else ""
        place = "" if len(of) == len(names) else f", variant {of[0]}{more}"
        problems.append(f"{problem} (study {study.name}{place})")
    problems += [
        f"{show(text)}: study {study.name} sets its seeds itself, use `seeds:` or --seeds"
        for text in (*written, *overrides)
        if key_of(text) == "seed"
    ]
    seeds = seeds or study.seeds
    if not problems:
        problems = [f"study {study.name}: {text}" for text in _find_misfits(study, variants, needs_clipping)]
    problems = problems or shared_seeds(study.tunings, seeds)
    if len(variants) * len(seeds) > MOST_CELLS:
        problems.append(f"study {study.name}: {len(seeds)} seeds make more than {MOST_CELLS} cells: ask for fewer")
    if problems:
        raise RequestError(problems)
    return Plan(study, seeds, [cell.with_seed(seed) for cell in variants for seed in seeds], variants)


def _find_misfits(study: Study, variants: Sequence[Cell], needs_clipping: bool) -> Iterator[str]:
    """Yield a sentence for each problem of a study whose variants could be run one by one."""
    first_of: dict[str, Cell] = {}
    placebo = {frozenset(pair) for pair in study.placebo}
    for cell in variants:
        first = first_of.setdefault(cell.signature, cell)
        arms = frozenset({first.levels[study.compare], cell.levels[study.compare]})
        if first is not cell and arms not in placebo:
            yield f"{first.variant} and {cell.variant} have equal settings: drop one, or name them under `placebo:`"
    clipped = [cell.settings for cell in variants if SURROGATES[cell.settings.kernel].clips]
    if needs_clipping and clipped and not any(settings.clip_can_bind for settings in clipped):
        yield (
            "clipping can act in no cell, because each that clips has one update per fresh batch (every ratio is then"
            " exactly 1): give a variant num_iterations or num_minibatches above 1"
        )
    yield from unequal_budgets(study, [(cell.levels, cell.settings) for cell in variants])


# The runs that `grpolab train` asks for.


def cell_of(settings: RunSettings, overrides: Sequence[str]) -> Cell:
    """Return the cell of one run, named by the overrides that ask for it."""
    named = [text for text in overrides if not key_of(text).startswith(("seed", "machine.", "launcher"))]
    return Cell({"run": _level_name(named)}, settings, settings.seed)


def plan_of_run(name: str, cell: Cell, overrides: Sequence[str]) -> Plan:
    """Return the plan of a single run, so that report and tracking find it as a study of that name."""
    return Plan(_make_study(name, overrides, {"run": {cell.variant: []}}, [cell.seed]), [cell.seed], [cell])


def _make_study(
    name: str, words: Sequence[str], factors: Factors, seeds: list[int], common: Sequence[str] = ()
) -> Study:
    """Return a study of these factors; the first is compared, and its first level is the baseline."""
    compare, levels = next(iter(factors.items()))
    return Study(
        name=name,
        question="Asked on the command line: " + " ".join(words),
        overrides=list(common),
        factors=factors,
        compare=compare,
        baseline=next(iter(levels)),
        seeds=seeds,
        primary_metric="eval/accuracy_expected",
        figures=["F1", "F2", "F16", "F26"],
    )


def expand_multirun(overrides: Sequence[str], name: str = DEFAULT_NAME) -> Plan:
    """Return the plan of a Hydra sweep (`epsilon=0.1,0.2 seed=range(0,3)`): a key with several values is a factor.

    Raises RequestError with all problems.
    """
    refuse_taken_name(name)
    composer, problems = Composer(), list[str]()
    parsed = [override for text in overrides if (override := composer.parse(text, problems, sweep=True))]
    swept = {o.key_or_group: _list_values(o, problems) for o in parsed if o.is_sweep_override()}
    fixed = [str(o.input_line) for o in parsed if not o.is_sweep_override()]
    if values := swept.pop("seed", None):
        seeds = [int(value) for value in values if value.isdecimal()]
        if len({*seeds}) < len(values):
            problems.append(f"seed={','.join(values)} is not allowed: seeds are different whole numbers >= 0")
            seeds = [0]
    else:
        seeds = [composer.compose([text for text in fixed if key_of(text) == "seed"]).seed]
    texts = {key: [f"{key}={value}" for value in values] for key, values in swept.items() if values}
    factors: Factors = {key: {_level_name([text]): [text] for text in of_key} for key, of_key in texts.items()}
    problems += [f"{key}: two of its values have one name" for key in factors if len(factors[key]) < len(swept[key])]
    rest = [text for text in fixed if key_of(text) != "seed"]
    factors = factors or {"run": {_level_name([]): []}}
    try:
        study = _make_study(name, [*rest, *factors], factors, seeds, rest)
        plan = expand(study, composer, needs_clipping=bool(CLIP_KEYS & swept.keys()))
    except ValidationError as error:
        problems += sentences(Study, error)
    except RequestError as error:
        problems += error.problems
    if problems:
        raise RequestError(problems)
    return plan


def _list_values(override: Override, problems: list[str]) -> list[str]:
    is_shuffled = getattr(override.value(), "shuffle", False)  # Hydra would list a range without end to shuffle it
    values: list[str] = []
    with suppress(HydraException, ValueError, ArithmeticError):
        values = [] if is_shuffled else list(map(str, islice(override.sweep_string_iterator(), MOST_VALUES + 1)))
    if not 0 < len(set(values)) == len(values) <= MOST_VALUES:
        how = f"write up to {MOST_VALUES} different values, as a comma list, choice(...) or range(...)"
        problems.append(f"{show(override.input_line)} cannot be swept: {how}")
        return []
    return values


def _level_name(overrides: Sequence[str]) -> str:
    """Return overrides as a level's name: short, one word, no slash (slashes join levels to variants).

    A long path loses its folders, too many overrides lose the last ones; four digits of a hash tell such names apart.
    """
    texts = [text if len(text) <= LONG_VALUE else re.sub(r"[^=,{}:\[\]]*/", "", text) for text in overrides]
    short = [text for index, text in enumerate(texts) if len(",".join(texts[: index + 1])) <= MOST_LABEL]
    short = short or [text[:MOST_LABEL] for text in texts[:1]]
    more = [f"+{len(texts) - len(short)}"] if len(short) < len(texts) else []
    name, whole = ",".join([*short, *more]), ",".join(overrides)
    mark = "" if name == whole else f"~{hashlib.sha256(whole.encode()).hexdigest()[:4]}"
    return re.sub(r"[\s/]+", "_", name + mark) or "defaults"


def refuse_taken_name(name: str) -> None:
    """Raise RequestError if a name cannot be a folder's, or is that of a study."""
    if not STUDY_NAME.fullmatch(name):
        raise RequestError(f"--name {show(name)} is not allowed: {STUDY_NAME.pattern}, length <= {MOST_LETTERS}")
    if name in available():
        raise RequestError(f"--name {name} is a study of experiments/: choose another name")
