"""`grpolab prune-runs` and `runs import`: nothing that is asked for is deleted, nothing that is here is changed."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import tiny
import yaml

from grpolab import RESULTS_VERSION
from grpolab.cli import main
from grpolab.paths import Results, project_root, read_json, write_json_atomic
from grpolab.run.checkpoint import save_weights
from grpolab.run.lease import HERE, Lease, leased
from grpolab.run.train import run
from grpolab.run_files import weights_sha256
from grpolab.sweep import housekeeping
from grpolab.sweep.housekeeping import prune as delete_unasked

NO_CLIP, WIDE = "    no_clip: [kernel=ratio]\n", "    wide: [epsilon=0.4]\n"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*") if path.is_dir()}


def content(results: Results) -> dict[str, bytes]:
    files = [file for file in results.root.rglob("*") if file.is_file() and not file.name.startswith(".lease-")]
    return {str(file.relative_to(results.root)): file.read_bytes() for file in files}


# --- prune-runs -----------------------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A checkout whose only study, `mine`, can be edited."""
    project = tmp_path / "project"
    (project / "experiments").mkdir(parents=True)
    shutil.copytree(project_root() / "conf", project / "conf")
    study = (project_root() / "experiments" / "smoke.yaml").read_text()
    (project / "experiments" / "mine.yaml").write_text(study.replace(NO_CLIP, NO_CLIP + WIDE))
    monkeypatch.chdir(project)
    return project


def remove_level(project: Path) -> None:
    file = project / "experiments" / "mine.yaml"
    file.write_text(file.read_text().replace(WIDE, ""))


def prune(results: Results, *options: str) -> int:
    return main(["prune-runs", *options, "--results", str(results.root)])


def test_the_runs_of_a_removed_level_are_found_and_only_they(project, fake_sweep, capsys):
    results = fake_sweep.results
    fake_sweep("mine", seeds=[0])
    before = names(results.runs)
    remove_level(project)
    assert prune(results, "--yes") == 0
    assert names(results.runs) == before, "the plan still asks for them"
    fake_sweep("mine", seeds=[0])
    planned = {cell["signature"] for cell in (read_json(results.plan("mine")) or {})["cells"]}
    capsys.readouterr()
    assert prune(results, "--dry-run") == 0
    (gone,) = before - planned
    assert f"runs/{gone}: completed" in capsys.readouterr().out
    assert names(results.runs) == before | planned, "only listed"
    assert prune(results, "--yes") == 0
    assert names(results.runs) == planned
    assert "nothing to delete" not in capsys.readouterr().out
    assert prune(results, "--yes") == 0
    assert "nothing to delete" in capsys.readouterr().out


def test_what_no_plan_but_a_study_file_asks_for_stays(project, fake_sweep):
    fake_sweep("mine", seeds=[0])
    before = content(fake_sweep.results)
    plan = fake_sweep.results.plan("mine")
    plan.unlink()
    assert prune(fake_sweep.results, "--yes") == 0
    assert content(fake_sweep.results).keys() == before.keys() - {str(plan.relative_to(fake_sweep.root))}


def test_a_run_that_somebody_works_on_is_never_touched(tmp_path, project):
    results = Results.open(tmp_path / "results")
    alive, held, dead = (results.run(digit * 16) for digit in "abc")
    for folder in (alive, held, dead):
        folder.mkdir(parents=True)
        (folder / "journal.jsonl").write_text("")
    write_json_atomic(alive / ".lease-1", {**HERE.holder(), "host": "elsewhere"})
    with leased(held):
        assert prune(results, "--yes") == 0
        assert names(results.runs) == {alive.name, held.name}


def test_warm_starts_go_with_the_last_run_that_needs_them(tmp_path, project):
    results = Results.open(tmp_path / "results")
    for digit in "ab":
        write_json_atomic(results.run(digit * 16) / "provenance.json", {"warm_start": {"signature": 16 * digit}})
        write_json_atomic(results.warm_start(16 * digit) / "outcome.json", {})
    cell = {"variant": "v", "seed": 0, "signature": "a" * 16}
    write_json_atomic(results.plan("adhoc"), {"study": "adhoc", "includes": [], "cells": [cell]})
    assert prune(results, "--yes") == 0
    assert (names(results.runs), names(results.warm_starts)) == ({"a" * 16}, {"a" * 16})


def test_a_warm_start_that_is_being_made_stays(tmp_path, project):
    results = Results.open(tmp_path / "results")
    results.warm_start("a" * 16).mkdir(parents=True)
    with leased(results.warm_start("a" * 16)):
        assert prune(results, "--yes") == 0
        assert names(results.warm_starts) == {"a" * 16}


