"""The studies of scale: levels are what they are called, tuned values are those found, and runs are shared."""

import pytest

from grpolab.grpo.loading import make_policy
from grpolab.report.figures.settings import parse_level
from grpolab.sweep.plan import plans
from grpolab.sweep.study import load
from grpolab.sweep.tuning.settings import read_tuned, tuned_file
from grpolab.tasks import make_task

STUDIES = ("scale", "scale_length", "rates_scale")


@pytest.fixture(scope="module")
def cells():
    """The cells of each study with one seed."""
    return {name: plans(name, seeds=[0])[0].cells for name in STUDIES}


def test_a_size_has_the_parameters_and_a_length_the_tokens_that_it_says(cells):
    for cell in {str(cell.levels.get("size")): cell for cell in cells["scale"]}.values():
        policy = make_policy(cell.settings, make_task(cell.settings.task))
        parameters = sum(weights.numel() for weights in policy.weights().values())
        assert parameters == pytest.approx(parse_level(cell.levels["size"]), rel=0.06)
    for cell in [*cells["scale"], *cells["scale_length"]]:  # the longest of written_addition has a token more
        assert cell.settings.max_completion_length - parse_level(cell.levels["length"]) in (0, 1)


def test_a_size_is_the_same_model_in_all_of_them_at_the_learning_rate_that_was_found():
    levels = {name: load(name).factors["size"] for name in STUDIES}
    rates = {
        size: [text for text in level if text.startswith("learning_rate=")] for size, level in levels["scale"].items()
    }
    models = {size: [text for text in level if text not in rates[size]] for size, level in levels["scale"].items()}
    assert models == levels["rates_scale"]
    assert levels["scale_length"].items() <= levels["scale"].items()
    assert rates.pop("0.13M") == [], "the rate of each task, and the runs of other studies"
    if tuned_file("rates_scale").is_file():
        tuned = read_tuned("rates_scale").arms
        assert rates == {size: tuned[size].overrides for size in rates}


def test_the_smallest_size_shares_the_runs_of_other_studies(cells):
    known = {
        cell.signature: (name, cell.variant)
        for name in ("ratio_level", "gspo_range", "clip_range", "num_iterations", "gspo_length")
        for cell in plans(name, seeds=[0])[0].cells
    }
    small = {cell.variant: cell for name in STUDIES[:2] for cell in cells[name] if cell.levels["size"] == "0.13M"}
    alone = {variant for variant, cell in small.items() if cell.signature not in known}
    assert alone == {f"{arm}/0.13M/{length}" for arm in ("sequence", "no_clip", "one_pass") for length in ("24", "48")}


@pytest.mark.parametrize("of", ["cost", "warm_start_cost"])
def test_a_larger_model_is_estimated_dearer(cells, of):
    """Measured on sorting: 4.7 and 17 times the tiny model's time."""
    costs = {
        cell.levels["size"]: getattr(cell, of)
        for cell in cells["scale"]
        if cell.levels["ratio"] == "token" and cell.levels["length"] == "11"
    }
    assert 3.5 < costs["1M"] / costs["0.13M"] < 6
    assert 13 < costs["5M"] / costs["0.13M"] < 25


def test_a_plan_names_a_pretrained_model_for_the_report():
    (named,), (tiny,) = (plans(study, seeds=[0]) for study in ("pretrained", "smoke"))
    assert {cell.document()["settings"]["model"] for cell in named.cells} == {"smollm2-135m-instruct"}
    assert not any("model" in cell.document()["settings"] for cell in tiny.cells)
