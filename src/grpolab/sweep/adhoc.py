"""`grpolab train` as a study: one run, or with `-m` every combination of the values given on the command line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from itertools import islice

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from pydantic import ValidationError

from grpolab.errors import RequestError
from grpolab.sweep import schema
from grpolab.sweep.compose import Composer, key_of
from grpolab.sweep.part import Factors
from grpolab.sweep.plan import Plan, expand
from grpolab.sweep.study import Study, available

DEFAULT_NAME = "adhoc"
FIGURES = ["F1", "F2", "F16", "F26"]
MOST_LABEL, LONG_VALUE = 60, 40  # characters of a level's name, and of an override that is said whole in it
MOST_VALUES = 1000  # of one key: range(0,inf) has no end
# A sweep over one of these asks what clipping does.
CLIP_KEYS = {"epsilon", "epsilon_high", "delta", "importance_sampling_level"}


def expand_single(overrides: Sequence[str], name: str = DEFAULT_NAME) -> Plan:
    """The plan of one run. Raises RequestError with all that is wrong."""
    composer = Composer()
    seed = composer.compose(overrides).seed
    rest = [text for text in overrides if key_of(text) != "seed"]
    said = [text for text in rest if not key_of(text).startswith("machine.")]
    return expand(_study(name, rest, {"run": {_level(said): []}}, [seed]), composer, clipping=False)


def expand_multirun(overrides: Sequence[str], name: str = DEFAULT_NAME) -> Plan:
    """The plan of a Hydra sweep (`epsilon=0.1,0.2 seed=0,1`, `range(0,3)`): each key with several values is a factor.

    Raises RequestError with all that is wrong.
    """
    composer, problems = Composer(), list[str]()
    parsed = [override for text in overrides if (override := composer.parse(text, problems, sweep=True))]
    swept = {o.key_or_group: _values(o, problems) for o in parsed if o.is_sweep_override()}
    fixed = [str(o.input_line) for o in parsed if not o.is_sweep_override()]
    seeds = _seeds(composer, swept.pop("seed", None), fixed, problems)
    factors: Factors = {
        key: {_level([f"{key}={value}"]): [f"{key}={value}"] for value in values}
        for key, values in swept.items()
        if values
    }
    problems += [f"{key}: two of its values have one name" for key in factors if len(factors[key]) < len(swept[key])]
    rest = [text for text in fixed if key_of(text) != "seed"]
    try:
        plan = expand(_study(name, rest, factors, seeds), composer, clipping=bool(CLIP_KEYS & swept.keys()))
    except RequestError as error:
        problems += error.problems
    if problems:
        raise RequestError(problems)
    return plan


def _values(override: Override, problems: list[str]) -> list[str]:
    shuffled = getattr(override.value(), "shuffle", False)  # Hydra would list a range without end to shuffle it
    try:
        values = [] if shuffled else [str(value) for value in islice(override.sweep_string_iterator(), MOST_VALUES + 1)]
    except (HydraException, ValueError, ArithmeticError):
        values = []
    if not 0 < len(set(values)) == len(values) <= MOST_VALUES:
        problems.append(
            f"{schema.show(override.input_line)} cannot be swept: write up to {MOST_VALUES} different values, as a"
            " comma list, choice(...) or range(...)"
        )
        return []
    return values


def _seeds(composer: Composer, swept: list[str] | None, fixed: list[str], problems: list[str]) -> list[int]:
    """The seeds of a sweep: those listed, else the one that the overrides or conf/ give."""
    if not swept:
        return [composer.compose([text for text in fixed if key_of(text) == "seed"]).seed]
    if not all(value.isdecimal() for value in swept) or len(set(swept)) < len(swept):
        problems.append(f"seed={','.join(swept)} is not allowed: seeds are different whole numbers >= 0")
        return [0]
    return [int(value) for value in swept]


def _level(overrides: Sequence[str]) -> str:
    """Overrides as the name of a level: short, one word without a slash, for slashes join levels to variants.

    Where that leaves something out, folders of a long path or the last of many overrides, four digits of a hash keep
    names apart that would be one.
    """
    said = [text if len(text) <= LONG_VALUE else re.sub(r"[^=,{}:\[\]]*/", "", text) for text in overrides]
    short = [text for index, text in enumerate(said) if len(",".join(said[: index + 1])) <= MOST_LABEL]
    short = short or [text[:MOST_LABEL] for text in said[:1]]
    more = [f"+{len(said) - len(short)}"] if len(short) < len(said) else []
    name, whole = ",".join([*short, *more]), ",".join(overrides)
    mark = "" if name == whole else f"~{hashlib.sha256(whole.encode()).hexdigest()[:4]}"
    return re.sub(r"[\s/]+", "_", name + mark) or "defaults"


def _study(name: str, overrides: list[str], factors: Factors, seeds: list[int]) -> Study:
    if name in available():
        raise RequestError(f"--name {name} is a study of experiments/: choose another name")
    factors = factors or {"run": {_level([]): []}}
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
            primary_metric="eval/accuracy_expected",
            figures=FIGURES,
        )
    except ValidationError as error:
        raise RequestError(schema.sentences(Study, error)) from error
