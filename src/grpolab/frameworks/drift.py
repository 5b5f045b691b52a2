"""Compare the frameworks' defaults in `options.py` with newer sources: installed packages, or checkouts in a folder.

A source is parsed, never imported: fields of config classes, parameters, attributes that `__init__` sets, flags of a
command line, or a YAML file. Where a default is computed, nothing is said.
"""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from grpolab.frameworks.options import OPENRLHF, OPTIONS, PRIME_RL_BANDS
from grpolab.identity import dotted

COMPUTED = object()  # a default that the source does not state
Defaults = Mapping[str, Any]

_SKYRL = "skyrl/train/config/config.py"
_VERL = "verl/trainer/config"
_PRIME = "src/prime_rl/configs/trainer.py"
_KL = {"kl_init_coef": "algo.kl.init_coef", "kl_estimator": "algo.kl.estimator", "kl_use_loss": "algo.kl.use_loss"}
_CORRECTION = [name for name in OPENRLHF if name.startswith("is_correction")]
# Framework -> where its defaults are: a path in its repository or package; a class, a function as `Class.__init__`, or
# nothing for flags and YAML; and the names there of our options (all options, if there is no mapping).
PLACES: dict[str, list[tuple[str, str, Mapping[str, str] | None]]] = {
    "trl": [("trl/trainer/grpo_config.py", "GRPOConfig", None)],
    "verl": [
        (f"{_VERL}/actor/actor.yaml", "", None),
        (f"{_VERL}/algorithm/rollout_correction.yaml", "", {
            f"rollout_correction.{name}": name for name in ("rollout_is", "rollout_is_threshold", "loss_type")
        }),
    ],
    "roll": [
        ("roll/configs/base_config.py", "PPOConfig", None),
        ("roll/configs/base_config.py", "TrainInferISWeightConfig", {
            f"is_weight.{name}": name for name in ("enabled", "weight_type", "upper_bound")
        }),
        ("roll/pipeline/rlvr/rlvr_config.py", "RLVRConfig", None),
        ("roll/pipeline/agentic/agentic_config.py", "AgenticConfig", {"ratio_type": "ratio_type"}),
    ],
    "openrlhf": [("openrlhf/cli/train_ppo_ray.py", "", _KL | {
        "clip_eps_low": "actor.eps_clip",
        **{name: f"actor.{name}" for name in ("policy_loss_type", "dual_clip", "loss_agg_mode", "entropy_coef")},
        **{name: f"algo.advantage.{name}" for name in _CORRECTION},
    })],
    "slime": [("slime/utils/arguments.py", "", None)],
    "areal": [("areal/api/cli_args.py", "PPOActorConfig", None)],
    "nemo_rl": [("nemo_rl/algorithms/loss/loss_functions.py", "ClippedPGLossConfig", None)],
    "open_instruct": [("open_instruct/grpo_utils.py", "GRPOExperimentConfig", None)],
    "prime_rl": [
        (_PRIME, "TrainerConfig", {"type": "loss"}),
        (_PRIME, "IPOLossConfig", {name: name for name in ("eps", "max_importance_ratio", "adv_tau", "kl_tau")}),
        *((_PRIME, f"{kind}LossConfig", {f"{kind.lower()}.{end}": end for end in ("ratio_low", "ratio_high")})
          for kind in ("IcePop", "PPO", "CISPO")),
    ],
    "skyrl": [
        (_SKYRL, "AlgorithmConfig", None),
        *((_SKYRL, name, {f"{part}.{key}": key for key in OPTIONS["skyrl"][0][part]}) for name, part in (
            ("SAPOConfig", "sapo"), ("ClipCovConfig", "clip_cov"), ("KLCovConfig", "kl_cov"),
            ("CISPOConfig", "cispo"), ("DPPOConfig", "dppo"), ("OffPolicyCorrectionConfig", "off_policy_correction"),
        )),
    ],
    "torchtune": [("torchtune/dev/grpo/loss.py", "GRPOLoss.__init__", None)],
    "deepspeed_chat": [("dschat/rlhf/ppo_trainer.py", "DeepSpeedPPOTrainer", None)],
}  # fmt: skip
OF_OLDER = {"kl_tau"}  # options that a newer source need not have


@dataclass(frozen=True)
class Drift:
    """A framework's source, and the keys of it that were compared with ours."""

    framework: str
    found: str  # version or commit, and where
    keys: int
    moved: list[tuple[str, Any, Any]]  # key, our default, the source's


def compare(folder: Path | None) -> Iterator[Drift]:
    """Yield what moved of each framework whose source is in the folder or, without one, is an installed package."""
    for framework, places in PLACES.items():
        if (root := find_source(framework, folder)) is None:
            continue
        ours, keys, moved = our_defaults(framework), 0, []
        for path, owner, names in places:
            with suppress(OSError, SyntaxError, ValueError, yaml.YAMLError):
                theirs = read_defaults((root / path).read_text(), owner)
                for option, name in (names or {option: option for option in ours if option in theirs}).items():
                    value = theirs.get(name, "not there")
                    if value is COMPUTED or (value == "not there" and option in OF_OLDER):
                        continue
                    keys += 1
                    if not equal(ours[option], value):
                        moved.append((option, ours[option], value))
        yield Drift(framework, f"{version_of(framework, root, places[0][0])}, {root}", keys, moved)


