"""Studies: every file of experiments/ expands, seeds and overrides apply, and nonsense is refused with a reason."""

import subprocess
import sys

import pytest
import yaml

from grpolab.errors import RequestError
from grpolab.paths import plain, project_root
from grpolab.report.plans import read_plan
from grpolab.studies.command_line import cell_of, expand_multirun
from grpolab.study_names import available
from grpolab.sweep.compose import Composer, compose
from grpolab.sweep.plan import plans
from grpolab.sweep.study import Collection, load

STUDY = """
question: What?
factors:
  clip: {narrow: [epsilon=0.1], wide: [epsilon=0.3]}
  task: {addition: [task=addition], sorting: [task=sorting]}
compare: clip
baseline: narrow
seeds: 2
primary_metric: eval/accuracy_expected
"""
VARIANTS = ["narrow/addition", "narrow/sorting", "wide/addition", "wide/sorting"]
BOMB = "\n".join(["b0: &b0 [x]", *(f"b{i}: &b{i} [{', '.join([f'*b{i - 1}'] * 9)}]" for i in range(1, 12))])


@pytest.mark.parametrize(
    "file", sorted((project_root() / "results/reference/plans").glob("*.json")), ids=lambda f: f.stem
)
def test_the_committed_plans_have_the_arms_of_the_study_files(file):
    """An arm that is renamed in a study is renamed in what was committed of it, and in what its hypotheses compare."""
    plan, study = read_plan(file), load(file.stem)
    if plan["includes"]:
        return
    assert plan["factors"] == {factor: list(levels) for factor, levels in study.factors.items()}
    assert {cell["variant"] for cell in plan["cells"]} == {"/".join(cell["levels"].values()) for cell in plan["cells"]}
    named = {arm for claim in plan["hypotheses"] for arm in ((claim["contrast"] or {}).values())} - {None}
    assert named <= {*plan["factors"][plan["compare"]]}
    if file.stem not in ("kl_estimators", "overlong", "overlong_rates"):  # kl: none; rule: none
        assert "none" not in plan["factors"][plan["compare"]], "of what? no_clip, no_cap, ..."


@pytest.fixture
def write_study(tmp_path, monkeypatch):
    """A project of one's own, with the real conf/ and the studies that are written."""
    (tmp_path / "conf").symlink_to(Composer().conf)
    (tmp_path / "experiments").mkdir()
    monkeypatch.chdir(tmp_path)

    def write(text=STUDY, name="mine", **changes):
        text = yaml.safe_dump(yaml.safe_load(text) | changes) if changes else text
        (tmp_path / "experiments" / f"{name}.yaml").write_text(text)
        return name

    return write


def problems_of(name, *overrides):
    with pytest.raises(RequestError) as caught:
        plans(name, overrides)
    return "\n".join(caught.value.problems)


@pytest.mark.slow
@pytest.mark.parametrize("name", available())
def test_every_study_expands(name):
    for plan in plans(name, seeds=[0]):
        assert plan.cells or isinstance(plan.study, Collection)
        assert len({(cell.variant, cell.settings.seed) for cell in plan.cells}) == len(plan.cells)


def test_cells_are_levels_times_seeds(write_study):
    (plan,) = plans(write_study(), ["learning_rate=1e-3"], seeds=[5, 9])
    cells = [(cell.variant, cell.settings.seed) for cell in plan.cells]
    assert cells == [(variant, seed) for variant in VARIANTS for seed in (5, 9)]
    assert {cell.settings.learning_rate for cell in plan.cells} == {1e-3}
    assert len({cell.signature for cell in plan.cells}) == 8


def test_plan_holds_what_the_report_needs(write_study):
    name = write_study(STUDY.replace("0.3", "0.3, epsilon_high=.inf"))
    document = plain(plans(name, ["rollout_steps=7"])[0].document("now", "abc"))
    assert document["format"] == 1
    assert document["factors"] == {"clip": ["narrow", "wide"], "task": ["addition", "sorting"]}
    cell = document["cells"][-1]
    assert cell["levels"] == {"clip": "wide", "task": "sorting"}
    assert (cell["seed"], cell["rollout_steps"], cell["settings"]["task"]) == (1, 7, "sorting")
    assert cell["settings"]["epsilon_high"] == "inf"
    assert document["stability"]["collapse_drop"] == 0.1


