"""A `GRPOConfig` as people write it: Python that is never run, notebooks, recipes, the flags of a command."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from grpolab.cli import main
from grpolab.errors import RequestError
from grpolab.readers.exchange import read
from grpolab.readers.given import Given

# What surrounds `GRPOConfig(...)` -> the value of learning_rate, None where the file alone does not say it.
PYTHON: list[tuple[str, float | None]] = [
    ("LR = 2 * 5e-6\nGRPOConfig(learning_rate=LR)", 1e-5),
    ("LR = 1\nLR = 1e-5\nGRPOConfig(learning_rate=LR)", None),
    ("import trl\ntrl.GRPOConfig(learning_rate=float('1e-5'))", 1e-5),
    ("from trl import GRPOConfig as C\nC(learning_rate=1e-5)", 1e-5),
    ("d = {'learning_rate': 1e-5}\nGRPOConfig(**{**d, 'seed': 1})", 1e-5),
    ("d = {'learning_rate': 1e-4}\nif small():\n  d['learning_rate'] = 1e-5\nGRPOConfig(**d)", None),
    ("d = {'learning_rate': 1e-4}\nd.update(load())\nGRPOConfig(**d)", None),
    ("a = GRPOConfig()\na.learning_rate = 1e-5", None),
    ("a = GRPOConfig(learning_rate=1e-5)\nif big():\n  a.learning_rate = 1", None),
    ("def f(c):\n  c.learning_rate = 1e-5\na = GRPOConfig(learning_rate=1)\nf(a)", None),
    ("if big():\n  lr = 1e-4\nelse:\n  lr = 1e-5\nGRPOConfig(learning_rate=lr)", None),
    ("lr = 1e-5\nfor _ in range(3):\n  GRPOConfig(learning_rate=lr)\n  lr = lr / 2", None),
    ("GRPOConfig(learning_rate=1e-5 if big() else 1e-4)", None),
    ("def f(lr=1):\n  GRPOConfig(learning_rate=lr)\nf(1e-5)", 1e-5),
    ("def f(lr=1):\n  GRPOConfig(learning_rate=lr)\nf(1e-5)\nf(lr=1e-4)", None),
    ("def f(lr):\n  GRPOConfig(learning_rate=lr)\nlr = 1e-5", None),
    ("import os\nGRPOConfig(learning_rate=float(os.environ.get('LR', '1e-5')))", 1e-5),
    ("p.add_argument('--lr', default=1e-5)\nGRPOConfig(learning_rate=p.parse_args().lr)", 1e-5),
    ("@dataclass\nclass C:\n  lr: float = 1e-5\nc = C()\nGRPOConfig(learning_rate=c.lr)", 1e-5),
    ("class A:\n  lr = 1\nclass C(Base):\n  n = 1\nc = C()\nGRPOConfig(learning_rate=c.lr)", None),
    ("class C:\n  lr = 1e-4\nc = load(C)\nGRPOConfig(learning_rate=c.lr)", None),
    ("class C:\n  lr = 1e-4\nC.lr = 1e-5\nGRPOConfig(learning_rate=C.lr)", None),
    ("p.add_argument('--lr', required=True)\na = p.parse_args()\nGRPOConfig(learning_rate=a.lr)", None),
    ("def f():\n  global LR\n  LR = 1\nLR = 1e-5\nGRPOConfig(learning_rate=LR)", None),
    ("LR = (3\n  % 2)\nGRPOConfig(learning_rate=LR * 1e-5)", 1e-5),
    ("!pip install trl\n%cd x\nGRPOConfig(learning_rate=1e-5)", 1e-5),
    ("a = GRPOConfig(learning_rate=1)\nb = GRPOConfig(learning_rate=1e-5)\nGRPOTrainer(args=b)", 1e-5),
]


def given(tmp_path: Path, name: str, text: str) -> Given:
    path = tmp_path / name
    path.write_text(text)
    return read("trl", str(path))


@pytest.mark.parametrize(("text", "learning_rate"), PYTHON)
def test_python_is_read_as_far_as_it_leaves_no_doubt(text: str, learning_rate: float | None, tmp_path: Path) -> None:
    found = given(tmp_path, "a.py", text)
    if learning_rate is None:
        assert "learning_rate" not in found.options
        assert "learning_rate" in found.open
    else:
        assert found.options["learning_rate"] == pytest.approx(learning_rate)


def test_python_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    given(tmp_path, "a.py", f"open({str(mark)!r}, 'w')\nGRPOConfig(seed=open({str(mark)!r}, 'w'))")
    assert not mark.exists()


def test_a_scripts_own_defaults_are_told_from_what_it_fixes(tmp_path: Path) -> None:
    text = "p.add_argument('--lr', default=1e-5)\na = p.parse_args()\nGRPOConfig(learning_rate=a.lr, beta=0.1)"
    assert given(tmp_path, "a.py", text).overridable == ["learning_rate"]


def test_a_notebook_is_its_cells(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "markdown", "source": "GRPOConfig(learning_rate=1)"},
        {"cell_type": "code", "source": "%%bash\nif then GRPOConfig(learning_rate=2)"},
        {"cell_type": "code", "source": ["!pip install trl==0.15.2\n", "LR = 1e-5"]},
        {"cell_type": "code", "source": "GRPOConfig(learning_rate=LR)"},
    ]
    found = given(tmp_path, "a.ipynb", json.dumps({"cells": cells}))
    assert found.options == {"learning_rate": 1e-5}
    assert found.version == "0.15"


RECIPES: list[tuple[str, dict[str, Any]]] = [
    ("learning_rate: 2.0e-05\nnum_generations: 4\nepsilon_high: 1", {"learning_rate": 2e-5, "num_generations": 4}),
    ("num_generations: 4\nnum_train_epochs: 1\nseed: 1\nseed: 2", {"seed": 2}),  # as YAML's parsers have it
    ("training: {learning_rate: 1e-6}\ngrpo: {num_generations: 4, epsilon_high: 1}", {"learning_rate": 1e-6}),
    ("grpo: {num_generations: 4, epsilon_high: 1, seed: 1}\nsft: {seed: 2}\neval: {temperature: 0}", {"seed": 1}),
    ("grpo: {num_generations: 4, epsilon_high: 1}\nplot: {learning_rate: 1, temperature: 2}", {"num_generations": 4}),
]


@pytest.mark.parametrize(("text", "values"), RECIPES)
def test_recipes_are_read_with_what_stands_beside(text: str, values: dict[str, Any], tmp_path: Path) -> None:
    found = given(tmp_path, "a.yaml", text)
    assert {key: found.options[key] for key in values} == values
    assert not {"temperature"} & found.options.keys()


def test_what_is_filled_in_elsewhere_or_differs_is_open(tmp_path: Path) -> None:
    text = "grpo: {num_generations: 4, delta: 2, epsilon_high: 1}\noptim: {learning_rate: 1}\ntrain: {learning_rate: 2}"
    found = given(tmp_path, "a.yaml", f"{text}\nbeta: ${{oc.env:BETA}}")
    assert found.options == {"num_generations": 4, "delta": 2, "epsilon_high": 1}
    assert found.open == {"learning_rate": "1 or 2", "beta": "${oc.env:BETA}"}


SHELL = """
LR=1e-6
torchrun --nproc_per_node="4" --nnodes 2 train.py \\
    --learning_rate $LR --num_generations=${N:-8} --beta "$BETA" \\
    --bf16 --reward_funcs accuracy format --dataset-name x "$@"
