"""What a command costs that only reads: which packages it loads, and whether it reads again what it has read."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
import yaml
from tiny import VALUES

sys.path.append(str(Path(__file__).parent / "report"))
from report_results import write_study

from grpolab.paths import Results

TRAINING = {"torch", "transformers", "datasets", "mlflow"}
DRAWING = {"matplotlib", "seaborn", "PIL", "jinja2", "markdown_it"}
COMPOSING = {"hydra", "omegaconf"}
STATISTICS = {"scipy.stats", "statsmodels"}
TABLES = {"pandas", "pyarrow"}
FRAMEWORKS = {"grpolab.readers.trl_fields", "grpolab.readers.verl_keys"}  # the keys that others' configs have
COMPLETION = {
    **{"prompt_index": 0, "sample": 0, "prompt": "1+1=", "completion": "2", "position": 0, "token": "2"},
    **{"reward": 1.0, "advantage": 0.5, "old_log_prob": -1.0, "ratio": 1.25, "clipped": "high"},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    found = write_study(tmp_path_factory.mktemp("results"))
    for folder in found.runs.iterdir():
        (folder / "settings.yaml").write_text(yaml.safe_dump(VALUES))
        for file in folder.glob("samples/*.parquet"):
            pd.DataFrame(COMPLETION, index=[0]).to_parquet(file)
    (found.root / "logs").mkdir()
    rows = (f'{{"step": {step}, "reward": 0.5, "clip_ratio/region_mean": 0.0}}\n' for step in range(9))
    (found.root / "logs" / "log.jsonl").write_text("".join(rows))
    for beta, number in product((0.0, 0.1), range(2)):  # without seeds, so that arms are compared unpaired
        folder = found.root / "others" / f"beta{beta}-{number}"
        folder.mkdir(parents=True)
        (folder / "args.json").write_text(json.dumps({"beta": beta}))
        history = [{"step": step, "reward": beta + 0.01 * number * step} for step in range(9)]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    return found


def loaded_by(results: Results, *commands: str, code: int = 0) -> set[str]:
    """The modules that a fresh process has loaded once the commands are done."""
    program = (
        "import sys; from grpolab.cli import main; codes = [main(words.split()) for words in sys.argv[1:]];"
        " print(*sys.modules, file=sys.stderr); sys.exit(max(codes))"
    )
    place = f"--results {results.root}"
    words = [
        command if command.startswith(("export", "train", "lint")) else f"{command} {place}" for command in commands
    ]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert done.stdout or code
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("commands", "without"),
    [
        ("show RUN; diagnose RUN", TRAINING | DRAWING | COMPOSING | STATISTICS),
        ("export --to trl; export --to verl; train --help", TRAINING | DRAWING | STATISTICS | TABLES),
        ("power --sd 1 --difference 1", TRAINING | DRAWING | COMPOSING | STATISTICS | TABLES),
        ("diagnose LOGS/log.jsonl", TRAINING | DRAWING | COMPOSING | {"scipy"}),
        ("lint clip_range; lint num_iterations=1", TRAINING | DRAWING | TABLES | FRAMEWORKS | {"scipy"}),
        ("report --from trl OTHERS", TRAINING | COMPOSING | STATISTICS | {"matplotlib", "seaborn", "PIL"}),
    ],
)
def test_a_command_that_reads_loads_only_what_it_needs(results, commands, without):
    places = {"RUN": min(results.runs.iterdir()).name, "LOGS": results.root / "logs", "OTHERS": results.root / "others"}
    for name, place in places.items():
        commands = commands.replace(name, str(place))
    words = commands.split("; ")
    assert loaded_by(results, *words) & without == set()


@pytest.mark.parametrize("command", ["report --from trl EMPTY", "diagnose EMPTY/log.json"])
def test_a_refusal_waits_for_no_table(results, command):
    (results.root / "empty").mkdir(exist_ok=True)
    words = command.replace("EMPTY", str(results.root / "empty"))
    assert loaded_by(results, words, code=2) & (TRAINING | DRAWING | TABLES | {"numpy", "scipy"}) == set()


def test_a_screen_is_computed_without_drawing_and_then_read_without_any_table(results):
    assert loaded_by(results, "report clip_range --brief") & (TRAINING | DRAWING | COMPOSING) == set()
    heavy = TRAINING | DRAWING | COMPOSING | STATISTICS | TABLES | {"numpy"}
    assert loaded_by(results, "report clip_range --brief") & heavy == set()