def test_what_begins_while_a_person_is_asked_stays(tmp_path, project):
    results = Results.open(tmp_path / "results")
    folder = results.run("a" * 16)
    folder.mkdir(parents=True)

    def consent(_question: str) -> bool:
        assert Lease(folder).attempt()
        return True

    delete_unasked(results, consent)
    assert names(results.runs) == {folder.name}


def test_a_person_is_asked(tmp_path, project, monkeypatch):
    results = Results.open(tmp_path / "results")
    results.run("a" * 16).mkdir(parents=True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    for answer, left in (("", 1), ("no", 1), ("y", 0)):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: answer)
        assert prune(results) == 0
        assert len(names(results.runs)) == left


def test_wrong_requests_delete_nothing(tmp_path, project, capsys, monkeypatch):
    results = Results.open(tmp_path / "results")
    results.run("a" * 16).mkdir(parents=True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    for options, said in (([], "give --dry-run or --yes"), (["--dry-run", "--yes"], "exclude each other")):
        assert prune(results, *options) == 2
        assert said in capsys.readouterr().err
    (project / "experiments" / "mine.yaml").write_text("question: ")
    assert prune(results, "--yes") == 2
    shutil.copy(Path(__file__).parents[2] / "experiments" / "smoke.yaml", project / "experiments" / "mine.yaml")
    results.plan("adhoc").parent.mkdir(parents=True)
    results.plan("adhoc").write_text('{"cells": [')
    assert prune(results, "--yes") == 2
    assert "cannot be read" in capsys.readouterr().err
    assert names(results.runs) == {"a" * 16}


OLD = {"task": {"name": "jsonl", "train_file": "a", "evaluation_file": "b"}, "seed": 3}


def test_what_may_be_of_use_is_kept_and_said(tmp_path, project, capsys):
    """Runs of unrecorded content, damaged runs, and runs that a study with absent data may ask for."""
    results = Results.open(tmp_path / "results")
    old, damaged, recorded = (results.run(digit * 16) for digit in "abc")
    content = {"task.train_file": {"sha256": "0" * 64}, "task.evaluation_file": {"sha256": "1" * 64}}
    for folder, said in ((old, {}), (recorded, {"content": content})):
        write_json_atomic(folder / "settings.yaml", OLD)
        write_json_atomic(folder / "outcome.json", {"outcome": "completed"})
        write_json_atomic(folder / "provenance.json", {"warm_start": {"signature": folder.name}, **said})
        write_json_atomic(results.warm_start(folder.name) / "outcome.json", {})
    assert prune(results, "--yes") == 0
    assert f"runs/{old.name}: completed, jsonl, seed 3, 0.0 MB; kept" in capsys.readouterr().out
    assert (names(results.runs), names(results.warm_starts)) == ({old.name}, {old.name})
    damaged.mkdir()
    (damaged / "settings.yaml").write_text("]")
    write_json_atomic(recorded / "settings.yaml", OLD)
    file = project / "experiments" / "mine.yaml"
    study = yaml.safe_load(file.read_text())
    study["factors"]["task"] = {"mine": ["task=jsonl", "task.train_file=/no/a.jsonl", "task.evaluation_file=/no/b"]}
    study["overrides"] = [text for text in study["overrides"] if not text.startswith("task")]
    file.write_text(yaml.safe_dump(study))
    assert prune(results, "--yes") == 0
    said = capsys.readouterr().out
    assert f"runs/{damaged.name}: damaged" in said
    assert "another task.evaluation_file that is not on this machine" in said
    assert names(results.runs) == {old.name, damaged.name, recorded.name}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        *[(file, text) for file in ("settings.yaml", "provenance.json", "outcome.json") for text in ("]", "\0", "3")],
        ("provenance.json", '{"framework": "trl"}'),  # another trainer's, which no command makes again
    ],
)
def test_a_run_in_doubt_is_never_deleted(file, text, tmp_path, project):
    results = Results.open(tmp_path / "results")
    folder = results.run("a" * 16)
    folder.mkdir(parents=True)
    (folder / file).write_text(text)
    before = content(results)
    assert prune(results, "--yes") == 0
    assert content(results) == before


# --- runs import ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Another machine's results: two real runs with a warm start each, and their plan."""
    results = Results.open(tmp_path_factory.mktemp("machine"))
    cells = []
    for seed in (0, 1):
        settings = tiny.tiny_settings(
            seed=seed, rollout_steps=1, warm_start={"max_steps": 2}, epsilon_high=float("inf")
        )
        assert run(settings, results)["outcome"] == "completed"
        cells.append({"variant": "v", "seed": seed, "signature": settings.signature})
    write_json_atomic(results.plan("mine"), {"study": "mine", "includes": [], "cells": cells})
    return results


