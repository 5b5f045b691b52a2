"""The cells (runs) of a study: each variant is composed once, then resolved with each seed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from grpolab import RESULTS_VERSION
from grpolab.errors import RequestError, listing
from grpolab.paths import find_file
from grpolab.registry import SURROGATES
from grpolab.run.memory import parameters
from grpolab.settings.resolved import Resolved, resolve_run
from grpolab.settings.run import RunSettings
from grpolab.settings.task import task_title
from grpolab.study_names import available
from grpolab.sweep.compose import Composer, key_of
from grpolab.sweep.fields import unknown
from grpolab.sweep.registration import find_registrations, find_withdrawn, hypothesis_texts
from grpolab.sweep.schema import show
from grpolab.sweep.study import Collection, Levels, Study, load, unequal_budgets, variant_name
from grpolab.sweep.tuning.settings import shared_seeds

PLAN_FORMAT = 1
TINY = 131_072  # weights of model=tiny
MOST_CELLS = 100_000  # in a study: a mistyped number must not fill the memory


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
    beside = find_file(collection.file)
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
        place = "" if len(of) == len(names) else f", variant {listing(of, 1)}"
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
