"""Two arms have two colours in MLflow's chart."""

from __future__ import annotations

import colorsys
from itertools import combinations
from pathlib import Path

import mlflow
from fake_runs import FakeRun, mirror, study, tracked

from grpolab.paths import Results
from grpolab.run.tracking.colours import HUES, PALETTE, colours, drawn, line_of

ARMS = ("symmetric", "clip_higher", "lower_only", "no_clip", "tight", "wide", "grpo", "dapo", "cispo")


def hue(colour: str) -> float:
    return 360 * colorsys.rgb_to_hls(*(int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)))[0]


def test_every_arm_is_drawn_in_its_own_colour(results: Results) -> None:
    """With the names alone, symmetric/addition/healthy and lower_only/addition/healthy are both blue."""
    plan = study(results, seeds=1, arms=ARMS)
    for cell in study(results, seeds=1, arms=ARMS)["cells"]:
        plan["cells"].append({**cell, "variant": f"{cell['variant']} 2", "levels": {**cell["levels"], "task": "b"}})
    found = colours(plan)
    for variant, colour in found.items():
        assert (name := line_of(variant, colour)).rstrip() == variant
        assert drawn(name) == colour
    of_task = [found[f"{arm}/addition"] for arm in ARMS]
    assert len({*of_task}) == len(ARMS)
    for first, second in combinations(of_task[:4], 2):
        assert 20 < abs(hue(first) - hue(second)) < 340, (first, second)


def test_the_palette_and_the_hash_are_those_of_the_installed_pages() -> None:
    """What is copied out of MLflow's pages: another version may draw otherwise."""
    (main,) = Path(mlflow.__path__[0], "server/js/build/static/js").glob("main.*.js")
    text = main.read_text()
    assert ",".join(f'"{colour}"' for colour in PALETTE) in text
    assert "t=(t+e.charCodeAt(r))%255,n=(n+t)%255;return r.T[(t|n<<8)%r.T.length]" in text
    assert {colour for hues in HUES for colour in hues} <= {*PALETTE}


def test_runs_carry_the_line_and_the_colour(results: Results) -> None:
    for cell in study(results, seeds=1)["cells"]:
        FakeRun(results, cell).take(1).end()
    mirror(results)
    runs = [run for name, run in tracked(results).items() if name != "summary"]
    assert {drawn(run.data.tags["line"]) for run in runs} == {run.data.tags["mlflow.runColor"] for run in runs}
    assert len({run.data.tags["mlflow.runColor"] for run in runs}) == 2