@pytest.fixture
def theirs(machine, tmp_path):
    """A copy of it, to be spoilt."""
    return Results(shutil.copytree(machine.root, tmp_path / "theirs"))


def take_over(theirs: Results, ours: Results) -> int:
    return main(["runs", "import", str(theirs.root), "--results", str(ours.root)])


def first(results: Results) -> Path:
    return min(results.runs.iterdir())


def test_runs_are_taken_over_whole_and_once(theirs, results, capsys):
    write_json_atomic(theirs.run("f" * 16) / "settings.yaml", {})  # not finished
    assert take_over(theirs, results) == 0
    assert "2 imported, 1 left there without a result" in capsys.readouterr().out
    expected = {name: data for name, data in content(theirs).items() if "f" * 16 not in name}
    assert content(results) == expected
    assert main(["status", "mine", "--json", "--results", str(results.root)]) == 0
    assert json.loads(capsys.readouterr().out)["mine"]["states"] == {"completed": 2}
    assert take_over(theirs, results) == 0
    assert "2 here already" in capsys.readouterr().out
    assert content(results) == expected


def test_copying_folders_by_hand_merges_two_machines(theirs, results, capsys):
    for folder in (theirs.runs, theirs.warm_starts, theirs.studies):
        shutil.copytree(folder, results.root / folder.name, dirs_exist_ok=True)
    assert main(["status", "mine", "--json", "--results", str(results.root)]) == 0
    assert json.loads(capsys.readouterr().out)["mine"]["states"] == {"completed": 2}
    assert take_over(theirs, results) == 0


def test_the_runs_may_lie_on_another_disk(theirs, results, tmp_path):
    (tmp_path / "disk").mkdir()
    results.runs.symlink_to(tmp_path / "disk")
    assert take_over(theirs, results) == 0
    assert names(tmp_path / "disk") == names(theirs.runs)


def test_the_fingerprint_without_torch_is_that_of_the_policy(tmp_path):
    policy = tiny.tiny_policy()
    save_weights(tmp_path / "policy.safetensors", policy.weights())
    assert weights_sha256(tmp_path / "policy.safetensors") == policy.fingerprint()


def _spoil(file: str) -> None:
    data = bytearray(Path(file).read_bytes())
    data[-2] ^= 1
    Path(file).write_bytes(data)


def _truncate(file: str) -> None:
    Path(file).write_bytes(Path(file).read_bytes()[:-4])


def _edit(old: str, new: str):
    def edit(file: str) -> None:
        text = Path(file).read_text()
        assert old in text
        Path(file).write_text(text.replace(old, new))

    return edit


@pytest.mark.parametrize(
    ("name", "spoil", "said"),
    [
        ("journal.jsonl", _spoil, "journal_sha256"),
        ("journal.jsonl", _truncate, "journal_sha256"),
        ("policy.safetensors", _spoil, "policy_sha256"),
        ("policy.safetensors", _truncate, "policy_sha256"),
        ("settings.yaml", _edit("beta: 0.0", "beta: 0.5"), "its settings.yaml is that of run"),
        ("settings.yaml", _edit("beta: 0.0", "- ]"), "its settings.yaml cannot be read"),
        ("provenance.json", _edit(f'_version": {RESULTS_VERSION}', '_version": 9'), "results_version is 9"),
        ("../../warm_starts/{warm}/policy.safetensors", _spoil, "policy.safetensors has not the weights"),
        ("../../warm_starts/{warm}/outcome.json", _edit('"sha256": "', '"sha256": "0'), "(sha256)"),
    ],
)
def test_a_damaged_run_is_refused_by_name(theirs, results, capsys, name, spoil, said):
    folder = first(theirs)
    warm = (read_json(folder / "provenance.json") or {})["warm_start"]["signature"]
    spoil(str(folder / name.format(warm=warm)))
    assert take_over(theirs, results) == 1
    out = capsys.readouterr().out
    assert f"refused: run {folder.name}: " in out
    assert said in out
    assert names(results.runs) == names(theirs.runs) - {folder.name}, "the other one came, and no half of this one"


BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))


