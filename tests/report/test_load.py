"""A study as tables: what is joined, what is known to be missing, what a diverged run becomes, and the reference."""

import json
import shutil

import pandas as pd
import pytest
from report_results import HYPOTHESES, ROLLOUT_STEPS, cells_of, change, rewrite, whole_of, write_run, write_study

from grpolab.errors import RequestError
from grpolab.paths import Results, git, project_root, write_json_atomic
from grpolab.report import page
from grpolab.report.claims import decide
from grpolab.report.export import export_reference
from grpolab.report.figures import FIGURES, draw
from grpolab.report.load import load, read_all, read_journal
from grpolab.report.measures import stability_table
from grpolab.report.plans import read_plan
from grpolab.report.tables import tables
from grpolab.vocabulary import COMPLETED, FAILED, MISSING, RESULTS

SMALL = {"factors": {"clip": ["symmetric", "no_clip"], "task": ["addition"]}, "figures": ["F2", "F4"]}
MOST_COMMITTED = 9_000_000  # bytes under results/
RATIO = {"ratio": ["token", "sequence"], "task": ["addition"]}


@pytest.fixture
def results(tmp_path) -> Results:
    return write_study(tmp_path / "results")


def cell_of(results: Results, variant: str, seed: int) -> dict:
    return next(cell for cell in cells_of(results) if (cell["variant"], cell["seed"]) == (variant, seed))


def outcome_of(results: Results, variant: str, seed: int):
    return results.run(cell_of(results, variant, seed)["signature"]) / "outcome.json"


def test_every_record_knows_its_cell(results):
    study = load(results, "clip_range")[-1]
    assert len(study.cells) == 18
    assert len(study.updates) == 18 * ROLLOUT_STEPS * 2
    assert study.facets == ["addition/healthy", "addition/stressed"]
    assert set(study.updates["arm"]) == set(study.arms) == {"symmetric", "clip_higher", "no_clip"}
    one = study.rollouts.iloc[-1]
    assert one["variant"] == f"{one['arm']}/{one['factor/task']}/{one['factor/regime']}"
    assert set(study.cells["setting/epsilon_high"]) == {0.2, 0.28}


def test_a_cell_without_outcome_is_missing_and_a_failed_one_is_not_read(results):
    lost, failed = (cell_of(results, "no_clip/addition/healthy", seed) for seed in (1, 2))
    (results.run(lost["signature"]) / "outcome.json").unlink()
    write_run(results, failed, outcome=FAILED)
    study = load(results, "clip_range")[-1]
    outcome = study.cells.set_index("signature")["outcome"]
    assert (outcome[lost["signature"]], outcome[failed["signature"]]) == (MISSING, FAILED)
    assert len(study.absent) == 2
    assert not {lost["signature"], failed["signature"]} & set(study.updates["signature"])


@pytest.mark.parametrize("outcome", RESULTS)
def test_a_run_that_broke_off_is_carried_forward_to_its_planned_end(outcome, results):
    """One that completed before its last planned step has used up a budget, and its own evaluations are its score."""
    cell = cell_of(results, "no_clip/addition/healthy", 0)
    write_run(results, cell, outcome=outcome, last_step=6)
    study = load(results, "clip_range")[-1]
    assert (len(study.done), len(study.absent)) == (len(study.cells), 0)
    evaluations = study.evaluations
    own = evaluations[evaluations["signature"] == cell["signature"]].set_index("rollout_step")
    later = [] if outcome == COMPLETED else [9, 12]
    assert own.index.tolist() == [0, 3, 6, *later]
    assert own["carried"].tolist() == [False, False, False, *(True for _ in later)]
    assert own["completions"].tolist() == [128 * step for step in own.index]
    assert own.loc[9:, "eval/accuracy_expected"].eq(own.loc[6, "eval/accuracy_expected"]).all()
    assert not evaluations.loc[evaluations["signature"] != cell["signature"], "carried"].any()


def test_a_shared_run_is_parsed_once(results, monkeypatch):
    write_json_atomic(results.plan("again"), json.loads(results.plan("clip_range").read_text()) | {"study": "again"})
    whole_of(results, "both", ["clip_range", "again"])
    read, place = [], "grpolab.report.load.read_journal"
    monkeypatch.setattr(place, lambda folder, *of: (read.append(folder.name), read_journal(folder, *of))[1])
    parts = load(results, "both")
    assert [part.name for part in parts] == ["clip_range", "again", "both"]
    assert len(parts[0].updates) == len(parts[1].updates) > 0
    assert sorted(read) == sorted({cell["signature"] for cell in cells_of(results)})


