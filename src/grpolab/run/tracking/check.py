"""Can a server or a database be used as a tracking store? Asked in words, without changing anything in it."""

from __future__ import annotations

import sqlalchemy
from sqlalchemy.exc import InvalidRequestError, SQLAlchemyError

from grpolab.run.database import connected, reason_of
from grpolab.run.tracking import VERSION, is_server, tables_problem


def problem_of(uri: str) -> str | None:
    """Why the store cannot be used now; None where it can. mlflow is imported for a server alone: it takes seconds."""
    if is_server(uri):
        from grpolab.run.tracking.store import server_problem

        return server_problem(uri)
    try:
        check_tables(uri)
    except (SQLAlchemyError, OSError, ImportError) as error:
        return reason_of(error)
    return None


def check_tables(uri: str) -> None:
    """Raise SQLAlchemyError or ImportError where a database cannot be reached, or MLflow as installed could not use it.

    MLflow itself would ask again for two minutes, and change the tables of an older version.
    """
    with connected(uri) as connection:
        tables = sqlalchemy.inspect(connection).get_table_names()
        versions = connection.execute(sqlalchemy.text(VERSION)).scalars().all() if "alembic_version" in tables else []
        problem = tables_problem(tables, list(versions))
        if not tables and connection.dialect.name == "postgresql":
            allowed = connection.execute(sqlalchemy.text("select has_schema_privilege(current_schema(), 'CREATE')"))
            if not allowed.scalar():
                problem = "it is empty, and its user may not create tables in it"
    if problem:
        raise InvalidRequestError(problem)