@pytest.mark.parametrize(
    ("name", "odd", "said"),
    [
        ("samples/secret.parquet", "../../../../secret", "samples/secret.parquet is a link"),
        ("outcome.json", "../../../secret", "outcome.json is a link"),
        ("journal.jsonl", "journal.jsonl", "journal.jsonl is a link"),
        ("samples", "../../..", "samples is a link"),
        ("other", "..", "other is a link"),
        ("zero", "/dev/zero", "zero is a link"),
        ("pipe", None, "pipe is a link, a pipe"),
        ("outcome.json", None, "outcome.json is a link, a pipe"),
        ("provenance.json", None, "provenance.json is a link, a pipe"),
        ("settings.yaml", BOMB.encode(), "settings.yaml"),
        ("settings.yaml", b"a: " + b"[" * 5000, "settings.yaml"),
        ("settings.yaml", b"a: " + b"x" * (2 << 20), "settings.yaml"),
        ("a/b/c/d/e", b"", "deeper than any folder"),
        ("../../warm_starts/{warm}/policy.safetensors", "../../../secret", "policy.safetensors is a link"),
        ("../../warm_starts/{warm}", "../../elsewhere", "is a link"),
        ("", "../../elsewhere", "is a link"),
    ],
)
def test_what_leads_elsewhere_or_never_ends_spoils_one_run(theirs, results, tmp_path, capsys, name, odd, said):
    """A link to a secret, a loop, a pipe, an alias bomb: the other run comes, within seconds."""
    (tmp_path / "secret").write_text("secret")
    folder = first(theirs)
    warm = (read_json(folder / "provenance.json") or {})["warm_start"]["signature"]
    place = Path(os.path.normpath(folder / name.format(warm=warm)))
    if place.is_dir():
        shutil.move(place, tmp_path / "elsewhere")
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    if odd is None:
        os.mkfifo(place)
    else:
        place.write_bytes(odd) if isinstance(odd, bytes) else place.symlink_to(odd)
    started = time.monotonic()
    assert take_over(theirs, results) == 1
    assert time.monotonic() - started < 10
    out = capsys.readouterr().out
    assert f"refused: run {folder.name}: " in out
    assert said in out
    assert names(results.runs) == names(theirs.runs) - {folder.name}
    assert b"secret" not in content(results).values()


def test_a_link_in_place_of_all_runs_is_not_followed(theirs, results, tmp_path, capsys):
    theirs.runs.rename(tmp_path / "elsewhere")
    theirs.runs.symlink_to(tmp_path / "elsewhere")
    assert take_over(theirs, results) == 1
    assert capsys.readouterr().out.count("is a link") == 2
    assert not names(results.runs)


@pytest.mark.parametrize("odd", ["{}", '{"study": "other", "includes": [], "cells": []}', "[" * 100_000, None, "link"])
def test_a_plan_that_is_none_is_not_taken_over(theirs, results, tmp_path, capsys, odd):
    plan = theirs.plan("mine")
    plan.unlink()
    if odd is None:
        os.mkfifo(plan)
    elif odd == "link":
        write_json_atomic(tmp_path / "secret", {"study": "mine", "includes": [], "cells": []})
        plan.symlink_to(tmp_path / "secret")
    else:
        plan.write_text(odd)
    assert take_over(theirs, results) == 1
    out = capsys.readouterr().out
    assert "refused: study mine: " in out
    assert "2 imported" in out
    assert not results.plan("mine").exists()


def test_a_cache_is_made_anew_and_not_believed(theirs, results):
    """It bears the hash of the journal that it was made from, whatever its numbers are."""
    (first(theirs) / "journal.arrow").write_bytes(b"other numbers")
    assert take_over(theirs, results) == 0
    assert not list(results.runs.glob("*/journal.arrow"))


@pytest.mark.parametrize("which", ["run", "warm start", "begun"])
def test_another_one_of_the_same_signature_is_a_conflict_and_stays(theirs, results, capsys, which):
    folder = first(theirs)
    here = results.run(folder.name)
    if which == "run":
        outcome = read_json(folder / "outcome.json") or {}
        write_json_atomic(here / "outcome.json", {**outcome, "journal_sha256": "0"})
    elif which == "begun":
        (here / "settings.yaml").parent.mkdir(parents=True)
        (here / "settings.yaml").write_text("{}")
    else:
        warm = (read_json(folder / "provenance.json") or {})["warm_start"]["signature"]
        made = read_json(theirs.warm_start(warm) / "outcome.json") or {}
        write_json_atomic(results.warm_start(warm) / "outcome.json", {**made, "sha256": "0", "steps": 0})
    before = content(results)
    assert take_over(theirs, results) == 1
    said = {
        "run": "has another journal_sha256; it stays",
        "warm start": "differs from the one here",
        "begun": "is begun",
    }
    assert said[which] in capsys.readouterr().out
    assert before.items() <= content(results).items(), "nothing was overwritten"


