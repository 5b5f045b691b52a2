"""`grpolab import`, `export` and `lint --from`: what is printed, and one sentence where a file cannot be used."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from grpolab.cli import main

PYTHON = """
from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(output_dir="x", loss_type="cispo", report_to=None, epsilon_high=float("inf"), num_iterations=2)
"""


def written(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "loss_type: cispo\nepsilon_high: .inf\nnum_iterations: 2\noutput_dir: x\nmodel_name_or_path: null"),
        ("a.json", '{"loss_type": "cispo", "epsilon_high": Infinity, "num_iterations": 2}'),
        ("a.py", PYTHON),
    ],
)
def test_trl_configs_are_read_from_every_format(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import", "--from", "trl", written(tmp_path, name, text)]) == 0
    printed = capsys.readouterr()
    lines = printed.out.split()
    assert lines[0] == "dialect=trl"
    assert {"kernel=cispo", "epsilon_high=.inf", "num_iterations=2", "prompts_per_step=1"} <= set(lines)
    assert "not carried: num_train_epochs=3: set rollout_steps" in printed.err
    assert "default taken: those of TRL 1.16, the newest" in printed.err
    assert main(["export", "--to", "trl", *lines]) == 0
    assert "loss_type='cispo'" in capsys.readouterr().out


WRONG = [
    ("trl", "a.ini", "", "the format of *.ini is unknown"),
    ("trl", "a.toml", "a = [", "is no TOML"),
    ("trl", "a.yaml", "a: [1", "is no YAML: line 1 cannot be read"),
    ("trl", "a.yaml", "learning_rate: 1e-6", "holds no GRPOConfig: no key tells it from another trainer's"),
    ("trl", "a.json", "{", "is no JSON"),
    (
        "trl",
        "a.yaml",
        "{num_iterations: 1, scale_rewards: true, epsilon: high}",
        "TRL: epsilon=high is not allowed: it must be a number",
    ),
    (
        "trl",
        "a.yaml",
        "{num_iterations: 1, scale_rewards: [group]}",
        "scale_rewards=['group'] is not allowed: it must be a word",
    ),
    (
        "trl",
        "a.yaml",
        "{num_iterations: 0, num_generations: 2}",
        "num_iterations=0 is not allowed: it must be a whole number >= 1",
    ),
    ("trl", "a.yaml", "{num_iterations: 1, epsilon_high: 1, loss_type: ppo}", "loss_type=ppo: TRL has grpo"),
    ("trl", "a.yaml", "{steps_per_generation: 2, generation_batch_size: 16}", "set one"),
    ("trl", "a.yaml", "{generation_batch_size: 12, num_generations: 8}", "must divide generation_batch_size=12"),
    ("verl", "a.txt", "a='b", "a quotation mark is not closed"),
    ("verl", "a.txt", "actor_rollout_ref.actor.optim.lr=fast", "optim.lr=fast is not allowed: it must be a number"),
    ("verl", "a.txt", "algorithm.adv_estimator=grpo_passk actor_rollout_ref.rollout.n=1", "needs two of a group"),
]


@pytest.mark.parametrize(("peer", "name", "text", "says"), WRONG)
def test_a_file_that_cannot_be_used_is_one_sentence(
    peer: str, name: str, text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, name, text)
    assert main(["import", "--from", peer, file]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert all(line.startswith("grpolab: ") for line in printed.err.splitlines())
    assert main(["lint", "--from", peer, file]) == 2


def test_trls_defaults_cannot_clip_and_its_cispo_scales_gradients(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lint", "--from", "trl", "--json", written(tmp_path, "a.py", "GRPOConfig()")]) == 0
    (finding,) = json.loads(capsys.readouterr().out)
    assert (finding["rule"], finding["severity"]) == ("clip-cannot-bind", "note")  # as for everybody
    assert "= 1 * 1 / 1 = 1; every ratio is 1" in finding["sentence"]
    assert main(["lint", "--from", "trl", written(tmp_path, "a.py", "GRPOConfig(loss_type='cispo')")]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("warning cap-scales-gradient: epsilon_high=0.2 is the cap itself")
    assert "scaled by 0.2" in line


def test_what_is_no_file_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "folder.yaml").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    for name in ("folder.yaml", "pipe.yaml", "none.yaml"):
        assert main(["import", "--from", "trl", str(tmp_path / name)]) == 2
        assert f"{name} cannot be read: " in capsys.readouterr().err
    assert main(["lint", "--from", "trl"]) == 2
    assert "needs one FILE" in capsys.readouterr().err


def test_a_config_that_names_a_model_of_the_hub_is_read_without_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda path, *_, **__: asked.append(path))
    file = written(
        tmp_path, "config.yaml", "learning_rate: 1.0e-6\nnum_generations: 8\nmodel_name_or_path: no/such-model"
    )
    assert main(["lint", "--from", "trl", file]) == 0
    assert main(["import", "--from", "trl", file]) == 0
    assert main(["export", "--to", "trl", "model=pretrained", "model.path=no/such-model"]) == 0
    assert asked == []