"""


def test_flags_of_a_command_are_fields(tmp_path: Path) -> None:
    found = given(tmp_path, "run.sh", SHELL)
    assert found.options["learning_rate"] == 1e-6
    assert found.options["num_generations"] == 8
    assert found.options["bf16"] is True
    assert found.options["dataset_name"] == "x"
    assert "beta" in found.open
    assert found.processes == 8
    assert any("$@: what it adds" in note for note in found.notes)


def test_ms_swift_has_its_own_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.sh"
    path.write_text("NPROC_PER_NODE=7 \\\nswift rlhf --rlhf_type grpo --num_generations 7 --loss_type fipo\n")
    assert main(["import", "--from", "trl", str(path)]) == 0
    printed = capsys.readouterr()
    assert {"beta=0.04", "aggregation=sequence_mean", "temperature=0.9"} <= set(printed.out.split())
    assert "those of ms-swift" in printed.err
    assert "loss_type=fipo: ms-swift has it and TRL has not; the default grpo stands for it" in printed.err
    assert "number of processes" not in printed.err


def test_unsloth_makes_its_batch_hold_a_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.py"
    path.write_text("import unsloth\nGRPOConfig(num_generations=6, per_device_train_batch_size=1)")
    assert main(["import", "--from", "trl", str(path)]) == 0
    printed = capsys.readouterr()
    assert {"micro_batch_size=6", "prompts_per_step=2", "learning_rate=5e-05"} <= set(printed.out.split())
    assert "so unsloth takes 6" in printed.err


WHAT_IT_IS = [
    (
        "a.yaml",
        "compute_environment: LOCAL_MACHINE\nnum_processes: 8",
        "seems to be what accelerate starts processes by",
    ),
    ("a.py", "AsyncGRPOConfig(learning_rate=1)", "its AsyncGRPOConfig(...) is of another trainer"),
    ("a.py", "from tunix import GRPOConfig\nGRPOConfig(beta=1)", "its GRPOConfig(...) is of another trainer"),
    ("a.py", "class GRPOConfig: pass\nGRPOConfig(beta=1)", "its GRPOConfig(...) is of another trainer"),
    ("a.py", "class MyGRPOConfig(Base): pass\nMyGRPOConfig(beta=1)", "its MyGRPOConfig(...) is of another"),
    ("a.json", '{"log_history": []}', "use grpolab diagnose --from trl"),
    ("a.py", "from trl import GRPOConfig\nTrlParser((GRPOConfig,))", "from a recipe or its command line"),
    ("a.sh", "accelerate launch grpo.py --config recipes/a.yaml", "takes its GRPOConfig from recipes/a.yaml"),
    ("a.py", "a = (\nGRPOConfig(beta=1)\nb = 1", "is no Python that can be read"),
    ("a.ipynb", "{}", "it has no cells"),
]


NEMO_RL = "grpo: {num_prompts_per_step: 32, num_generations_per_prompt: 16}\npolicy: {train_global_batch_size: 512}"
OPEN_INSTRUCT = "python open_instruct/grpo_fast.py --beta 0.01 --learning_rate 5e-7 --num_samples_per_prompt_rollout 16"
OF_ONES_OWN = "num_generations: 4\nmax_completion_length: 64\nlr: 1e-5\nkl_coef: 0.1\nbatch_size: 8"
# Nothing of these may become settings: their values, or their defaults, are not those of a GRPOConfig.
FICTION = [
    ("config.yaml", "learning_rate: {value: 2e-6}\nseed: {value: 1}\n_wandb: {value: {}}", "no key tells it"),
    ("sft.yaml", "learning_rate: 2e-5\npacking: true\nnum_train_epochs: 1", "seems to be a config for superv"),
    ("grpo.yaml", NEMO_RL, "is a config of NeMo-RL"),
    (
        "a.py",
        "@dataclass\nclass GRPOConfig:\n  lr: int = 1\nGRPOConfig(num_generations=4)",
        "that of a class of the file",
    ),
    ("a.py", "from config import GRPOConfig\nGRPOConfig(num_generations=4)", "that of config"),
    ("a.py", "import jax\nfrom easydel import GRPOConfig\nGRPOConfig(num_generations=4)", "that of easydel"),
    ("a.py", "import verl as v\nv.GRPOConfig(num_generations=4)", "that of verl"),
    ("a.py", "GRPOConfig(group_size=4, kl_coef=0.1)", "stand for num_generations, beta in a script of its own"),
    ("a.py", "from trl import GRPOConfig\nGRPOConfig(**load('a.yaml'))", "says no values of its GRPOConfig (**load"),
    ("a.sh", OPEN_INSTRUCT, "is a config of open-instruct"),
    (
        "a.sh",
        "swift sft --num_train_epochs 1 --output_dir grpo --lora_rank 8 --max_length 9",
        "its command is swift sft",
    ),
    ("a.sh", "swift rlhf --rlhf_type dpo --beta 0.1 --learning_rate 1 --model x", "its command is swift rlhf"),
    (
        "dpo.yaml",
        "beta: 0.1\nmax_completion_length: 64\nnum_train_epochs: 1",
        "max_completion_length, num_train_epochs tells",
    ),
    ("grpo.yaml", OF_ONES_OWN, "stand for learning_rate, beta, per_device_train_batch_size in a script of its own"),
    ("a.yaml", "num_generations: 4\ntemperature: 1", "num_generations alone tells it from another trainer's: "),
    ("a.yaml", "base_model: x\nadapter: lora\nmicro_batch_size: 2", "axolotl for supervised fine-tuning"),
    ("a.yaml", "rlhf_type: dpo\nnum_train_epochs: 1", "ms-swift for dpo"),
]


@pytest.mark.parametrize(("name", "text", "says"), FICTION)
def test_what_is_not_trls_is_refused_and_never_read_as_defaults(
    name: str, text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["import", "--from", "trl", str(tmp_path / name)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err


PYTHON_OF_TRL = [
    "from open_r1.configs import GRPOConfig\nGRPOConfig(num_generations=4)",
    "from configs import GRPOConfig\nfrom trl import GRPOTrainer\nGRPOConfig(num_generations=4)",
    "import trl\nclass Mine(trl.GRPOConfig):\n  num_generations: int = 4\nMine(beta=0.1)",
    "from trl import GRPOConfig as T\nclass GRPOConfig(T):\n  depth: int = 1\nGRPOConfig(num_generations=4)",
]


@pytest.mark.parametrize("text", PYTHON_OF_TRL)
def test_a_config_class_that_inherits_from_trls_is_read(text: str, tmp_path: Path) -> None:
    assert given(tmp_path, "a.py", text).options["num_generations"] == 4


@pytest.mark.parametrize(("name", "text", "says"), WHAT_IT_IS)
def test_a_file_without_a_config_is_told_what_it_is(name: str, text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"^[^\n]*$") as error:
        given(tmp_path, name, text)
    assert says in str(error.value)


# A few characters that would take memory, time or a stack if they were followed.
TRAPS = [
    ("a.yaml", "num_generations: 4\n" + "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"{x}: &{x} [{','.join([f'*{y}'] * 10)}]\n" for y, x in zip("abcdefgh", "bcdefghi", strict=True)
    ), "more than 100000 values"),
    ("a.yaml", "a: &a [*a]", "an alias of what it stands in"),
    ("a.yaml", "a: " + "[" * 400 + "]" * 400, "nests more than"),
    ("a.yaml", "seed: !!python/object/apply:os.getcwd []", "is no YAML"),
    ("a.json", '{"seed": ' + "9" * 5000 + "}", "a number of 5000 characters"),
    ("a.json", "[" * 100_000, "nests too many"),
    ("a.yaml", "a: " + "x" * (1 << 20), "larger than 1 MiB"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "says"), TRAPS)
def test_a_document_that_would_grow_is_refused(name: str, text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as error:
        given(tmp_path, name, text)
    assert says in str(error.value)


@pytest.mark.parametrize(
    "expression", ["9**9**9**9", "'a' * 10**9", "x60", "f(1)", "a", "(" * 90 + "1" + ")" * 90 + "**99"]
)
def test_an_expression_that_would_grow_is_open(expression: str, tmp_path: Path) -> None:
    endless = "x0 = 1\n" + "".join(f"x{n + 1} = x{n} + x{n}\n" for n in range(60))
    endless += "def f(n):\n  return f(n)\na = b\nb = a\ny = {**y}\n"
    assert "seed" in given(tmp_path, "a.py", f"{endless}GRPOConfig(beta=0.1, seed={expression}, **y)").open


@pytest.mark.parametrize(
    "text",
    [
        "def f(a):pass\n" * 5_000 + "f(1)\n" * 10_000,
        "class C:\n  a=1\n" + "x.b=1\n" * 10_000 + f"y=[{'C.a,' * 10_000}]\nGRPOConfig(seed=y)",
        "d={}\n" + "x.b=1\n" * 10_000 + f"GRPOConfig({'**d,' * 5_000})",
        "GRPOConfig(seed=" + "-" * 5_000 + "1)",
    ],
)
def test_python_without_end_is_read_soon(text: str, tmp_path: Path) -> None:
    started = time.process_time()
    with contextlib.suppress(RequestError):
        given(tmp_path, "a.py", text)
    assert time.process_time() - started < 4


@pytest.mark.parametrize(
    ("framework", "name", "text"),
    [
        ("trl", "a.yaml", 'num_generations: 4\n"odd\\e[31m": 1\nmodel_name_or_path: "m\\e[0m"'),
        (
            "verl",
            "a.sh",
            "python3 -m verl algorithm.adv_estimator=grpo +algorithm.odd=$'x'\x1b[31mred",
        ),
    ],
)
def test_control_characters_are_spelled_out(
    framework: str, name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["import", "--from", framework, str(tmp_path / name)]) == 0
    printed = capsys.readouterr()
    assert "odd" in printed.out + printed.err
    assert "\x1b" not in printed.out + printed.err