def test_skip_leaves_combinations_out(write_study):
    (plan,) = plans(write_study(skip=[{"clip": "wide", "task": "sorting"}]))
    assert {cell.variant for cell in plan.cells} == set(VARIANTS[:3])


def test_a_level_may_say_something_else_to_each_arm(write_study):
    level = "range: {tight: {narrow: [delta=2], wide: [delta=3]}}"
    study = load(write_study(STUDY.replace("compare:", f"  {level}\ncompare:")))
    overrides = {variant["clip"]: study.overrides_of(variant) for variant in study.variants()}
    assert (overrides["narrow"][-1], overrides["wide"][-1]) == ("delta=2", "delta=3")
    write_study(STUDY.replace("compare:", f"  {level.replace(', wide: [delta=3]', '')}\ncompare:"))
    said = "factors.range.tight must be a list of overrides, or one for each of narrow, wide"
    assert said in problems_of("mine")


def test_levels_may_be_numbers(write_study):
    name = write_study(STUDY.replace("narrow:", "1:").replace("wide:", "2:").replace("baseline: narrow", "baseline: 1"))
    assert plans(name)[0].study.baseline == "1"


def test_equal_variants_are_refused_unless_declared(write_study):
    same = STUDY.replace("0.3", "0.1")
    assert "narrow/addition and wide/addition have equal settings" in problems_of(write_study(same))
    (plan,) = plans(write_study(same + "placebo: [[narrow, wide]]"))
    assert (len(plan.cells), len({cell.signature for cell in plan.cells})) == (8, 4)


def test_a_study_that_cannot_clip_is_refused_with_the_reason(write_study):
    found = problems_of(write_study(), "num_iterations=1")
    assert "clipping can act in no cell" in found
    assert "exactly 1" in found
    # Surrogates that read no clip range are not asked to clip.
    plans(write_study(STUDY.replace("epsilon=0.1", "kernel=sapo").replace("epsilon=0.3", "kernel=vespo")))
    # A control arm with one update per batch is welcome.
    plans(write_study(STUDY.replace("[epsilon=0.1]", "[epsilon=0.1, num_iterations=1]")))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("compare: clip", "compare: clp", "compare=clp is unknown (did you mean clip?)"),
        ("seeds: 2", "sedes: 2", "sedes is unknown (did you mean seeds?)"),
        ("question: What?", "", "question is missing"),
        ("[epsilon=0.1]", "epsilon=0.1", "it must be a list"),
        ("narrow: [epsilon=0.1]", "a/b: [epsilon=0.1]", "'a/b' is no name"),
        ("epsilon=0.1", "epsilom=0.1", "epsilom is unknown (did you mean epsilon"),
        ("epsilon=0.1", "seed=1", "sets its seeds itself"),
        ("seeds: 2", "seeds: 2\nskip: [{clip: x}]", "skip.clip=x is unknown"),
        ("seeds: 2", "seeds: 2\nseeds: 3", "duplicate key"),
        ("seeds: 2", "seeds: [1, 2, 1]", "1 stands twice in [1, 2, 1]"),
        ("seeds: 2", "seeds: 2\nfigures: [F1, F999]", "figures=F999 is unknown"),
        ("seeds: 2", "seeds: 2\nfigures: [F1, F1]", "F1 stands twice"),
        ("narrow: [epsilon=0.1]", "1: [], '1': []", "duplicate key 1"),
        ("question: What?", "question: &a [*a]", "alias of what it stands in"),
        ("question: What?", f"{BOMB}", "more than 100000 values"),
    ],
)
def test_a_wrong_study_file_is_refused(write_study, old, new, said):
    assert said in problems_of(write_study(STUDY.replace(old, new)))


def test_a_study_of_more_variants_than_anybody_trains_is_refused(write_study):
    many = {f"f{i}": {f"l{j}": [f"epsilon=0.{i}{j}"] for j in range(30)} for i in range(9)}
    with pytest.raises(RequestError, match="at most 10000"):
        load(write_study(factors=many, compare="f0", baseline="l0"))


