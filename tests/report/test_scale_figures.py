"""How far findings carry: the figures over size and length, and the sentence of the report's first page."""

import dataclasses

import numpy as np
import pytest
from report_results import HYPOTHESES, series_of, write_study
from test_comparison_figures import final, with_curves

from grpolab.report import brief
from grpolab.report.claims import decide
from grpolab.report.figures import draw
from grpolab.report.figures.settings import extrapolate, parse_level
from grpolab.report.load import load
from grpolab.report.statistics.looks import INCONCLUSIVE, SUPPORTED
from grpolab.report.style import arm_styles

FACTORS = {"clip": ["symmetric", "sequence", "no_clip"], "size": ["0.13M", "1M"], "length": ["4", "11", "48"]}
LOSS = {"symmetric": 0.0, "sequence": 0.1, "no_clip": 0.2}


@pytest.fixture(scope="module")
def cross(tmp_path_factory):
    """Two sizes; the larger one has no answers of 4 tokens. An arm loses more the longer the answers are.

    At the larger size `no_clip` is the better of the two, and its first run has no result.
    """
    study = load(write_study(tmp_path_factory.mktemp("cross"), "cross", FACTORS), "cross")[-1]
    cells = study.cells[~((study.cells["factor/size"] == "1M") & (study.cells["factor/length"] == "4"))]

    def accuracy(cell):
        size, length = cell.facet.split("/")
        loss = LOSS[cell.arm] if size == "0.13M" else 0.3 * (LOSS[cell.arm] > 0) - LOSS[cell.arm]
        missing = (cell.arm, cell.facet, cell.seed) == ("no_clip", "1M/48", 0)
        return None if missing else final(0.5 - loss * int(length) / 48 + 0.01 * cell.seed)

    return with_curves(dataclasses.replace(study, cells=cells.reset_index(drop=True)), accuracy)


def test_effects_are_paired_and_drawn_where_the_cross_has_every_level(cross):
    picture, manifest = draw(cross, "F32")
    titles = [panel.get_title() for panel in picture.axes]
    assert titles == ["11 tokens", "48 tokens", "0.13M parameters"], "1M has no answers of 4 tokens, 4 tokens no 1M"
    found = series_of(manifest, scale="length", arm="no_clip")
    assert (found["x"], found["mean"]) == ([4, 11, 48], pytest.approx([-0.2 * t / 48 for t in (4, 11, 48)]))
    assert (found["low"], found["minus"]) == (pytest.approx(found["mean"]), "symmetric")
    short = series_of(manifest, scale="size", facet="48 tokens", arm="no_clip")
    assert (short["x"], short["n"]) == ([130_000, 1_000_000], [3, 2])
    assert "Missing: 1 of 45 cells" in picture.get_suptitle()
    assert [panel.get_xscale() for panel in picture.axes] == ["log"] * 3


def test_where_the_baseline_is_skipped_no_effect_is_drawn(cross):
    skipped = (cross.cells["arm"] == "symmetric") & (cross.cells["factor/length"] == "48")
    picture, _ = draw(dataclasses.replace(cross, cells=cross.cells[~skipped]), "F32")
    assert [panel.get_title() for panel in picture.axes] == ["11 tokens", "0.13M parameters"]


def test_what_1_over_sqrt_T_makes_of_a_spread_and_of_a_clip_fraction():
    length_X = np.array([4.0, 16.0])
    assert extrapolate(0.1, length_X, is_share=False) == pytest.approx([0.1, 0.05])
    below, half, above = (extrapolate(share, length_X, is_share=True) for share in (0.1587, 0.5, 0.8413))  # one sd
    assert (below[1], half[1], above[1]) == (pytest.approx(0.0228, abs=1e-3), 0.5, pytest.approx(0.9772, abs=1e-3))


def test_clipping_over_length_has_its_theory_where_a_ratio_is_of_a_whole_answer(cross):
    tokens = cross.updates["factor/length"].map(parse_level)
    spread = {
        f"ratio/sequence_{end}_{sign}": np.exp(way * 0.2 / np.sqrt(tokens))
        for end, way in (("p99", 1), ("p01", -1))
        for sign in ("pos", "neg")
    }
    study = dataclasses.replace(cross, updates=cross.updates.assign(**spread, **{"clip/active_nz": 0.04}))
    picture, manifest = draw(study, "F34")
    found = series_of(manifest, metric="|log ratio| of an answer (98%)", arm="sequence")
    assert found["mean"] == pytest.approx([0.1, 0.2 / 11**0.5, 0.2 / 48**0.5], rel=1e-3)
    clip, ratio = picture.axes
    dotted = [
        {line.get_color() for line in panel.lines if line.get_linestyle() == ":" and line.get_linewidth() == 0.8}
        for panel in (clip, ratio)
    ]
    colours = {arm: style.colour for arm, style in arm_styles(study.arms).items()}
    assert dotted == [{colours["sequence"]}, set(colours.values())]
    assert len(set(colours.values())) == 3, "sequence and no_clip have one colour in studies of their own"


def test_the_first_page_says_what_carried(cross):
    plan = {**cross.plan, "hypotheses": [HYPOTHESES[0], {**HYPOTHESES[0], "id": "other", "says": "It rises."}]}
    study = dataclasses.replace(cross, plan=plan)
    claims = decide([study])
    places = {"0.13M/4", "0.13M/11", "0.13M/48", "1M/11", "1M/48"}
    assert {claim.where for claim in claims} == places
    verdicts = [SUPPORTED if claim.id == "H6" or claim.where.startswith("0.13M") else INCONCLUSIVE for claim in claims]
    decided = [dataclasses.replace(claim, verdict=verdict) for claim, verdict in zip(claims, verdicts, strict=True)]
    gone = {("other", "1M/48")}
    decided = [dataclasses.replace(c, seeds=0) if (c.id, c.where) in gone else c for c in decided]
    assert (
        "  - **carried** over parameters and tokens: Without clipping, accuracy is lower (supported at all 5)\n"
        "  - **not everywhere**: It rises: supported at 0.13M/4, 0.13M/11, 0.13M/48; inconclusive at 1M/11; not trained"
        " at 1M/48\n"
    ) in brief.screen([study], decided)
    undecided = [dataclasses.replace(claim, verdict=INCONCLUSIVE) for claim in decided]
    assert "  - not decided anywhere: Without clipping, accuracy is lower; It rises\n" in brief.screen(
        [study], undecided
    )
