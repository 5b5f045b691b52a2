"""The registry is append-only: over git's history no commit removes, changes or inserts a line."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from grpolab.paths import project_root
from grpolab.vocabulary import REGISTRY

# The only line that ever went: commit 03c4f5d2 wrote it anew 21 minutes later. A line at the end withdraws it.
REMOVED = '{"study": "pretrained", "time": "2026-11-23T10:27:37+00:00"'


def git(root: Path, *arguments: str) -> str:
    who = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.org"]
    return subprocess.run(["git", "-C", str(root), *who, *arguments], check=True, capture_output=True, text=True).stdout


def not_appended(root: Path) -> dict[str, list[str]]:
    """Return the lines that are not at the end of the file, and those that went, by commit; merges may join lines.

    Of a shallow clone git shows the first commit as if it had added everything: what came before is not checked there.
    """
    options = ("--full-history", "-m", "--no-renames", "--no-color", "--no-ext-diff", "--unified=1000000")
    history, found = (
        git(root, "log", "-p", "--format=%n:%H %P", *options, "HEAD", "--", REGISTRY),
        dict[str, list[str]](),
    )
    for commit in history.split("\n:")[1:]:
        head, _, patch = commit.partition("\n")
        name, *parents = head.split()
        lines = [line for line in patch.partition("\n@@")[2].split("\n")[1:] if line and not line.startswith("\\")]
        last = max((n for n, line in enumerate(lines) if line[0] == " "), default=-1)
        wrong = [line for line in lines if line[0] == "-" and not line[1:].startswith(REMOVED)]
        wrong += [line for line in lines[:last] if line[0] == "+"] if len(parents) < 2 else []
        if wrong:
            found.setdefault(name, []).extend(wrong)
    return found


def test_no_commit_removed_changed_or_inserted_a_line_of_the_registry() -> None:
    if not (project_root() / ".git").exists():
        pytest.skip("no git history here: nobody can say what the registry was before")
    assert not_appended(project_root()) == {}


def test_a_line_that_is_removed_edited_or_inserted_is_found(tmp_path: Path) -> None:
    file = tmp_path / REGISTRY
    file.parent.mkdir()
    git(tmp_path, "init", "-q", "-b", "main")
    commits = dict[str, str]()
    contents = {"first": "a\n", "appended": "a\nb\n", "edited": "a\nB\n", "inserted": "a\nc\nB\n", "removed": "a\nc\n"}
    for what, content in contents.items():
        file.write_text(content)
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", what)
        commits[what] = git(tmp_path, "rev-parse", "HEAD").strip()
    assert not_appended(tmp_path) == {
        commits["removed"]: ["-B"],
        commits["inserted"]: ["+c"],
        commits["edited"]: ["-b"],
    }


def test_a_merge_may_join_two_ends_and_drop_none(tmp_path: Path) -> None:
    file = tmp_path / REGISTRY
    file.parent.mkdir()
    git(tmp_path, "init", "-q", "-b", "main")

    def commit(content: str) -> str:
        file.write_text(content)
        git(tmp_path, "add", "-A")
        git(tmp_path, "commit", "-q", "-m", "?")
        return git(tmp_path, "rev-parse", "HEAD").strip()

    def merge(strategy: str) -> str:
        git(tmp_path, "merge", "-q", "-s", strategy, "side")
        return git(tmp_path, "rev-parse", "HEAD").strip()

    commit("a\n")
    git(tmp_path, "checkout", "-q", "-b", "side")
    commit("a\nb\n")
    git(tmp_path, "checkout", "-q", "main")
    commit("a\nc\n")
    dropped = merge("ours")
    assert not_appended(tmp_path) == {dropped: ["-b"]}
    git(tmp_path, "reset", "-q", "--hard", "HEAD^")
    git(tmp_path, "merge", "-q", "-s", "ours", "--no-commit", "side")
    commit("a\nb\nc\n")
    assert not_appended(tmp_path) == {}


def test_what_is_given_up_is_listed_with_what_its_runs_said() -> None:
    """A withdrawal names a registration of the same study by its time, or the one line that is not there any more."""
    lines = [json.loads(text) for text in (project_root() / REGISTRY).read_text().splitlines()]
    times = {(line["study"], line["time"]) for line in lines if "withdraws" not in line}
    removed = json.loads(REMOVED + "}")
    given_up = [line for line in lines if "withdraws" in line]
    for line in given_up:
        assert {*line} == {"study", "withdraws", "seeds", "hypotheses", "time", "author", "reason", "said"}
        assert line["reason"]
        assert line["said"]
        assert (line["study"], line["withdraws"]) in times | {(removed["study"], removed["time"])}
    seeds = {(line["study"], *line["seeds"]) for line in given_up}
    assert seeds >= {
        ("reference", *range(2000, 2005)),
        ("pretrained", 2045, 2046, 2047),
        ("pretrained", *range(2055, 2060)),
    }
