"""`grpolab prune-runs` and `runs import`: nothing that is asked for is deleted, nothing that is here is changed."""

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
from grpolab.studies import housekeeping
from grpolab.studies.housekeeping import prune as delete_unasked

NO_CLIP, WIDE = "    no_clip: [kernel=ratio]\n", "    wide: [epsilon=0.4]\n"
A, B, C = (digit * 16 for digit in "abc")


def names(folder):
    return {path.name for path in folder.glob("*") if path.is_dir()}


def content(results):
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


@pytest.fixture
def run_a(results, project):
    """The folder of a run that nobody asks for."""
    results.run(A).mkdir(parents=True)
    return results.run(A)


def prune(results, *options):
    return main(["prune-runs", *options, "--results", str(results.root)])


def test_the_runs_of_a_removed_level_are_found_and_only_they(project, fake_sweep, capsys):
    results, file = fake_sweep.results, project / "experiments" / "mine.yaml"
    fake_sweep("mine", seeds=[0])
    before = names(results.runs)
    file.write_text(file.read_text().replace(WIDE, ""))
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
    fake_sweep.results.plan("mine").unlink()
    before = content(fake_sweep.results)
    assert prune(fake_sweep.results, "--yes") == 0
    assert content(fake_sweep.results) == before


def test_a_run_that_somebody_works_on_is_never_touched(results, project):
    for name in (A, B, C):
        results.run(name).mkdir(parents=True)
        (results.run(name) / "journal.jsonl").write_text("")
    write_json_atomic(results.run(A) / ".lease-1", {**HERE.holder(), "host": "elsewhere"})
    results.warm_start(A).mkdir(parents=True)
    with leased(results.run(B)), leased(results.warm_start(A)):
        assert prune(results, "--yes") == 0
        assert (names(results.runs), names(results.warm_starts)) == ({A, B}, {A})


def test_warm_starts_go_with_the_last_run_that_needs_them(results, project):
    for name in (A, B):
        write_json_atomic(results.run(name) / "provenance.json", {"warm_start": {"signature": name}})
        write_json_atomic(results.warm_start(name) / "outcome.json", {})
    cell = {"variant": "v", "seed": 0, "signature": A}
    write_json_atomic(results.plan("adhoc"), {"study": "adhoc", "includes": [], "cells": [cell]})
    assert prune(results, "--yes") == 0
    assert (names(results.runs), names(results.warm_starts)) == ({A}, {A})


def test_what_begins_while_a_person_is_asked_stays(results, run_a):
    delete_unasked(results, lambda _question: Lease(run_a).attempt())
    assert names(results.runs) == {A}


def test_a_person_is_asked(results, run_a, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    for answer, left in (("", {A}), ("no", {A}), ("y", set())):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: answer)
        assert prune(results) == 0
        assert names(results.runs) == left


def test_wrong_requests_delete_nothing(results, run_a, project, capsys, monkeypatch):
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
    assert names(results.runs) == {A}


OLD = {"task": {"name": "jsonl", "train_file": "a", "evaluation_file": "b"}, "seed": 3}


def test_what_may_be_of_use_is_kept_and_said(results, project, capsys):
    """Runs of unrecorded content, damaged runs, and runs that a study with absent data may ask for."""
    recorded = {"task.train_file": {"sha256": "0" * 64}, "task.evaluation_file": {"sha256": "1" * 64}}
    for name, more in ((A, {}), (C, {"content": recorded})):
        write_json_atomic(results.run(name) / "settings.yaml", OLD)
        write_json_atomic(results.run(name) / "outcome.json", {"outcome": "completed"})
        write_json_atomic(results.run(name) / "provenance.json", {"warm_start": {"signature": name}, **more})
        write_json_atomic(results.warm_start(name) / "outcome.json", {})
    assert prune(results, "--yes") == 0
    assert f"runs/{A}: completed, jsonl, seed 3, 0.0 MB; kept" in capsys.readouterr().out
    assert (names(results.runs), names(results.warm_starts)) == ({A}, {A})
    results.run(B).mkdir()
    (results.run(B) / "settings.yaml").write_text("]")
    write_json_atomic(results.run(C) / "settings.yaml", OLD)
    file = project / "experiments" / "mine.yaml"
    study = yaml.safe_load(file.read_text())
    study["factors"]["task"] = {"mine": ["task=jsonl", "task.train_file=/no/a.jsonl", "task.evaluation_file=/no/b"]}
    study["overrides"] = [text for text in study["overrides"] if not text.startswith("task")]
    file.write_text(yaml.safe_dump(study))
    assert prune(results, "--yes") == 0
    said = capsys.readouterr().out
    assert f"runs/{B}: damaged" in said
    assert "another task.evaluation_file that is not on this machine" in said
    assert names(results.runs) == {A, B, C}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        *[(file, text) for file in ("settings.yaml", "provenance.json", "outcome.json") for text in ("]", "\0", "3")],
        ("provenance.json", '{"framework": "trl"}'),  # another trainer's, which no command makes again
    ],
)
def test_a_run_in_doubt_is_never_deleted(file, text, results, run_a):
    (run_a / file).write_text(text)
    before = content(results)
    assert prune(results, "--yes") == 0
    assert content(results) == before


