"""What a user's code says in its errors, and what settings name, stands in no file, store, log or screen."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grpolab.errors import RequestError
from grpolab.paths import Results
from grpolab.settings.resolved import resolve_run
from grpolab.settings.task import CustomTask
from grpolab.sweep.compose import compose
from grpolab.tasks import make_task

ROOT = Path(__file__).parents[2]
PASSWORD, TOKEN, KEY, IN_CODE = "hunter2pw", "9f8e7d6c5b4a3210", "jUdGeK3yJuDgEk3y", "c0deS3cretC0de"
REWARD = f"""
import os, sys
api_key = "{IN_CODE}"
calls = 0

def score(prompt, answer, completion):
    global calls
    calls += 1
    if calls > 1:
        print("asked with", os.environ["JUDGE_API_KEY"], file=sys.stderr)
        raise ConnectionError(
            "https://lab:{PASSWORD}@judge.example/score?token={TOKEN} refused " + os.environ["JUDGE_API_KEY"]
        )
    return 1.0
"""
TASK = """
from grpolab.tasks.generated import Addition

class Judged(Addition):
    def __init__(self, digits, token):
        super().__init__(digits)
        self.token = token
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout whose uncommitted change holds a secret."""
    for folder in ("conf", "experiments"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    reward = tmp_path / "my_reward.py"
    reward.write_text("\n")
    (tmp_path / "my_task.py").write_text(TASK)
    (tmp_path / ".gitignore").write_text("results\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=lab", "-c", "user.email=lab@example"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "begin"]):
        subprocess.run([*git, *words], check=True)
    reward.write_text(REWARD)
    return tmp_path


def test_no_secret_leaves_a_process(project: Path, empty_store: Path) -> None:
    shutil.copy(empty_store, Results.open(project / "results").store)
    words = ["train", "-m", "--jobs", "1", "seed=0", "task=my_task.py:Judged", "reward.function=my_reward.py:score"]
    options = ["task.options.digits=1", "task.options.token=${oc.env:JUDGE_API_KEY}"]
    short = ["rollout_steps=1", "prompts_per_step=2", "num_generations=2", "evaluation.items=8"]
    short += ["warm_start.max_steps=1", "model.hidden_size=16", "model.layers=1", "model.heads=2"]
    command = [sys.executable, "-P", "-m", "grpolab", *words, *options, *short]
    environment = {**os.environ, "JUDGE_API_KEY": KEY}
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "failed: " in done.stdout
    assert "https://***@judge.example/score?token=*** refused ***" in done.stdout
    files = [file for file in (project / "results").rglob("*") if file.is_file()]
    names = {file.name for file in files}
    assert {"outcome.json", "settings.yaml", "provenance.json", "mlflow.db", "plan.json", "worker-0.log"} <= names
    read = {str(file.relative_to(project)): file.read_bytes() for file in files}
    read |= {"standard output": done.stdout.encode(), "standard error": done.stderr.encode()}
    for secret in (PASSWORD, TOKEN, KEY, IN_CODE):
        assert [name for name, content in read.items() if secret.encode() in content] == []
    assert any(b"asked with ***" in content for name, content in read.items() if name.endswith("worker-0.log"))
    assert any(b"${oc.env:JUDGE_API_KEY}" in content for name, content in read.items() if "settings.yaml" in name)
    assert any(b"my_task.py:Judged" in content for name, content in read.items() if "mlflow.db" in name)
    assert any(b'"JUDGE_API_KEY": "set"' in content for name, content in read.items() if "provenance" in name)
    (diff, *_) = [content for name, content in read.items() if name.endswith("provenance.json")]
    assert b'+api_key = \\"***\\"' in diff
    assert b"+    if calls > 1:" in diff, "the rest of the diff stays"


def asked(token: str) -> list[str]:
    return ["task=my_task.py:Judged", "task.options.digits=1", f"task.options.token='{token}'"]


def test_a_secret_that_a_setting_names_is_read_where_the_task_is_made_and_is_no_part_of_a_run(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    of: list[str] = []
    for secret in (KEY, KEY[::-1]):
        monkeypatch.setenv("JUDGE_API_KEY", secret)
        settings = compose(asked("${oc.env:JUDGE_API_KEY}"))
        of.append(resolve_run(settings).signature)
        assert isinstance(settings.task, CustomTask)
        assert settings.task.options["token"] == "${oc.env:JUDGE_API_KEY}"
        assert make_task(settings.task).token == secret  # type: ignore[attr-defined]
    assert of[0] == of[1]
    monkeypatch.delenv("JUDGE_API_KEY")
    with pytest.raises(RequestError, match=r"'JUDGE_API_KEY' of the environment, which is not set"):
        make_task(settings.task)


def test_a_url_with_a_password_stays_the_name_of_its_variable(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    for value, kept in (("left", "left"), (f"https://lab:{PASSWORD}@judge.example", "${oc.env:JUDGE}")):
        monkeypatch.setenv("JUDGE", value)
        task = compose(["task=my_task.py:Judged", "task.options.judge=${oc.env:JUDGE}"]).task
        assert isinstance(task, CustomTask)
        assert task.options == {"judge": kept}


def test_a_secret_in_a_setting_is_refused_and_not_repeated_and_a_token_of_text_is_none(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    for secret in (TOKEN, f"https://lab:{PASSWORD}@judge.example", "hf_abcdefghijklmnopqrstu"):
        with pytest.raises(RequestError, match=r"task.options.token is a secret, .*'\$\{oc.env:NAME\}'") as refusal:
            compose(asked(secret))
        assert secret not in str(refusal.value)
    for harmless in ("<pad>", "eos", "~", "token_mean"):
        task = compose(asked(harmless)).task
        assert isinstance(task, CustomTask)
        assert task.options["token"] == harmless
