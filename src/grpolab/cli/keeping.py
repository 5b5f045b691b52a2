"""Commands that keep results in order: make them again, check them, take them over."""

from __future__ import annotations

import argparse

from grpolab.cli.common import OK, Add, ensure_geometry, results_of


def add_commands(add: Add) -> None:
    """geometry, export-reference."""
    add("geometry", _geometry, "write the table behind the analytic figures")
    add("export-reference", _export_reference, "keep the reference study's outcome in results/reference/")


def _geometry(arguments: argparse.Namespace) -> int:
    results = results_of(arguments)
    results.geometry.unlink(missing_ok=True)
    ensure_geometry(results)
    print(results.geometry)
    return OK


def _export_reference(arguments: argparse.Namespace) -> int:
    from grpolab.report.reference import export_reference

    for file in export_reference(results_of(arguments)):
        print(file)
    return OK
