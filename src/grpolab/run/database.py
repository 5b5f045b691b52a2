"""Connect to a database by its URI, and describe a failure in one line."""

from __future__ import annotations

import os
import sqlite3
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
    """Connect, or give up after CONNECT_SECONDS. Raises SQLAlchemyError, or ModuleNotFoundError for a driver."""
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
    """Return in one line, without secrets, the innermost system or database error that led to an exception."""
    cause: BaseException = error
    below: BaseException | None = error
    while below is not None:
        cause = below if isinstance(below, OSError | sqlite3.Error | DBAPIError) else cause
        wrapped = (argument for argument in below.args if isinstance(argument, BaseException))  # as urllib3 does
        below = below.__cause__ or below.__context__ or next(wrapped, None)
    cause = cause.orig if isinstance(cause, DBAPIError) and cause.orig else cause
    text = " ".join((str(cause) or type(cause).__name__).split())
    return without_secrets(text)[:MAX_REASON]