@pytest.mark.parametrize(
    ("whose", "code", "said"),
    [("theirs", 0, "1 left there without a result"), ("ours", 1, "is begun"), ("ours, warm start", 1, "is begun here")],
)
def test_what_somebody_works_on_is_neither_taken_nor_replaced(theirs, results, capsys, whose, code, said):
    name = first(theirs).name
    warm = (read_json(first(theirs) / "provenance.json") or {})["warm_start"]["signature"]
    folders = {"theirs": theirs.run(name), "ours": results.run(name), "ours, warm start": results.warm_start(warm)}
    with leased(folders[whose]):
        assert take_over(theirs, results) == code
    assert said in capsys.readouterr().out
    assert not (results.run(name) / "outcome.json").exists()


def test_what_begins_here_while_it_is_copied_stays(theirs, results, monkeypatch):
    name = first(theirs).name

    def begin(*_: object) -> None:
        write_json_atomic(results.run(name) / "settings.yaml", {})

    monkeypatch.setattr(housekeeping, "_check_content", begin)
    assert take_over(theirs, results) == 1
    assert not (results.run(name) / "journal.jsonl").exists()


@pytest.mark.parametrize(("recorded", "code", "said"), [(True, 0, "1 imported"), (False, 1, "was not recorded")])
def test_a_run_of_ones_own_reward_is_taken_over_by_the_content_that_it_had(
    recorded, code, said, results, tmp_path, capsys
):
    """The other machine's files are not here, and need not be."""
    file = tmp_path / f"taken_over_reward_{recorded}.py"
    file.write_text("def score(prompt, answer, completion):\n    return 1.0\n")
    theirs = Results.open(tmp_path / "theirs")
    settings = tiny.tiny_settings(rollout_steps=1, reward={"function": f"{file}:score", "weights": {"correct": 1.0}})
    assert run(settings, theirs)["outcome"] == "completed"
    provenance = first(theirs) / "provenance.json"
    if not recorded:
        write_json_atomic(
            provenance, {key: value for key, value in json.loads(provenance.read_text()).items() if key != "content"}
        )
    file.unlink()
    assert take_over(theirs, results) == code
    assert said in capsys.readouterr().out
    assert names(results.runs) == (names(theirs.runs) if recorded else set())


def test_wrong_folders(theirs, results, tmp_path, capsys):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "format.json").write_text('{"format": 0}')
    for folder, said in (
        (tmp_path / "nowhere", "is no results folder"),
        (tmp_path, "is no results folder"),
        (tmp_path / "old", "has format 0"),
        (results.root, "is the results folder itself"),
    ):
        assert take_over(Results(folder), results) == 2
        (sentence,) = capsys.readouterr().err.splitlines()
        assert said in sentence


def test_a_name_in_a_file_leads_nowhere_out_of_the_folder(theirs, results, capsys, tmp_path):
    folder = first(theirs)
    made = read_json(folder / "provenance.json") or {}
    shutil.copytree(theirs.warm_starts / made["warm_start"]["signature"], theirs.root / "dot_ssh")
    made["warm_start"]["signature"] = "../dot_ssh"
    write_json_atomic(folder / "provenance.json", made)
    (tmp_path / "plan").mkdir()
    for name, inner in (("outer", {"study": "../../../plan"}), ("parts", {"includes": ["../plan"]})):
        plan = {"study": name, "includes": [], "cells": []} | inner
        write_json_atomic(theirs.plan(name), plan)
    cell = {"variant": "v", "seed": 0, "signature": "../../plan"}
    write_json_atomic(theirs.plan("cells"), {"study": "cells", "includes": [], "cells": [cell]})
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(results.root)}
    assert take_over(theirs, results) == 1
    out = capsys.readouterr().out
    assert f"refused: run {folder.name}: " in out
    for said in ("'../dot_ssh' is not a warm start's signature", "'../../../plan'", "'../plan'", "'../../plan'"):
        assert said in out
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(results.root)} == before
    assert names(results.runs) == names(theirs.runs) - {folder.name}
    assert names(results.studies) == {"mine"}


def test_a_link_in_the_results_folder_leads_no_copy_out_of_it(theirs, results, capsys, tmp_path):
    outside = tmp_path / "home"
    outside.mkdir()
    for link in (results.run(first(theirs).name), results.plan("mine").parent):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(outside)
    assert take_over(theirs, results) == 1
    assert capsys.readouterr().out.count(f"to {outside}") == 2
    assert not list(outside.rglob("*"))
    assert len(names(results.runs)) == 2, "the link, and the other run"
