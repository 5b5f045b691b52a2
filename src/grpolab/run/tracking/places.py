"""Where a store keeps its artefacts: below the results folder, also after that was moved or copied.

MLflow writes whole paths into its tables, and its client cannot change them: a copy would read and write in the folder
that it was copied from.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy
from sqlalchemy import func, select, table, update

from grpolab.run.database import connected
from grpolab.run.tracking import is_server, sqlite_file

# Tables with such a path, besides that of the experiments.
PATHS = {"runs": "artifact_uri", "logged_models": "artifact_location"}


def misplaced(uri: str, artifacts: Path) -> dict[str, str]:
    """Of the experiments whose artefacts lie below another results folder: name -> where. A server keeps its own."""
    if is_server(uri):
        return {}
    with connected(uri) as connection:
        if not sqlalchemy.inspect(connection).has_table("experiments"):  # it is new
            return {}
        of = _table("experiments", "name", "artifact_location")
        found = connection.execute(select(of.c.name, of.c.artifact_location)).all()
    return {
        name: location
        for name, location in found
        if (location or "").startswith("file:")
        and location.endswith(_place(artifacts, name).removeprefix(artifacts.parent.as_uri()))
        and location != _place(artifacts, name)
    }


def bring_home(uri: str, artifacts: Path, repair: bool) -> str | None:
    """Let the store keep its artefacts below this results folder; one sentence where that has to be asked for.

    A file in the results folder has moved with it. Any other store may be that of several results folders, so only
    `repair` changes it.
    """
    if not (away := misplaced(uri, artifacts)):
        return None
    file = sqlite_file(uri)
    if not repair and not (file and file.resolve().parent == artifacts.parent):
        name, location = next(iter(away.items()))
        return (
            f"nothing is written: the artefacts of {name} lie in {location}, not in {_place(artifacts, name)};"
            f" `grpolab track sync --repair --uri {uri}` makes the store that of this results folder"
        )
    experiments = _table("experiments", "experiment_id", "name", "artifact_location")
    with connected(uri) as connection:
        for name, old in away.items():
            new, is_it = _place(artifacts, name), experiments.c.name == name
            chosen = connection.execute(select(experiments.c.experiment_id).where(is_it)).scalar_one()
            for owner, path in PATHS.items():
                of = _table(owner, "experiment_id", path)
                below = of.c[path].startswith(f"{old}/", autoescape=True)
                moved = func.replace(of.c[path], f"{old}/", f"{new}/")
                connection.execute(update(of).where(of.c.experiment_id == chosen, below).values({path: moved}))
            connection.execute(update(experiments).where(is_it).values(artifact_location=new))
        connection.commit()
    return None


def _place(artifacts: Path, experiment: str) -> str:
    return (artifacts / experiment).as_uri()


def _table(name: str, *columns: str) -> sqlalchemy.TableClause:
    return table(name, *(sqlalchemy.ColumnClause[str](column) for column in columns))
