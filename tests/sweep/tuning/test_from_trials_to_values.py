"""The whole way: trials of the tuner are what the report reads, and its values are what a study names."""

import yaml
from tuning_project import STUDY

from grpolab.paths import Results
from grpolab.report.tuning import page
from grpolab.report.tuning.trials import COMPLETE, load_trials
from grpolab.sweep.plan import plans


def test_values_of_the_best_trials_reach_the_study_that_names_them(project):
    project.write(trials=6, where={"values": "common"})
    factors = {**STUDY["factors"], "values": {"common": [], "tuned": ["tuned=mine"]}}
    evaluation = {key: value for key, value in STUDY.items() if key != "tuning"}
    study = project.folder / "experiments" / "mine.yaml"
    study.write_text(yaml.safe_dump({**yaml.safe_load(study.read_text()), "factors": factors}))
    (project.folder / "experiments" / "judged.yaml").write_text(yaml.safe_dump({**evaluation, "factors": factors}))

    assert project.tune() == 0
    tuning = load_trials(Results.open(project.root), "mine")
    budget = page.budget(tuning).numbers
    assert budget["trials"].tolist() == [6, 6]
    assert "Every arm had exactly its budget." in list(page.sentences(tuning))

    for name in ("judged", "mine"):  # the study that was tuned may itself name its values
        (plan,) = plans(name)
        cells = {cell.variant: cell.settings for cell in plan.cells}
        for row in budget.itertuples():
            (best,) = tuning.best(row.arm)
            trials = tuning.of(row.arm, COMPLETE).set_index("number")
            values = trials.loc[best, "values"]
            assert cells[f"{row.arm}/tuned"].learning_rate == values["learning_rate"]
            assert cells[f"{row.arm}/tuned"].epsilon == values["epsilon"]
            assert cells[f"{row.arm}/common"].learning_rate == 3e-4
            score = tuning.scored(row.arm, "final_score").set_index("number")["score"]
            assert score[best] == score.max() == row.score
