"""docs/dialects.md is what the code says now."""

from __future__ import annotations

import pytest

from grpolab.cli import main
from grpolab.frameworks.dialects_page import AXES, FAMILIES
from grpolab.paths import project_root
from grpolab.registry import AGGREGATIONS, FRAMEWORKS


@pytest.fixture(scope="module")
def page() -> str:
    return (project_root() / "docs" / "dialects.md").read_text()


@pytest.mark.slow
def test_the_page_is_current(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Else: `grpolab dialects > docs/dialects.md`."""
    assert main(["dialects"]) == 0
    assert capsys.readouterr().out == page


def test_one_batch_has_the_clip_fractions_that_were_counted_by_hand(page: str) -> None:
    """14 tokens in rows of 6, 4, 1, 3; 4 + 4 + 0 + 2 are clipped and 5 + 4 + 1 + 2 outside; 24 positions."""
    by_hand = (10 / 14, (4 / 6 + 1 + 0 + 2 / 3) / 4, 12 / 14, 12 / 24, 4 / 6 + 1 + 0 + 2 / 3, 10 / 4)
    table = page.partition("| how it is counted |")[2].partition("###")[0]
    assert [float(line.split("|")[2]) for line in table.splitlines()[2:] if line] == [round(x, 2) for x in by_hand]


def test_every_axis_mode_and_average_stands_there(page: str) -> None:
    for axis in AXES:
        assert f"`{axis}`" in page
    modes = project_root() / "conf" / "dialect"
    for framework in FRAMEWORKS:
        for mode in modes.glob(f"{framework}/*.yaml"):
            assert f"| `{framework}/{mode.stem}` |" in page
    assert all(f"| `{name}` |" in page for name in AGGREGATIONS)
    assert all(f"### {title}" in page for title in FAMILIES)