def test_an_unplanned_study_is_refused_with_what_to_do(results, tmp_path):
    with pytest.raises(RequestError, match=r"study nothing is not planned in .*: (planned are|none is)"):
        load(results, "nothing")
    with pytest.raises(RequestError, match=r"study clip_rang is not planned in .* \(did you mean clip_range"):
        load(Results.open(tmp_path), "clip_rang")


@pytest.fixture
def reference(tmp_path) -> Results:
    """A small study as part of `reference`, and its export."""
    results = write_study(tmp_path / "results", seeds=2, **SMALL)
    whole_of(results, "reference", ["clip_range"], figures=["F9"])
    export_reference(results, "reference")
    return results


@pytest.fixture
def clone(reference, tmp_path) -> Results:
    """A fresh clone: the committed reference and nothing else."""
    clone = Results.open(tmp_path / "clone")
    shutil.copytree(reference.reference, clone.reference)
    return clone


def test_a_fresh_clone_redraws_the_reference_to_the_byte(reference, clone):
    page.write(reference, "reference")
    page.write(clone, "reference")
    here, there = (place.output("reference") for place in (reference, clone))
    written = [*here.glob("figures/**/*.*"), *here.glob("tables/**/*.*"), *here.glob("*.html"), here / "report.md"]
    assert len(written) == 2 * 3 + 4 * 3 + 3 + 1 + 1 + 1  # report, gallery; F9 lacks its table
    for path in written:
        file = path.relative_to(here)
        assert (there / file).read_bytes() == path.read_bytes(), file
    assert not clone.runs.exists()


@pytest.mark.slow
@pytest.mark.parametrize("figure", FIGURES)
def test_the_reference_holds_what_every_figure_draws(reference, clone, figure, tmp_path):
    here, there = (load(place, "reference")[0] for place in (reference, clone))
    files = [draw(study, figure)[1].write(tmp_path / f"{n}.json") for n, study in enumerate((here, there))]
    assert files[0].read_text() == files[1].read_text()


@pytest.mark.slow
def test_a_reference_that_keeps_the_shown_runs_whole_says_the_same_of_all(tmp_path):
    """Two studies, of which one has a figure that is shown: of the other updates and rollouts go."""
    results = write_study(tmp_path, seeds=6, figures=["F2"])
    condition = {"metric": "ratio/ess", "of": "token", "above": 0.5}
    claim = HYPOTHESES[0] | {"contrast": {"of": "sequence", "minus": "token"}, "provided": condition}
    write_study(tmp_path, "ratio_level", RATIO, figures=["F2"], hypotheses=[claim])
    whole_of(results, "both", ["clip_range", "ratio_level"], shown=["clip_range.F2"])

    def loaded():
        studies = load(results, "both")
        numbers = [table.numbers.to_csv() for study in studies[:2] for table in tables(study)]
        return studies, repr((decide(studies), numbers))

    before, said = loaded()
    export_reference(results, "both")
    export_reference(results, "ratio_level", append=True)  # whose runs are here still: nothing changes
    shutil.rmtree(results.runs)
    kept, said_of_kept = loaded()
    assert said_of_kept == said  # to the last digit
    assert set(kept[0].updates["seed"]) == {0, 1, 2, 3, 4}, "those of the first look"
    assert (len(kept[1].updates), len(kept[1].rollouts)) == (0, 0)
    assert kept[0].rollouts["reward/mean"].equals(before[0].rollouts["reward/mean"])
    assert set(kept[0].rollouts.dropna(subset="length/right_mean")["seed"]) == {0, 1, 2, 3, 4}
    write_study(tmp_path, "num_iterations", {"mu": ["1", "2"], "task": ["addition"]})
    export_reference(results, "num_iterations", append=True)
    shutil.rmtree(results.runs)
    assert load(results, "num_iterations")[0].updates.empty, "none of its figures is shown"
    assert len(load(results, "both")[0].updates) == len(kept[0].updates)
    drawn = page.write(results, "both").parent / "figures"
    assert {file.name for file in drawn.rglob("*.png")} == {"clip_range_clip_fraction.png", "verdicts.png"}


def test_a_reference_with_holes_is_refused(reference):
    outcome_of(reference, "no_clip/addition", 1).unlink()
    shutil.rmtree(reference.reference)
    with pytest.raises(RequestError, match="1 of 4 runs have no outcome yet: --append keeps the seeds that are"):
        export_reference(reference, "reference")


