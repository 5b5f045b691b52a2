"""docs/faults.md names tests that exist, and every test of this folder."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = (TESTS.parent / "docs" / "faults.md").read_text()
NAMED = set(re.findall(r"`([\w/]+\.py::test_\w+)`", TABLE))


def ids_in(file: Path) -> set[str]:
    """Their ids below tests/, read and not imported."""
    functions = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)]
    return {f"{file.relative_to(TESTS)}::{one.name}" for one in functions if one.name.startswith("test_")}


def test_every_test_that_the_table_names_exists() -> None:
    exist = {name for file in TESTS.rglob("test_*.py") for name in ids_in(file)}
    assert NAMED - exist == set()


def test_every_test_of_this_folder_stands_in_the_table() -> None:
    here = {name for file in Path(__file__).parent.glob("test_*.py") if file != Path(__file__) for name in ids_in(file)}
    assert here - NAMED == set()


def test_every_row_says_all() -> None:
    rows = [line for line in TABLE.splitlines() if line.startswith("| ") and not line.startswith("| fault ")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    assert len(cells) >= 25
    for fault, tests, *seen in cells:
        assert "::test_" in tests, fault
        assert len(seen) == 3, fault
        assert all(seen), fault