# --- runs import ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    """Another machine's results: two real runs with a warm start each, and their plan."""
    results, cells = Results.open(tmp_path_factory.mktemp("machine")), []
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


@pytest.fixture
def take_over(theirs, results, capsys):
    """Import; return the exit code and what was said."""

    def take(source=theirs):
        code = main(["runs", "import", str(source.root), "--results", str(results.root)])
        out, errors = capsys.readouterr()
        return code, out + errors

    return take


def first(results):
    return min(results.runs.iterdir())


def warm_start_of(folder):
    return (read_json(folder / "provenance.json") or {})["warm_start"]["signature"]


def counts(results, capsys):
    assert main(["status", "mine", "--json", "--results", str(results.root)]) == 0
    return json.loads(capsys.readouterr().out)["mine"]["states"]


def check_refused(take_over, theirs, results, says):
    """The first run is refused by name, and the other one comes."""
    name = first(theirs).name
    code, out = take_over()
    assert code == 1
    assert f"refused: run {name}: " in out
    assert says in out
    assert names(results.runs) == names(theirs.runs) - {name}, "the other one came, and no half of this one"
    return out


def test_runs_are_taken_over_whole_and_once(theirs, results, take_over, capsys):
    write_json_atomic(theirs.run("f" * 16) / "settings.yaml", {})  # not finished
    (first(theirs) / "journal.arrow").write_bytes(b"other numbers")  # a cache is made anew, and not believed
    code, out = take_over()
    assert (code, "2 imported, 1 left there without a result" in out) == (0, True)
    skipped = ("f" * 16, "journal.arrow")
    expected = {name: data for name, data in content(theirs).items() if not any(part in name for part in skipped)}
    assert content(results) == expected
    assert counts(results, capsys) == {"completed": 2}
    code, out = take_over()
    assert (code, "2 here already" in out) == (0, True)
    assert content(results) == expected


def test_copying_folders_by_hand_merges_two_machines(theirs, results, take_over, capsys):
    for folder in (theirs.runs, theirs.warm_starts, theirs.studies):
        shutil.copytree(folder, results.root / folder.name, dirs_exist_ok=True)
    assert counts(results, capsys) == {"completed": 2}
    assert take_over()[0] == 0


def test_the_runs_may_lie_on_another_disk(theirs, results, take_over, tmp_path):
    (tmp_path / "disk").mkdir()
    results.runs.symlink_to(tmp_path / "disk")
    assert take_over()[0] == 0
    assert names(tmp_path / "disk") == names(theirs.runs)


def test_the_fingerprint_without_torch_is_that_of_the_policy(tmp_path):
    policy = tiny.tiny_policy()
    save_weights(tmp_path / "policy.safetensors", policy.weights())
    assert weights_sha256(tmp_path / "policy.safetensors") == policy.fingerprint()


def flip(file):
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)


def truncate(file):
    file.write_bytes(file.read_bytes()[:-4])


def edit(old, new):
    def change(file):
        assert old in file.read_text()
        file.write_text(file.read_text().replace(old, new))

    return change