def our_defaults(framework: str) -> dict[str, Any]:
    """Return a framework's options with the defaults of its preset, dotted."""
    defaults = dict(dotted(dict(OPTIONS[framework][0])))
    if framework == "prime_rl":  # whose losses have a range each
        for kind, (_, low, high) in PRIME_RL_BANDS.items():
            defaults |= {f"{kind}.ratio_low": low, f"{kind}.ratio_high": high}
    return defaults


def find_source(framework: str, folder: Path | None) -> Path | None:
    """Return the folder above a framework's first place: in `folder` at most three levels down, or of its package."""
    path = PLACES[framework][0][0]
    if folder is not None:
        found = (file for depth in range(5) for file in sorted(folder.glob(f"{'*/' * depth}{path}")))
        return next((file.parents[path.count("/")] for file in found), None)
    with suppress(ImportError, ValueError):
        spec = importlib.util.find_spec(path.partition("/")[0].replace("src", "prime_rl"))
        for place in (spec and spec.submodule_search_locations) or ():
            if (Path(place).parent / path).is_file():
                return Path(place).parent
    return None


def version_of(framework: str, root: Path, path: str) -> str:
    """Return the version of the package there, else the checkout's commit and its date, if the file is git's."""
    for package in importlib.metadata.distributions(path=[str(root)]):
        if package.metadata["Name"].replace("-", "_") == framework:
            return f"version {package.version}"
    git, told = ["git", "-C", str(root)], ""
    with suppress(OSError):
        if not subprocess.run([*git, "ls-files", "--error-unmatch", path], capture_output=True, check=False).returncode:
            log = [*git, "log", "-1", "--format=commit %h of %cs"]
            told = subprocess.run(log, capture_output=True, text=True, check=False).stdout.strip()
    return told or "version not known"


def read_defaults(text: str, owner: str) -> dict[str, Any]:
    """Return the defaults that a file states: of a class or function in it, else of its flags, or of a YAML file."""
    if not owner and "add_argument" not in text:
        return dict(dotted(yaml.safe_load(text)))
    tree = ast.parse(text)
    if not owner:
        return dict(flags_of(tree))
    name, _, function = owner.partition(".")
    (defined,) = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)
    if function:
        (method,) = (node for node in defined.body if isinstance(node, ast.FunctionDef) and node.name == function)
        given = method.args.args[len(method.args.args) - len(method.args.defaults) :]
        return {each.arg: stated(value) for each, value in zip(given, method.args.defaults, strict=True)}
    fields = [(node.target, node.value) for node in defined.body if isinstance(node, ast.AnnAssign)]
    found = {field.id: stated(value) for field, value in fields if isinstance(field, ast.Name) and value is not None}
    for node in ast.walk(defined):
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Attribute):
            found.setdefault(target.attr, stated(node.value))
    return found


def flags_of(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Yield each flag of a command line, as `a_b` for --a-b, with its default."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            names = [word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
            words = {word.arg: word.value for word in node.keywords}
            action = words.get("action")
            is_switch = isinstance(action, ast.Constant) and action.value == "store_true"
            for name in names:
                default = stated(words["default"]) if "default" in words else (False if is_switch else None)
                yield name.lstrip("-").replace("-", "_"), default


def stated(node: ast.expr) -> Any:
    """Return the value of an expression: a constant, a field's default, a member of an enum, or a config's kind."""
    with suppress(ValueError, TypeError):
        return ast.literal_eval(node)
    if isinstance(node, ast.Attribute):
        return node.attr  # GRPOLossType.dapo
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        words = {str(word.arg): word.value for word in node.keywords}
        if node.func.id in ("field", "Field"):
            if given := [words["default"]] if "default" in words else node.args:
                return stated(given[0])
            factory = words.get("default_factory")
            return stated(factory.body) if isinstance(factory, ast.Lambda) else COMPUTED
        if node.func.id.endswith("LossConfig"):
            return node.func.id.removesuffix("LossConfig").lower()  # IPOLossConfig()
    return COMPUTED


def equal(ours: Any, theirs: Any) -> bool:
    """Return True if both are one value; a list is a tuple."""
    return list(ours) == list(theirs) if isinstance(ours, tuple) and isinstance(theirs, list) else bool(ours == theirs)


def describe(compared: list[Drift], read: Mapping[str, str]) -> str:
    """Return the table of what moved, and a line for each source; `read`: what our presets are of."""
    if not compared:
        return (
            "no source of a framework can be read here: install one, or give a folder with a checkout"
            " (grpolab dialects --drift FOLDER)"
        )
    rows = [["framework", "preset of", "key", "preset", "source"]]
    rows += [[one.framework, read[one.framework], *map(str, row)] for one in compared for row in one.moved]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines = [f"{one.framework}: {one.keys} defaults read, {len(one.moved)} moved ({one.found})" for one in compared]
    return "\n".join([*(table if len(rows) > 1 else []), *lines])
