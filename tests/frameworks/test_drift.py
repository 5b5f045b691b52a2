"""`make drift`: what a newer source says differently is named; readers and presets share one table of defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpolab.cli import main
from grpolab.frameworks.drift import PLACES, find_source, our_defaults
from grpolab.frameworks.options import OPTIONS
from grpolab.readers.flat import load_reader
from grpolab.settings.resolved import resolve_run
from grpolab.sweep.compose import Composer

CHECKOUTS = {
    "one/trl/trainer/grpo_config.py": """
class GRPOConfig(Base):
    epsilon: float = field(default=0.3, metadata={"help": "changed"})
    loss_type: str = field(default="dapo")
    delta: float | None = None
    beta: float = computed()
""",
    "two/openrlhf/cli/train_ppo_ray.py": """
parser.add_argument("--actor.eps_clip", type=float, default=0.2)
parser.add_argument("--algo.kl.use_loss", action="store_true")
parser.add_argument("--algo.kl.init_coef", type=float, default=0.02)
""",
    "three/verl/trainer/config/actor/actor.yaml": "clip_ratio: 0.2\npolicy_loss: {loss_mode: gspo, dro_beta: null}\n",
    "four/src/prime_rl/configs/trainer.py": """
class IPOLossConfig(BaseConfig):
    eps: float = Field(0.3, ge=0)
    max_importance_ratio: float = Field(1e4, ge=1)
    adv_tau: float = 1.0

class CISPOLossConfig(BaseConfig):
    ratio_low: Annotated[float, Field(ge=0)] = 0.0
    ratio_high: float = Field(default=6.0, ge=1)

class TrainerConfig(BaseConfig):
    loss: LossConfig = IPOLossConfig()
""",
    "five/torchtune/dev/grpo/loss.py": "class GRPOLoss:\n    def __init__(self, epsilon=0.1, kl_coeff=0.2): 0\n",
    "six/dschat/rlhf/ppo_trainer.py": "class DeepSpeedPPOTrainer():\n    def __init__(self): self.cliprange = 0.3\n",
}
MOVED = {
    "trl epsilon 0.2 0.3", "openrlhf kl_init_coef 0.01 0.02", "verl policy_loss.loss_mode vanilla gspo",
    "prime_rl cispo.ratio_high 5.0 6.0", "torchtune kl_coeff 0.1 0.2", "deepspeed_chat cliprange 0.2 0.3",
}  # fmt: skip


def test_what_moved_is_named_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, text in CHECKOUTS.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    assert main(["dialects", "--drift", str(tmp_path)]) == 0
    table = capsys.readouterr().out.splitlines()
    rows = [row.split() for row in table[1 : len(table) - len(CHECKOUTS)]]
    found = {" ".join([row[0], *row[-3:]]) for row in rows}
    gone = {row for row in found if row.endswith("there")}  # a flag that the source has no longer
    assert found - gone == MOVED
    assert all(row.startswith("openrlhf") for row in gone)
    assert any(line.startswith("trl: 3 defaults read, 1 moved (version not known") for line in table), (
        "beta is computed"
    )
    assert "huggingface/trl 1.16.0 (PyPI, 2026-10-15)" in table[1]


def test_where_nothing_can_be_read_one_sentence_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dialects", "--drift", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(
        "no source of a framework can be read here: install one, or give a folder"
    )
    assert main(["dialects", "--drift", str(tmp_path / "absent")]) == 2
    assert "must be a folder with a checkout" in capsys.readouterr().err


def test_an_installed_package_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nemo_rl/algorithms/loss").mkdir(parents=True)
    (tmp_path / "nemo_rl/__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "nemo_rl/algorithms/loss/loss_functions.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_source("nemo_rl", None) == tmp_path


def test_every_place_names_options_that_there_are() -> None:
    assert PLACES.keys() == OPTIONS.keys()
    for framework, places in PLACES.items():
        for *_, names in places:
            assert (names or {}).keys() <= our_defaults(framework).keys(), framework


@pytest.mark.parametrize("framework", sorted(OPTIONS.keys() - {"trl", "verl"}))  # whose readers take the table itself
def test_a_config_that_sets_nothing_is_read_as_the_preset(framework: str) -> None:
    reader, preset = load_reader(framework), Composer().compose([f"dialect={framework}"])
    assert reader.objective(reader.defaults) == resolve_run(preset).objective