@pytest.mark.parametrize(
    ("name", "spoil", "says"),
    [
        ("journal.jsonl", flip, "journal_sha256"),
        ("journal.jsonl", truncate, "journal_sha256"),
        ("policy.safetensors", flip, "policy_sha256"),
        ("policy.safetensors", truncate, "policy_sha256"),
        ("settings.yaml", edit("beta: 0.0", "beta: 0.5"), "its settings.yaml is that of run"),
        ("settings.yaml", edit("beta: 0.0", "- ]"), "its settings.yaml cannot be read"),
        ("provenance.json", edit(f'_version": {RESULTS_VERSION}', '_version": 9'), "results_version is 9"),
        ("../../warm_starts/{warm}/policy.safetensors", flip, "policy.safetensors has not the weights"),
        ("../../warm_starts/{warm}/outcome.json", edit('"sha256": "', '"sha256": "0'), "(sha256)"),
    ],
)
def test_a_damaged_run_is_refused_by_name(theirs, results, take_over, name, spoil, says):
    folder = first(theirs)
    spoil(folder / name.format(warm=warm_start_of(folder)))
    check_refused(take_over, theirs, results, says)


BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))


@pytest.mark.parametrize(
    ("name", "odd", "says"),
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
        ("a/b/c/d/e", b"", "deeper than any file"),
        ("../../warm_starts/{warm}/policy.safetensors", "../../../secret", "policy.safetensors is a link"),
        ("../../warm_starts/{warm}", "../../elsewhere", "is a link"),
        ("", "../../elsewhere", "is a link"),
    ],
)
def test_what_leads_elsewhere_or_never_ends_spoils_one_run(theirs, results, take_over, tmp_path, name, odd, says):
    """A link to a secret, a loop, a pipe, an alias bomb: the other run comes, within seconds."""
    (tmp_path / "secret").write_text("secret")
    folder = first(theirs)
    place = Path(os.path.normpath(folder / name.format(warm=warm_start_of(folder))))
    if place.is_dir():
        shutil.move(place, tmp_path / "elsewhere")
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    if odd is None:
        os.mkfifo(place)
    else:
        place.write_bytes(odd) if isinstance(odd, bytes) else place.symlink_to(odd)
    started = time.monotonic()
    check_refused(take_over, theirs, results, says)
    assert time.monotonic() - started < 10
    assert b"secret" not in content(results).values()


def test_a_link_in_place_of_all_runs_is_not_followed(theirs, results, take_over, tmp_path):
    theirs.runs.rename(tmp_path / "elsewhere")
    theirs.runs.symlink_to(tmp_path / "elsewhere")
    code, out = take_over()
    assert (code, out.count("is a link")) == (1, 2)
    assert not names(results.runs)


@pytest.mark.parametrize("odd", ["{}", '{"study": "other", "includes": [], "cells": []}', "[" * 100_000, None, "link"])
def test_a_plan_that_is_none_is_not_taken_over(theirs, results, take_over, tmp_path, odd):
    plan = theirs.plan("mine")
    plan.unlink()
    if odd is None:
        os.mkfifo(plan)
    elif odd == "link":
        write_json_atomic(tmp_path / "secret", {"study": "mine", "includes": [], "cells": []})
        plan.symlink_to(tmp_path / "secret")
    else:
        plan.write_text(odd)
    code, out = take_over()
    assert (code, "refused: study mine: " in out, "2 imported" in out) == (1, True, True)
    assert not results.plan("mine").exists()


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ("run", "has another journal_sha256; it stays"),
        ("warm start", "differs from the one here"),
        ("begun", "is begun"),
    ],
)
def test_another_one_of_the_same_signature_is_a_conflict_and_stays(theirs, results, take_over, which, says):
    folder = first(theirs)
    here, warm = results.run(folder.name), warm_start_of(folder)
    if which == "run":
        write_json_atomic(here / "outcome.json", {**(read_json(folder / "outcome.json") or {}), "journal_sha256": "0"})
    elif which == "begun":
        write_json_atomic(here / "settings.yaml", {})
    else:
        made = read_json(theirs.warm_start(warm) / "outcome.json") or {}
        write_json_atomic(results.warm_start(warm) / "outcome.json", {**made, "sha256": "0", "steps": 0})
    before = content(results)
    code, out = take_over()
    assert (code, says in out) == (1, True)
    assert before.items() <= content(results).items(), "nothing was overwritten"