def test_unknown_study_names_the_near_one():
    with pytest.raises(RequestError, match=r"clip_rang is unknown .*clip_range"):
        load("clip_rang")


def test_a_collection_names_studies_that_exist(write_study):
    write_study("question: q\nincludes: [mine]", "all")
    write_study()
    assert [plan.study.name for plan in plans("all", seeds=[3])] == ["mine", "all"]
    write_study("question: q\nincludes: [mine, all, nobody]", "all")
    found = problems_of("all")
    assert "includes=all has includes of its own" in found
    assert "study nobody is unknown" in found


PLANNING = """
import sys, time
from grpolab.sweep.plan import plans
(plan,) = plans("big")
print(len({cell.signature for cell in plan.cells}), "torch" in sys.modules, time.process_time())
"""


@pytest.mark.slow
def test_a_hundred_variants_of_ten_seeds_are_planned_within_seconds(write_study):
    """Read, composed, validated and signed by a process of its own, its start included; seconds are of CPU time."""
    factors = {"a": {f"a{i}": [f"epsilon={0.1 + i / 100}"] for i in range(10)}}
    factors["b"] = {f"b{i}": [f"learning_rate={1e-4 * (i + 1)}", "loss_type=gspo"] for i in range(10)}
    write_study(name="big", factors=factors, compare="a", baseline="a0", seeds=10)
    done = subprocess.run([sys.executable, "-c", PLANNING], capture_output=True, text=True, check=True)
    cells, torch_is_there, seconds = done.stdout.split()
    assert (cells, torch_is_there) == ("1000", "False")
    assert float(seconds) < 6


def test_multirun_is_a_study():
    plan = expand_multirun(["epsilon=0.1,0.2", "task=addition,sorting", "seed=range(1,3)", "rollout_steps=7"])
    assert plan.study.compare == "epsilon"
    variants = [f"epsilon={epsilon}/task={task}" for epsilon in (0.1, 0.2) for task in ("addition", "sorting")]
    assert [cell.variant for cell in plan.cells[::2]] == variants
    assert plan.seeds == [1, 2]
    assert all(cell.settings.rollout_steps == 7 for cell in plan.cells)


def test_a_custom_run_has_a_short_label_and_different_ones_have_different_labels():
    def label(*overrides):
        return cell_of(compose(overrides), overrides).variant

    assert label() == "defaults"
    given = ("task=sorting", "seed=3", "machine.threads=2", "dialect=verl/dppo_tv")
    assert label(*given) == "task=sorting,dialect=verl_dppo_tv"
    folder = "/some/where/that/is/a/long/way/from/here"
    many = ["task=jsonl", f"task.train_file={folder}/train.jsonl", f"task.evaluation_file={folder}/test.jsonl"]
    names = [label(*many), label(*[text.replace("here", "there") for text in many]), label(*many, "epsilon=0.1")]
    assert names[0].startswith("task=jsonl,task.train_file=train.jsonl,+1~")
    assert len(set(names)) == 3
    assert max(map(len, names)) <= 70


def test_multirun_without_clipping_is_refused_only_where_it_asks_about_clipping():
    with pytest.raises(RequestError, match="clipping can act in no cell"):
        expand_multirun(["epsilon=0.1,0.2", "num_iterations=1"])
    assert len(expand_multirun(["learning_rate=1e-4,1e-3", "num_iterations=1"]).cells) == 2


def test_values_of_a_sweep_that_differ_in_a_folder_have_different_names():
    files = [f"/a/long/path/to/a/folder/called/{name}/test.jsonl" for name in ("one", "two")]
    given = ["task=jsonl", "task.train_file=train.jsonl", f"task.evaluation_file={','.join(files)}"]
    first, second = (cell.variant for cell in expand_multirun(given).cells)
    assert first != second


def test_a_single_run_has_the_signature_that_the_study_gives_it():
    cell = cell_of(compose(["task=sorting", "seed=2"]), [])
    assert cell.signature in {cell.signature for plan in plans("clip_range") for cell in plan.cells}
