"""The README's tree is the code's: a line per file, from its docstring. `python tests/test_readme.py` rewrites it."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from grpolab import cli
from grpolab.sweep import launch

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
BEGIN, END = "<!-- tree -->\n```\n", "```\n<!-- end of tree -->"
OTHERS = {
    "conf/": "run.yaml and groups task/ model/ dialect/ paper/ loss_type/ fault/ tuned/; each with a comment",
    "experiments/": "one file per study: question, factors, seeds, hypotheses, figures",
    "notebooks/": "jupytext scripts: load, call, show",
    "requirements/": "the lock, and the script that makes the environment",
    "benchmarks/": "what things cost, steps against TRL's, does the doctor name planted faults (its README)",
    "docs/": "metrics, dialects, lint, regimes, not_reproduced (from commands); faults, tuning, why_is_my_ratio_one",
    "tests/": "promises: identities, peers' numbers, kill and resume, wrong input",
    "results/": "the outcome of `claims`; run folders and the store beside it are not in git",
}


def sentence(file: Path) -> str:
    """First sentence of a module's docstring."""
    text = " ".join((ast.get_docstring(ast.parse(file.read_text())) or "").split("\n\n")[0].split())
    return re.split(r"(?<!\bal)\. ", text)[0].rstrip(".")  # `et al. 2025` ends no sentence


def tree() -> str:
    """Every module with its sentence, folder by folder."""
    lines = [f"{name:14} {text}" for name, text in OTHERS.items()]
    package = ROOT / "src" / "grpolab"
    for folder in [
        package,
        *sorted(path for path in package.rglob("*") if path.is_dir() and path.name != "__pycache__"),
    ]:
        lines += ["", f"{folder.relative_to(ROOT)}/ — {sentence(folder / '__init__.py')}"]
        files = [file for file in sorted(folder.glob("*.py")) if not file.name.startswith("__")]
        lines += [f"  {file.name:20} {sentence(file)}" for file in files]
    return "\n".join(lines) + "\n"


def test_readme_shows_the_tree() -> None:
    """A file that is added, renamed or given another purpose changes the README."""
    assert BEGIN + tree() + END in README.read_text(), "run `python tests/test_readme.py`"


TEXT = README.read_text().partition("<!-- tree -->")[0].replace("\\\n", " ")
COMMANDS = [shlex.split(line, comments=True) for line in re.findall("^(?:grpolab|make) .*", TEXT, re.MULTILINE)]
# What needs runs, a server or hours is only read by the parser.
DONE = ("train", "sweep", "lint", "import", "export", "dialects", "vocabulary")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_are_right(words, tmp_path, monkeypatch, capsys) -> None:
    """Each command of the README is one that there is; what is cheap is done, training but for the runs themselves."""
    if words[0] == "make":
        targets = [word for word in words[1:] if "=" not in word]
        assert [f"\n{target}:" in (ROOT / "Makefile").read_text() for target in targets] == [True] * len(targets)
        return
    assert cli.parse(words[1:]).command
    for name in ("sweep", "train_here"):
        monkeypatch.setattr(launch, name, lambda *_arguments, **_options: 0)
    monkeypatch.chdir(tmp_path)
    Path("grpo_config.py").write_text("GRPOConfig(learning_rate=1e-6, num_generations=8, max_steps=100)")
    Path("run.sh").write_text("python -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=8 data.train_batch_size=256")
    if words[1] in DONE:
        assert cli.main(words[1:]) == 0, capsys.readouterr().err


def test_the_readme_has_its_commands() -> None:
    assert len(COMMANDS) > 30


if __name__ == "__main__":
    text = README.read_text()
    start = text.index("<!-- tree")
    README.write_text(text[:start] + BEGIN + tree() + END + "\n")
