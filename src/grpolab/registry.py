"""The names that settings choose from, each with the import path of its function.

So settings are checked without importing torch; `resolve` imports a function when a run begins. Kernel, aggregation and
framework may also be an import path, of a user's own code or of another package's.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from grpolab.errors import RequestError

# Importance ratio (grpo/ratios.py): how far the policy has moved, per token or per sequence.
RATIOS = {level: f"grpolab.grpo.ratios:{level}_ratio" for level in ("token", "sequence", "sequence_token", "segment")}

POSITIVE, ANY_SIGN = (0.0, float("inf")), (float("-inf"), float("inf"))


class Surrogate(NamedTuple):
    """A policy loss, chosen by the setting `kernel`: its function, and what settings must know about it."""

    function: str
    options: Mapping[str, tuple[float, float]] = {}  # its own numbers, `kernel_options.<kernel>`: (more than, at most)
    clips: bool = True  # it reads the clip range, epsilon and epsilon_high
    bounds_the_ratio: bool = False  # beyond its range of the ratio, or of the log ratio, the gradient is 0
    policy_gradient_at_one: bool = False  # at ratio 1 its gradient is that of -A log pi
    draws_tokens: bool = False  # it needs uniform numbers
    whole_minibatch: bool = False  # it compares the tokens of a minibatch with each other, and needs it in one piece
    compares_groups: bool = False  # it compares the completions of a prompt, and needs all of them in a minibatch


class Functions(dict[str, str]):
    """Names with the import paths of what they stand for; any other import path stands for itself."""

    def __missing__(self, path: str) -> str:
        if ":" not in path:
            raise KeyError(path)
        return path


class Surrogates(dict[str, Surrogate]):
    """Names with surrogates; an import path stands for the Surrogate that it leads to. Raises RequestError."""

    def __missing__(self, path: str) -> Surrogate:
        if ":" not in path:
            raise KeyError(path)
        return _load_surrogate(path)


# Surrogate (grpo/surrogates.py, frameworks/kernels.py): the loss of a token or sequence before averaging.
COMMON, MORE = "grpolab.grpo.surrogates", "grpolab.frameworks.kernels"
OF_2026 = "grpolab.frameworks.kernels_2026"
_DRIFT = dict.fromkeys(("advantage_weight", "drift_weight"), POSITIVE)
_SAPO = dict.fromkeys(("temperature_positive", "temperature_negative"), POSITIVE)
_VESPO = dict.fromkeys(("k_positive", "lambda_positive", "k_negative", "lambda_negative"), POSITIVE)
_CLIP_COV = {"share": (0.0, 1.0), "lower": ANY_SIGN, "upper": ANY_SIGN}
_FIPO = {"half_life": POSITIVE, "least": (0.0, 1.0), "most": POSITIVE, "safety": POSITIVE}
_BAPO = dict.fromkeys(("low_start", "low_end", "low_step", "high_start", "high_end", "high_step", "target"), POSITIVE)
_KL_COV = {"share": (0.0, 1.0), "coefficient": POSITIVE}
SURROGATES = Surrogates(
    clipped=Surrogate(f"{COMMON}:clipped", bounds_the_ratio=True, policy_gradient_at_one=True),
    ratio=Surrogate(f"{COMMON}:ratio", clips=False, policy_gradient_at_one=True),
    policy_gradient=Surrogate(f"{COMMON}:policy_gradient", clips=False, policy_gradient_at_one=True),
    policy_gradient_masked=Surrogate(
        f"{COMMON}:policy_gradient_masked", bounds_the_ratio=True, policy_gradient_at_one=True
    ),
    cispo=Surrogate(f"{COMMON}:cispo", policy_gradient_at_one=True),
    cispo_masked=Surrogate(f"{MORE}:cispo_masked", bounds_the_ratio=True, policy_gradient_at_one=True),
    band=Surrogate(f"{MORE}:band", bounds_the_ratio=True),
    aspo=Surrogate(f"{MORE}:aspo", {"cap": POSITIVE}),
    topr=Surrogate(f"{MORE}:topr", {"positive_weight": POSITIVE, "negative_weight": POSITIVE}, clips=False),
    vespo=Surrogate(f"{MORE}:vespo", _VESPO, clips=False, policy_gradient_at_one=True),
    dro=Surrogate(f"{MORE}:dro", {"coefficient": POSITIVE}, clips=False, policy_gradient_at_one=True),
    sapo=Surrogate(f"{MORE}:sapo", _SAPO, clips=False, policy_gradient_at_one=True),
    gmpo=Surrogate(f"{MORE}:gmpo", bounds_the_ratio=True, policy_gradient_at_one=True),
    clip_cov=Surrogate(f"{MORE}:clip_cov", _CLIP_COV, draws_tokens=True, whole_minibatch=True, bounds_the_ratio=True),
    kl_cov=Surrogate(f"{MORE}:kl_cov", _KL_COV, clips=False, whole_minibatch=True),
    dppo_tv=Surrogate(f"{MORE}:dppo_tv", {"cap": POSITIVE}),
    dppo_kl=Surrogate(f"{MORE}:dppo_kl", {"cap": POSITIVE}),
    dppo_ratio=Surrogate(f"{MORE}:dppo_ratio", _DRIFT),
    ipo=Surrogate(f"{MORE}:ipo", _DRIFT),
    ipo_capped=Surrogate(f"{MORE}:ipo_capped", dict.fromkeys(("advantage_weight", "cap"), POSITIVE)),
    dcpo=Surrogate(f"{OF_2026}:dcpo", {"cap": POSITIVE}, policy_gradient_at_one=True),
    fipo=Surrogate(f"{OF_2026}:fipo", _FIPO, bounds_the_ratio=True, policy_gradient_at_one=True),
    oapl=Surrogate(f"{OF_2026}:oapl", {"scale": POSITIVE}, clips=False),
    real=Surrogate(
        f"{OF_2026}:real", {"temperature": POSITIVE}, clips=False, whole_minibatch=True, compares_groups=True
    ),
    bapo=Surrogate(f"{OF_2026}:bapo", _BAPO, clips=False, whole_minibatch=True, policy_gradient_at_one=True),
    icepop=Surrogate(f"{MORE}:icepop", bounds_the_ratio=True, policy_gradient_at_one=True),
)


def last_name(path: str) -> str:
    """Return the name behind the colon of an import path; any other name as it is."""
    return path.rpartition(":")[2]


@functools.cache
def _load_surrogate(path: str) -> Surrogate:
    surrogate = resolve(LOAD_OBJECT)("kernel", path)
    if not (isinstance(surrogate, Surrogate) and ":" in str(surrogate.function)):
        must = "it must be a grpolab.registry.Surrogate, with its function's import path"
        raise RequestError(f"kernel={path} is a {type(surrogate).__name__}: {must}")
    if last_name(path) in SURROGATES:
        raise RequestError(f"kernel={path} has the name of kernel={last_name(path)} of GRPO Lab: rename it")
    return surrogate


def _places(module: str, *names: str, **renamed: str) -> dict[str, str]:
    """Return names with their functions' import paths in a module; `renamed`: name -> the function's other name."""
    functions = dict(zip(names, names, strict=True)) | renamed
    return {name: f"{module}:{function}" for name, function in functions.items()}


# Aggregation (grpo/aggregation.py): how per-token losses become one number; the denominator is in the name.
AGGREGATIONS = Functions(
    _places(
        "grpolab.grpo.aggregation",
        *("sequence_mean", "sequence_mean_nonempty", "sequence_sum", "sequence_sum_nonempty"),
        *("token_mean_rollout", "token_mean_minibatch", "token_mean_microbatch"),
        *("token_sum", "token_sum_constant", "token_sum_length", "prompt_mean"),
    )
)

# KL estimator (grpo/kl.py), from the log ratio of the reference to the policy.
KL_ESTIMATORS = _places("grpolab.grpo.kl", "k1", "k2", "k3", abs="absolute")

# Advantage estimator: the baseline that is subtracted from rewards. Scale: what the difference is divided by.
BASELINES, MORE_BASELINES = "grpolab.grpo.baselines", "grpolab.frameworks.baselines"
ADVANTAGES = {
    **_places(BASELINES, "group_mean", "leave_one_out", none="no_baseline"),
    **_places(MORE_BASELINES, "batch_mean", "length_weighted", "second_best", "given", "log_mean_exp", "plus_minus"),
}
SCALES = {
    **_places(BASELINES, none="unscaled", group="group_std", batch="batch_std"),
    **_places(MORE_BASELINES, "nonzero_share", group_population="group_population_std"),
    **_places(MORE_BASELINES, leave_one_out="leave_one_out_std", group_mean="group_mean_reward"),
}
# Penalties of length; what advantage_history=smooth keeps of a prompt's rewards, and what it makes of advantages.
LENGTH_PENALTIES = _places("grpolab.frameworks.rewards", "linear", "group_range", "pass_rate")
SMOOTHING = _places("grpolab.frameworks.rewards", "with_visit", "smoothed")
# Baselines that compare a completion with the others of its group: a group of one has none.
GROUP_BASELINES = {"group_mean", "leave_one_out", "length_weighted", "second_best", "log_mean_exp"}


def _class_name(name: str) -> str:
    return name.title().replace("_", "")


# Faults of the training loop (doctor/faults.py), planted by conf/fault/: `zero_gradient` is the class ZeroGradient.
FAULTS = {
    name: f"grpolab.doctor.faults:{_class_name(name)}"
    for name in (
        *("aliased_old_policy", "resynchronised_old_policy", "recomputed_old_log_probs", "frozen_parameters"),
        *("low_precision_weights", "dropout", "visible_padding", "temperature_mismatch", "mask_mismatch"),
        *("padding_in_clip_metric", "group_of_one", "truncated_from_the_start", "zero_gradient"),
        *("gradient_explosion", "not_finite", "growing_sampler_gap"),
    )
}

# Frameworks (frameworks/): the steps of the loss that differ, the metrics, and replays of the framework's outputs.
_NAMES = "trl verl roll deepspeed_chat openrlhf slime areal nemo_rl open_instruct prime_rl skyrl torchtune"
FRAMEWORKS = Functions({name: f"grpolab.frameworks.{name}:FRAMEWORK" for name in _NAMES.split()})

# Loaded only where a run asks for it: what frameworks log of an update, and the processes of data_parallel.
LOGGED_METRICS = "grpolab.frameworks.framework:logged_metrics"
TRY_STEPS = "grpolab.frameworks.framework:try_steps"  # of the loss, where they are code from elsewhere
ADAPTERS, ADAPTER_PROBLEMS = (f"grpolab.models.lora:{name}" for name in ("add_adapters", "find_problems"))
ROUND_TO_INT8, SHARED_PREFILL = (f"grpolab.models.{name}" for name in ("int8:round_layers", "shared_prefix:prefill"))
ENGINES = {"vllm": "grpolab.models.vllm:Vllm", "continuous": "grpolab.models.continuous:Continuous"}
DATA_PARALLEL = "grpolab.run.parallel:start_processes"
SHARD = "grpolab.models.sharding:shard"
FOLLOW = "grpolab.run.train:follow"  # the work of its processes that are not the first
# The content of files and code that settings name, and a user's own task or reward.
CONTENT_OF = "grpolab.content:content_of"
ENVIRONMENT_READ = "grpolab.content:environment_read"
LOAD_OBJECT = "grpolab.tasks.imports:load_object"
MAJORITY = "grpolab.data.answers:majority"
IN_SANDBOX = "grpolab.data.verifiers:in_sandbox"  # the score of a task of code
KNOWN_RUNS = "grpolab.known_runs:KnownRuns"  # of commands, not of their workers

# Tasks, by the name of their settings; a user's own is named by its import path.
_GENERATED = "addition", "sorting", "filler_sorting", "written_addition", "char_count"
TASKS = {"reasoning_gym": "grpolab.data.reasoning_gym:ReasoningGym"}
TASKS |= _places("grpolab.data.text_tasks", jsonl="Jsonl", dataset="TextDataset")
TASKS |= {name: f"grpolab.tasks.generated:{_class_name(name)}" for name in _GENERATED}


@functools.cache
def resolve(path: str) -> Any:
    """Import the object at `package.module:name`. Raises ImportError or AttributeError."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