def test_what_took_days_on_machines_that_did_not_last_is_appended_seed_by_seed(tmp_path):
    """Four seeds in two sittings, whose run folders are gone after each, are what one sitting has."""
    small = SMALL | {"figures": ["F2"]}
    straight = write_study(tmp_path / "straight", seeds=4, **small)
    export_reference(straight, "clip_range")
    parts = write_study(tmp_path / "parts", seeds=3, **small)
    outcome_of(parts, "no_clip/addition", 2).unlink()
    export_reference(parts, "clip_range", append=True)
    kept = read_plan(parts.reference / "plans" / "clip_range.json")
    assert kept["seeds"] == [0, 1], "the third is not finished"
    assert {cell["seed"] for cell in kept["cells"]} == {0, 1}
    shutil.rmtree(parts.runs)
    write_study(parts.root, seeds=4, trained=False, **small)
    for cell in cells_of(parts):
        if cell["seed"] >= 2:
            write_run(parts, cell)
    whole, joined = (load(place, "clip_range")[-1] for place in (straight, parts))
    assert list(joined.cells["outcome"]) == list(whole.cells["outcome"])
    assert len(joined.evaluations) == len(whole.evaluations)
    export_reference(parts, "clip_range", append=True)
    shutil.rmtree(parts.runs)
    for table in ("outcomes", "updates", "evaluations"):
        frames = [pd.read_parquet(place.reference / f"{table}.parquet") for place in (straight, parts)]
        there, here = (frame.sort_values([*frame]).reset_index(drop=True) for frame in frames)
        pd.testing.assert_frame_equal(here, there, check_like=True)
    written = [sorted((page.write(place, "clip_range").parent / "tables").glob("*.csv")) for place in (straight, parts)]
    assert written[0]
    assert {file.name: file.read_text() for file in written[0]} == {file.name: file.read_text() for file in written[1]}


def test_a_committed_study_stays_where_none_of_its_new_seeds_is_finished(tmp_path):
    """A sweep of one seed replaces the plan; an export in the middle of it must not take the other seeds away."""
    results = write_study(tmp_path, seeds=2, **SMALL)
    write_study(tmp_path, "ratio_level", RATIO, seeds=1)
    export_reference(results, "clip_range")
    cells = [cell for cell in cells_of(results) if not cell["seed"]]
    new = [{**cell, "seed": 7, "signature": f"7{cell['signature'][1:]}"} for cell in cells]
    change(results.plan("clip_range"), cells=new, seeds=[7])
    with pytest.raises(RequestError, match="study=clip_range: no seed has an outcome in every variant yet"):
        export_reference(results, "clip_range", append=True)
    whole_of(results, "both", ["clip_range", "ratio_level"])
    export_reference(results, "both", append=True)
    both, clip_range = (read_plan(results.committed_plan(name)) for name in ("both", "clip_range"))
    assert (clip_range["seeds"], both["includes"]) == ([0, 1], ["clip_range", "ratio_level"])


def test_a_variant_with_another_setting_is_not_appended(tmp_path):
    results = write_study(tmp_path, seeds=1, **SMALL)
    export_reference(results, "clip_range")
    cells = cells_of(results)
    changed = [cell | {"seed": 1, "settings": cell["settings"] | {"learning_rate": 1.0}} for cell in cells]
    change(results.plan("clip_range"), cells=changed, seeds=[1])
    said = r"learning_rate=1\.0 in variant symmetric/addition, and 0\.00015 in the committed outcome"
    with pytest.raises(RequestError, match=said):
        export_reference(results, "clip_range", append=True)


def test_arms_that_share_their_runs_are_both_kept(tmp_path):
    results = write_study(tmp_path, seeds=2, placebo=[["symmetric", "no_clip"]], **SMALL)
    cells = cells_of(results)
    for cell, same in zip(cells[2:], cells[:2], strict=True):
        cell["signature"], cell["settings"] = same["signature"], same["settings"]
    change(results.plan("clip_range"), cells=cells)
    export_reference(results, "clip_range", append=True)
    export_reference(results, "clip_range", append=True)
    shutil.rmtree(results.runs)
    results.plan("clip_range").unlink()
    assert decide(load(results, "clip_range"))[-1].size == "bit-identical in 2 of 2 planned pairs"


