"""verl's options of which samples train, as our settings: filtered groups, long answers, what is rejected.

Each function returns our settings, none if the option is off or has no counterpart here, and what is to be said.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

from grpolab.readers import selection
from grpolab.readers import verl_keys as keys
from grpolab.readers.given import Options
from grpolab.readers.selection import BATCHES
from grpolab.readers.verl_keys import BOUNDS, FILTER, OVERLONG, RULES
from grpolab.settings.objective import SamplerRejection

Translated: TypeAlias = tuple[Options, list[str]]
# Metric of `filter_groups` -> ours; `score` is what the reward function returned, before the penalty for length.
METRICS = {"acc": "correct", "score": "correct", "seq_reward": "reward", "seq_final_reward": "reward"}
# Rule of `rollout_rs` -> our level: it bounds sampler / trainer, or half the squared log of that.
BY_RATIO = {"token_k1": "token", "seq_sum_k1": "sequence", "seq_mean_k1": "geometric"}
BY_SQUARE = {"token_k2": "token", "seq_max_k2": "worst"}
DIGITS = 12  # to which a bound is rounded: 1 / 1.25 is .8 then


def filter_groups(o: Mapping[str, Any]) -> Translated:
    """Translate DAPO's filter of groups. Its batches have gen_batch_size prompts, ours prompts_per_step."""
    metric, prompts, size = o[f"{FILTER}metric"], o[keys.PROMPTS], o[keys.GENERATED]
    if not o[f"{FILTER}enable"]:
        return {}, []
    if metric not in METRICS:
        return {}, [f"{FILTER}metric={metric}: here it is one of {', '.join(METRICS)}; no group is left out"]
    if metric == "seq_final_reward" and o[keys.KL_REWARD]:
        return {}, [f"{FILTER}metric={metric}: no two of a group are equal with the KL in it; no group is left out"]
    most = int(min(max(0, o[f"{FILTER}max_num_gen_batches"]), selection.NO_LIMIT))
    size = size if isinstance(size, int) and size > 0 else prompts
    counts = "" if size == prompts else f"; {BATCHES} counts batches of {prompts} prompts, not of {size}"
    said = f"{FILTER}max_num_gen_batches={most}: an error ends verl then, here what differs trains{counts}"
    rule = {selection.METRIC: METRICS[metric], BATCHES: math.ceil(most * size / prompts)}
    return rule, [said] if most else []


def overlong(o: Mapping[str, Any]) -> Translated:
    """Translate the penalty for long answers, which the reward manager `dapo` alone has, into readers' words."""
    if not o[f"{OVERLONG}enable"]:
        return {}, []
    if (manager := o[keys.MANAGER]) != "dapo":
        return {}, [f"{OVERLONG}enable=True: {keys.MANAGER}={manager} does not read it, dapo does"]
    words = (o[f"{OVERLONG}len"], o[f"{OVERLONG}penalty_factor"], o[keys.LONGEST])
    if None in words[:2]:
        return {}, [f"{OVERLONG}enable=True: the file alone does not say len and penalty_factor; no answer is punished"]
    return dict(zip(selection.OVERLONG, words, strict=True)), []


def rejection(o: Mapping[str, Any]) -> Translated:
    """Translate `rollout_rs` if all its rules are bounds of a ratio; verl's k1 bounds the reciprocal of ours."""
    if not (written := o[RULES]):
        return {}, []
    if not o[keys.LOG_PROBS]:
        return {}, [f"{RULES}={written}: with {keys.LOG_PROBS}=False verl has nothing to compare; nothing is rejected"]
    names, limits = dict.fromkeys(re.findall(r"\w+", str(written))), str(o[BOUNDS]).split(",")
    bounds = dict[str, list[float]]()
    try:
        for rule in zip(names, limits * (len(names) if len(limits) == 1 else 1), strict=True):
            level, low, high = _bound(*rule)
            least, most = bounds.get(level, (0.0, math.inf))
            bounds[level] = [max(least, round(low, DIGITS)), min(most, round(high, DIGITS))]
        policy = "current" if o[keys.MODE] == "bypass_mode" else "old"
        carried = SamplerRejection.model_validate({"policy": policy, "bounds": bounds, "m2_budget": None})
    except (ValueError, ArithmeticError, KeyError):
        rules = ", ".join((*BY_RATIO, *BY_SQUARE))
        return {}, [f"{RULES}={written} with {BOUNDS}={o[BOUNDS]}: here each is one of {rules}; nothing is rejected"]
    said = f"{RULES}={written}: verl takes rejected tokens out of the average, too; here they count in its denominator"
    return {"sampler_rejection": carried.model_dump()}, [said]


def _bound(name: str, limit: str) -> tuple[str, float, float]:
    """Return our level and its bounds of trainer / sampler. Raises KeyError or ValueError for a rule without them."""
    if name in BY_SQUARE:
        most = math.exp(math.sqrt(2 * float(limit)))
        return BY_SQUARE[name], 1 / most, most
    low, _, high = limit.rpartition("_")
    return BY_RATIO[name], 1 / float(high), 1 / float(low) if low else float(high)


# Beginning of keys -> what translates them.
PARTS = {FILTER: filter_groups, OVERLONG: overlong, RULES: rejection}


def translate(o: Mapping[str, Any]) -> Options:
    """Return what all of them set, with the words of readers."""
    return {name: value for part in PARTS.values() for name, value in part(o)[0].items()}


def _with_sizes(o: Mapping[str, Any], values: Options) -> Options:
    return {"max_completion_length": o["data.max_response_length"], "num_generations": o[keys.GROUP], **values}


def explain(o: Mapping[str, Any]) -> list[str]:
    """Return what is to be said of them."""
    said = [said for part in PARTS.values() for said in part(o)[1]]
    return [*said, *selection.explain(_with_sizes(o, translate(o)))]


def kind_of(name: str, o: Mapping[str, Any], named: Options) -> str:
    """Return whether one of their keys is carried, not carried, or has no effect, because its part is off."""
    part = next(part for part in PARTS if name.startswith(part))
    values, said = PARTS[part](o)
    if selection.settle(_with_sizes(o, values)).keys() - _with_sizes(o, {}).keys():
        return "carried"
    return "not carried" if said or values or named.get(f"{part}enable") is True else "no effect"


def reads_filter(program: str, version: int) -> bool:
    """Return True if a program filters groups: DAPO's trainers, main_ppo by its version; or if none is known."""
    in_ppo = "main_ppo" in program and version >= keys.FILTER_IN_PPO
    return in_ppo or not program or any(recipe in program for recipe in ("dapo", "entropy"))
