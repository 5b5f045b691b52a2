"""The runs that a command line asks for, as a study: one, or with `train -m` every combination of several values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from pydantic import ValidationError

from grpolab.errors import RequestError
from grpolab.paths import MOST_LETTERS, STUDY_NAME
from grpolab.settings.run import RunSettings
from grpolab.study_names import available
from grpolab.sweep.compose import Composer, key_of
from grpolab.sweep.fields import Factors
from grpolab.sweep.plan import Cell, Plan, expand
from grpolab.sweep.schema import sentences, show
from grpolab.sweep.study import Study

MOST_LABEL, LONG_VALUE = 60, 40  # most characters of a level's name, and of an override that is not shortened in it
MOST_VALUES = 1000  # of one key: range(0,inf) has no end
CLIP_KEYS = {"epsilon", "epsilon_high", "delta", "importance_sampling_level"}


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


def expand_multirun(overrides: Sequence[str], name: str = "adhoc") -> Plan:
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
