"""The short version of `make kill-storm`: a worker, the command and the mirror of the smoke sweep are killed once."""

from __future__ import annotations

import pytest
from kill_storm import main


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_three_kills_change_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", "--kills", "3"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {role} " in said for role in ("worker", "parent"))
    assert "nothing is lost: 3 kills" in said
