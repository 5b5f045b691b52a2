"""The README and the pages of docs/: commands work, links lead somewhere, numbers are the report's."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from grpolab import cli
from grpolab.paths import SWEEP_STUDY
from grpolab.report.claims import decide
from grpolab.report.load import load
from grpolab.report.plans import outcome_at
from grpolab.report.screen import screen
from grpolab.report.statistics.looks import SUPPORTED
from grpolab.studies import sweep, train
from grpolab.sweep.compose import compose

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    block for page in PAGES for block in re.findall(r"^```\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
]
LINES = re.findall("^(?:grpolab|make) .*", "\n".join(BLOCKS).replace("\\\n", " "), re.MULTILINE)
COMMANDS = [shlex.split(line, comments=True) for line in dict.fromkeys(LINES)]
# What needs runs, a server or hours is only read by the parser.
DONE = ("train", "sweep", "lint", "import", "export", "dialects", "vocabulary")


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_commands_are_right(words, tmp_path, monkeypatch, capsys) -> None:
    """Each command is one that there is; what is cheap is done, training but for the runs themselves."""
    if words[0] == "make":
        makefile, group = (ROOT / "Makefile").read_text(), {"test-all": "ALL", "bench": "BENCH", "extras": "EXTRA"}
        for target in (word for word in words[1:] if "=" not in word):
            assert f"\n{target}:" in makefile
        for what in (word.removeprefix("WHAT=") for word in words if word.startswith("WHAT=")):
            assert f"\n{group[words[1]]}_{what} =" in makefile
        return
    assert cli.parse(words[1:]).command
    for module, name in ((sweep, "sweep"), (train, "train")):
        monkeypatch.setattr(module, name, lambda *_arguments, **_options: 0)
    monkeypatch.chdir(tmp_path)
    Path("grpo_config.py").write_text("GRPOConfig(learning_rate=1e-6, num_generations=8, max_steps=100)")
    Path("run.sh").write_text("python -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=8 data.train_batch_size=256")
    Path("runs/2026-11-26/.hydra").mkdir(parents=True)
    Path("runs/2026-11-26/.hydra/config.yaml").write_text("actor_rollout_ref: {rollout: {n: 8}}")
    Path("studies").mkdir()
    shutil.copy(ROOT / "experiments" / "smoke.yaml", "studies/mine.yaml")
    if words[1] in DONE:
        assert cli.main(words[1:]) == 0, capsys.readouterr().err


def test_the_commands_are_found() -> None:
    assert len(COMMANDS) > 30


def test_make_has_at_most_18_targets() -> None:
    assert len(re.findall(r"^[a-z-]+:.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)) <= 18


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_readme_is_short_and_its_numbers_are_the_reports() -> None:
    text, committed = README.read_text(), outcome_at(ROOT / "results" / "reference")
    assert len(text.encode()) <= 10_000
    reports = {name: screen(committed, name) for name in (SWEEP_STUDY, "pretrained_gpu", "reasoning_gym")}
    numbers = r"\d\.\d+ -> \d\.\d+|[+×-][\d.e-]+%? \[[^\]]+\]|\(start [\d.]+\)"
    # Behind a number of another report stands which: `grpolab report STUDY --brief`, or a study of results/report.md.
    found = re.findall(rf"({numbers})(?: \(`(?:grpolab report\s+)?(\w+)(?: --brief)?`\))?", text)
    assert len(found) >= 14
    whole = (ROOT / "results" / "report.md").read_text()
    lines = {"equal_updates": "^- equal_updates .*", "stale_passes": "^- .* four passes over a fresh batch.*"}
    pages = {name: "\n".join(re.findall(line, whole, re.MULTILINE)) for name, line in lines.items()}
    assert [said for said, name in found if said not in (pages | reports)[name or SWEEP_STUDY]] == []
    assert {name for _, name in found} == {"", *reports, *pages} - {SWEEP_STUDY}


def test_the_readmes_first_example_is_not_the_arm_that_its_finding_calls_worse() -> None:
    """A sequence ratio at the range of the token ratio: GSPO's has its own."""
    (first,) = re.findall("^grpolab train (?!--help).*", README.read_text(), re.MULTILINE)[:1]
    run = compose(first.split()[2:])
    assert run.importance_sampling_level == "token" or run.epsilon < 0.01


def test_the_page_on_scale_says_what_was_decided() -> None:
    claims = decide(load(outcome_at(ROOT / "results" / "reference"), "scale"))
    decided = {
        (claim.where, claim.id): f"**{claim.tasks[0].text}**" if claim.verdict == SUPPORTED else claim.tasks[0].text
        for claim in claims
    }
    page = (ROOT / "docs" / "scale.md").read_text()
    rows = re.findall(r"^\| (\S+M), (\d+) \| (.*) \|$", page, re.MULTILINE)
    names = ("S_sequence", "S_no_clip", "S_gspo", "S_gspo_clips")
    said = {
        (f"{size}/{length}", name): cell
        for size, length, cells in rows
        for name, cell in zip(names, cells.split(" | "), strict=True)
    }
    assert said == decided
    supported = [name for (_, name), cell in decided.items() if cell.startswith("**")]
    assert [supported.count(name) for name in names] == [2, 1, 0, 7]
    assert f"{len(supported)} of {len(claims)} questions are supported" in page
    words = " ".join(README.read_text().split())
    assert "ratio at .2 ends lower at two, and training without clip at one" in words