def test_a_run_that_only_tunes_keeps_its_score_and_what_hypotheses_name(tmp_path):
    """`numbers` draw F27, so its study keeps no journals, although the figure is shown."""
    claims = [HYPOTHESES[0] | {"metric": "kl_old"}]
    results = write_study(tmp_path, seeds=[900, 1000, 2000], figures=["F27"], hypotheses=claims)
    whole_of(results, "both", ["clip_range"], shown=["clip_range.F27"])
    for journal in results.runs.glob("*/journal.jsonl"):
        rewrite(journal, journal.read_text().replace('"eval/', '"eval/pass_at_k": 0.5, "eval/'))
    before = load(results, "both")[0]
    export_reference(results, "both")
    shutil.rmtree(results.runs)
    kept = load(results, "both")[0]
    assert all(getattr(kept, table).empty for table in ("updates", "rollouts", "histograms", "timings"))
    tables = [stability_table(study).set_index(["variant", "seed"]) for study in (before, kept)]
    pd.testing.assert_frame_equal(*(table[["start", "final_score", "lost", "kl_old"]] for table in tables))
    assert set(tables[1]["entropy_last"].dropna().index.get_level_values("seed")) == {900, 2000}
    others = kept.evaluations.dropna(subset="eval/pass_at_k")
    assert (set(kept.evaluations["seed"]), set(others["seed"])) == ({900, 1000, 2000}, {900, 2000})


def test_the_committed_results_stay_small():
    root = project_root()
    if (files := git(root, "ls-files", "-z", "results")) is None:
        pytest.skip("no git: nobody can say which results are committed")
    total = sum((root / name).stat().st_size for name in files.split("\0") if name and (root / name).is_file())
    assert 0 < total < MOST_COMMITTED


def test_numbers_that_are_kept_of_a_run_are_those_of_the_metric_and_the_thresholds_that_are_asked(tmp_path):
    """Of its updates nothing is kept: what only they could tell is not known, and never 0."""
    results = write_study(tmp_path, seeds=1, **SMALL)
    export_reference(results, "clip_range")
    shutil.rmtree(results.runs)
    file = results.reference / "updates.parquet"
    pd.read_parquet(file).iloc[:0].to_parquet(file)
    kept = stability_table(load(results, "clip_range")[-1])
    assert kept["ratio_max"].notna().all()
    plan = read_plan(results.committed_plan("clip_range"))
    write_json_atomic(results.plan("clip_range"), {**plan, "primary_metric": "eval/accuracy_greedy"})
    assert not stability_table(load(results, "clip_range")[-1])["final_score"].equals(kept["final_score"])
    write_json_atomic(results.plan("clip_range"), {**plan, "stability": {**plan["stability"], "ratio_max": 1.01}})
    assert stability_table(load(results, "clip_range")[-1])["ratio_blow_up"].isna().all()


def test_an_export_of_another_program_is_not_appended_to(reference):
    file = reference.reference / "outcomes.parquet"
    pd.read_parquet(file).assign(lock_sha256="0" * 64).to_parquet(file)
    write_study(reference.root, factors=SMALL["factors"], seeds=3)
    shutil.rmtree(outcome_of(reference, "no_clip/addition", 0).parent)
    with pytest.raises(RequestError, match=r"the committed outcome would mix runs of lock_sha256 .*: without --append"):
        export_reference(reference, "clip_range", append=True)


def test_a_seed_is_not_half_of_this_machine_and_half_of_the_committed_one(tmp_path):
    """Runs of another kind of CPU are other draws: shown where a study is whole, and never beside the rest."""
    results = write_study(tmp_path, factors=SMALL["factors"])
    names = [cell["signature"] for cell in cells_of(results)]

    def trained_on(cpu):
        hardware = {"cpu": cpu, "cpu_capability": "AVX512", "mkl": "2024.2", "float32": cpu}
        for name in names:
            change(results.run(name) / "provenance.json", hardware=hardware)

    def kinds(outcomes):
        return {json.loads(hardware)["cpu"] for hardware in outcomes["hardware"]}

    trained_on("committed")
    export_reference(results, "clip_range")
    trained_on("here")
    assert kinds(read_all(results, names)["outcomes"]) == {"here"}
    shutil.rmtree(results.run(names[0]))
    mixed = read_all(results, names)
    assert kinds(mixed["outcomes"]) == {"committed"}
    assert sorted(mixed["outcomes"]["signature"]) == sorted(names)
    assert mixed["evaluations"].groupby("signature").size().nunique() == 1
    write_study(tmp_path, "own", {"clip": ["symmetric"], "task": ["sorting"]})
    extra = [cell["signature"] for cell in cells_of(results, "own")]
    both = read_all(results, [*names, *extra])["outcomes"]
    assert sorted(both["signature"]) == sorted([*names, *extra])  # what is not committed is of this machine
