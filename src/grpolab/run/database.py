"""A database by its URI: whether it answers, and what is said of one that does not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from grpolab.credentials import without_secrets

CONNECT_SECONDS = 10
MAX_REASON = 200  # characters
DRIVERS = {"psycopg": "`make extras WHAT=server` installs it"}  # any other is the user's to choose


@contextmanager
def connected(uri: str) -> Iterator[sqlalchemy.Connection]:
    """A connection, given up on within `CONNECT_SECONDS` for each address of a PostgreSQL host.

    Raises SQLAlchemyError where there is none, ModuleNotFoundError, in one sentence, where its driver is missing.
    """
    os.environ.setdefault("PGCONNECT_TIMEOUT", str(CONNECT_SECONDS))  # read by PostgreSQL's library
    try:
        engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool)
    except ModuleNotFoundError as error:
        how = DRIVERS.get(str(error.name), "install it")
        raise ModuleNotFoundError(f"the Python package {error.name} is missing: {how}", name=error.name) from None
    except (NoSuchModuleError, ArgumentError, ValueError) as error:
        raise ArgumentError(f"SQLAlchemy does not know it: {error}") from error
    with engine.connect() as connection:
        yield connection


def reason_of(error: BaseException) -> str:
    """What the error says, in one line without secrets: a database's own words where it has some."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig else error
    text = " ".join((str(cause) or type(cause).__name__).split())
    return without_secrets(text)[:MAX_REASON]