@pytest.mark.parametrize(
    ("whose", "code", "says"),
    [("theirs", 0, "1 left there without a result"), ("ours", 1, "is begun"), ("ours, warm start", 1, "is begun here")],
)
def test_what_somebody_works_on_is_neither_taken_nor_replaced(theirs, results, take_over, whose, code, says):
    name, warm = first(theirs).name, warm_start_of(first(theirs))
    folders = {"theirs": theirs.run(name), "ours": results.run(name), "ours, warm start": results.warm_start(warm)}
    with leased(folders[whose]):
        found, out = take_over()
    assert (found, says in out) == (code, True)
    assert not (results.run(name) / "outcome.json").exists()


def test_what_begins_here_while_it_is_copied_stays(theirs, results, take_over, monkeypatch):
    here = results.run(first(theirs).name)
    begin = lambda *_: write_json_atomic(here / "settings.yaml", {})  # noqa: E731
    monkeypatch.setattr(housekeeping, "_find_changes", begin)
    assert take_over()[0] == 1
    assert not (here / "journal.jsonl").exists()


@pytest.mark.parametrize(("recorded", "code", "says"), [(True, 0, "1 imported"), (False, 1, "was not recorded")])
def test_a_run_of_ones_own_reward_is_taken_over_by_the_content_that_it_had(
    recorded, code, says, results, take_over, tmp_path
):
    """The other machine's files are not here, and need not be."""
    file = tmp_path / f"taken_over_reward_{recorded}.py"
    file.write_text("def score(prompt, answer, completion):\n    return 1.0\n")
    source = Results.open(tmp_path / "source")
    settings = tiny.tiny_settings(rollout_steps=1, reward={"function": f"{file}:score", "weights": {"correct": 1.0}})
    assert run(settings, source)["outcome"] == "completed"
    provenance = first(source) / "provenance.json"
    known = json.loads(provenance.read_text())
    if not recorded:
        del known["content"]
        write_json_atomic(provenance, known)
    file.unlink()
    found, out = take_over(source)
    assert (found, says in out) == (code, True)
    assert names(results.runs) == (names(source.runs) if recorded else set())


def test_wrong_folders(results, take_over, tmp_path):
    write_json_atomic(tmp_path / "old" / "format.json", {"format": 0})
    none, old, itself = "is no results folder", "has format 0", "is the results folder itself"
    wrong = {tmp_path / "nowhere": none, tmp_path: none, tmp_path / "old": old, results.root: itself}
    for folder, says in wrong.items():
        code, sentence = take_over(Results(folder))
        assert (code, sentence.count("\n"), says in sentence) == (2, 1, True)


def test_a_name_in_a_file_leads_nowhere_out_of_the_folder(theirs, results, take_over, tmp_path):
    folder = first(theirs)
    made = read_json(folder / "provenance.json") or {}
    shutil.copytree(theirs.warm_starts / made["warm_start"]["signature"], theirs.root / "dot_ssh")
    made["warm_start"]["signature"] = "../dot_ssh"
    write_json_atomic(folder / "provenance.json", made)
    (tmp_path / "plan").mkdir()
    cell = {"variant": "v", "seed": 0, "signature": "../../plan"}
    odd = {"outer": {"study": "../../../plan"}, "parts": {"includes": ["../plan"]}, "cells": {"cells": [cell]}}
    for name, inner in odd.items():
        write_json_atomic(theirs.plan(name), {"study": name, "includes": [], "cells": []} | inner)
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(results.root)}
    out = check_refused(take_over, theirs, results, "'../dot_ssh' is not a warm start's signature")
    assert all(path in out for path in ("'../../../plan'", "'../plan'", "'../../plan'"))
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(results.root)} == before
    assert names(results.studies) == {"mine"}


def test_a_link_in_the_results_folder_leads_no_copy_out_of_it(theirs, results, take_over, tmp_path):
    outside = tmp_path / "home"
    outside.mkdir()
    for link in (results.run(first(theirs).name), results.plan("mine").parent):
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(outside)
    code, out = take_over()
    assert (code, out.count(f"to {outside}")) == (1, 2)
    assert not list(outside.rglob("*"))
    assert len(names(results.runs)) == 2, "the link, and the other run"
