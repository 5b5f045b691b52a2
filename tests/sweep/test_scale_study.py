"""The studies of scale: one model of a size in all of them, at the rate that was found, and dearer the larger it is."""

import pytest

from grpolab.paths import find_file
from grpolab.sweep.plan import plans
from grpolab.sweep.study import load
from grpolab.sweep.tuning.settings import read_tuned

STUDIES = ("scale", "scale_length", "rates_scale")


def test_a_size_is_the_same_model_in_all_of_them_at_the_learning_rate_that_was_found():
    levels = {name: load(name).factors["size"] for name in STUDIES}
    rates = {
        size: [text for text in level if text.startswith("learning_rate=")] for size, level in levels["scale"].items()
    }
    models = {size: [text for text in level if text not in rates[size]] for size, level in levels["scale"].items()}
    assert models == levels["rates_scale"]
    assert levels["scale_length"].items() <= levels["scale"].items()
    assert rates.pop("0.13M") == [], "the rate of each task, and the runs of other studies"
    if find_file("conf", "tuned", "rates_scale.yaml").is_file():
        tuned = read_tuned("rates_scale").arms
        assert rates == {size: tuned[size].overrides for size in rates}


@pytest.mark.parametrize("of", ["cost", "warm_start_cost"])
def test_a_larger_model_is_estimated_dearer(of):
    """Measured on sorting: 4.7 and 17 times the tiny model's time."""
    costs = {
        cell.levels["size"]: getattr(cell, of)
        for cell in plans("scale", seeds=[0])[0].cells
        if cell.levels["ratio"] == "token" and cell.levels["length"] == "11"
    }
    assert 3.5 < costs["1M"] / costs["0.13M"] < 6
    assert 13 < costs["5M"] / costs["0.13M"] < 25


def test_a_plan_names_a_pretrained_model_for_the_report():
    (named,), (tiny,) = (plans(study, seeds=[0]) for study in ("pretrained", "smoke"))
    assert {cell.document()["settings"]["model"] for cell in named.cells} == {"smollm2-135m-instruct"}
    assert not any("model" in cell.document()["settings"] for cell in tiny.cells)
