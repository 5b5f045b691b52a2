"""Composition: every group option is valid, overrides win in the right order, and all that is wrong is said at once."""

import math

import pytest
from omegaconf import OmegaConf

from grpolab.cli.help import help_text, list_names
from grpolab.errors import RequestError
from grpolab.identity import dotted
from grpolab.settings.resolved import resolve_run
from grpolab.sweep.compose import Composer, compose

NEEDED = {
    "task=jsonl": ["task.train_file=a.jsonl", "task.evaluation_file=b.jsonl"],
    "task=reasoning_gym": ["task.dataset=letter_counting"],
    "task=dataset": ["task.dataset=some/data"],
    "task=custom": ["task.path=package.module:Task"],
    "model=pretrained": ["model.path=some/folder"],
}
OPTIONS = [f"{group}={option}" for group, options in Composer().groups.items() for option in options]


def problems_of(*overrides: str) -> list[str]:
    with pytest.raises(RequestError) as caught:
        compose(overrides)
    return caught.value.problems


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_every_group_option_composes_to_the_values_of_its_file(option):
    group, _, name = option.partition("=")
    composed = dict(dotted(compose([option, *NEEDED.get(option, [])]).model_dump()))
    file = Composer().conf / group / f"{name}.yaml"
    if not file.exists():
        assert name == "null", "no preset"
        return
    written = OmegaConf.to_container(OmegaConf.load(file))
    written.pop("defaults", None)
    if "@package _global_" not in file.read_text():
        written = {group: written}
    expected = {key: value for key, value in dotted(written) if value not in ("???", "auto")}
    assert {key: composed[key] for key in expected} == expected


def test_every_group_with_files_is_in_the_defaults_list():
    composer = Composer()
    folders = {folder.name for folder in composer.conf.iterdir() if folder.is_dir()}
    assert folders - {"tuned"} == composer.groups.keys()  # tuned values are a study's, arm by arm


SEQUENCE_RANGE = {"epsilon": 0.1, "epsilon_high": 4e-4, "importance_sampling_level": "sequence"}
COMPOSED = [
    # An explicit key wins over a preset in either order; a task brings its regime, and a later override wins.
    ("loss_type=gspo epsilon=0.1", SEQUENCE_RANGE),
    ("epsilon=0.1 loss_type=gspo", SEQUENCE_RANGE),
    ("task=sorting", {"max_completion_length": 11}),
    ("task=addition", {"max_completion_length": 4}),
    ("task=sorting rollout_steps=3 rollout_steps=4", {"rollout_steps": 4}),
    ("task=sorting task=addition", {"task.name": "addition"}),
    # Infinity as in YAML and as in Hydra; the environment; open mappings; what is switched off.
    *((f"epsilon_high={text}", {"epsilon_high": math.inf}) for text in (".inf", "inf", "+.inf")),
    ("machine.results=${oc.env:SCRATCH}/x", {"machine.results": "/scratch/me/x"}),
    ("reward.weights.format=0.5", {"reward.weights.correct": 1.0, "reward.weights.format": 0.5}),
    ("launcher=ray machine.launcher=null", {"machine.launcher": None}),
]


@pytest.mark.parametrize(("overrides", "expected"), COMPOSED)
def test_overrides_compose_to(overrides, expected, monkeypatch):
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    composed = dict(dotted(compose(overrides.split()).model_dump()))
    assert {key: composed[key] for key in expected} == expected


def test_whole_numbers_and_decimals_are_one_setting():
    assert resolve_run(compose(["delta=2"])).signature == resolve_run(compose(["delta=2.0"])).signature


def test_all_that_is_wrong_is_said_at_once():
    found = problems_of("kernel=clippd", "epsilon=-1", "foo=1", "task=addtion", "delta", "num_generations=1")
    assert len(found) == 6
    text = "\n".join(found)
    for part in ("clippd", "did you mean clipped?", "epsilon=-1", ">= 0", "foo is unknown", "task=addtion", "'delta'"):
        assert part in text
    # The rule across fields is checked although single fields are wrong.
    assert "num_generations=1 leaves every group-normalised advantage undefined" in text


def test_a_rule_across_fields_is_not_applied_to_a_value_that_is_wrong_already():
    assert problems_of("prompts_per_step=x", "num_minibatches=3") == [
        "prompts_per_step=x is not allowed: it must be a whole number >= 1"
    ]


def test_keys_of_another_task_are_refused_with_those_of_this_one():
    (problem,) = problems_of("task=sorting", "task.digits=3")
    assert "task.digits is unknown" in problem
    assert "task.length" in problem


def test_help_is_two_screens_with_the_usual_keys_first_and_every_name():
    lines = help_text().splitlines()
    assert len(lines) < 92
    assert max(map(len, lines)) <= 120
    at = {name: next(n for n, line in enumerate(lines) if line.startswith(name)) for name in ("The us", "Gr", "All o")}
    assert at["The us"] < at["Gr"] < at["All o"]
    assert "  epsilon=0.2" in lines[at["The us"] + 13]
    for group in Composer().groups:
        assert any(line.startswith(f"  {group} ") for line in lines[at["Gr"] : at["All o"]]), group
    named = {word.partition("=")[0] for line in lines for word in line.split()}
    assert set(list_names()) <= named
    assert "trl/gspo" not in "".join(lines)
    assert all(f"dialect={name} " in help_text(["dialect"]) for name in ("trl", "trl/gspo", "verl/dro"))
    with pytest.raises(RequestError, match="dialects is unknown"):
        help_text(["dialects"])


def test_help_all_names_every_group_option_and_every_key():
    page = help_text(["all"])
    for option in OPTIONS:
        assert f"  {option} " in page
    for key in ("epsilon_high", "warm_start.target_accuracy", "task.max_fillers", "model.path", "machine.tracking_uri"):
        assert f"  {key} " in page
    assert "token | sequence | sequence_token | segment; default token" in page
    assert "number >= 0 or null; default null" in page
    assert "Clip range below 1" in page
