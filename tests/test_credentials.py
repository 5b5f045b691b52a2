"""Passwords and tokens come from the environment alone, and are shown to nobody."""

from __future__ import annotations

import base64

import pytest

from grpolab.cli import main
from grpolab.credentials import SECRETS, without_secrets
from grpolab.errors import RequestError
from grpolab.run.tracking import password_problem

SECRET = "sUp3rs3cret"
WITH_PASSWORD = [
    f"postgresql://lab:{SECRET}@host/db",
    f"postgresql://lab:{SECRET}/#?x@host/db",
    f"postgresql+psycopg://host/db?user=lab&password={SECRET}",
    f"postgresql://host/db?options=-c%20password%3D{SECRET}",
    f"mssql+pyodbc:///?odbc_connect=UID%3Dlab%3BPWD%3D{SECRET}",
    f"http://lab:{SECRET}@host:5000",
    f"https://{SECRET}@host",
    f"https://host/mlflow?token={SECRET}",
]
WITHOUT = [
    "postgresql://lab@host:5432/db",
    "postgresql://host/db?user=lab&passfile=/home/lab/.pgpass",
    "http://host:5000/mlflow",
    "sqlite:////tmp/mlflow.db",
    "journal:/tmp/a@b:c.journal",
]


@pytest.mark.parametrize("uri", WITH_PASSWORD)
@pytest.mark.parametrize("words", [["track", "verify", "--uri"], ["sweep", "smoke"], ["tune", "tuning", "--storage"]])
def test_a_uri_with_a_password_is_refused_and_not_repeated(
    uri: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    given = [f"machine.tracking_uri='{uri}'"] if words[0] == "sweep" else [uri]
    assert main([*words, *given]) == 2
    said = capsys.readouterr()
    assert "has a password in it" in said.err
    assert "PGPASSWORD" in said.err
    assert SECRET not in said.err + said.out


@pytest.mark.parametrize("uri", WITHOUT)
def test_a_uri_without_one_is_as_it_was(uri: str) -> None:
    assert password_problem(uri) is None
    assert without_secrets(uri) == uri


@pytest.mark.parametrize("name", SECRETS)
def test_what_a_library_quotes_of_the_environment_is_masked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, f"{SECRET}\n")  # as it comes out of a file; requests refuses such a header, and quotes it
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "lab")
    login = base64.b64encode(f"lab:{SECRET}".encode()).decode()
    said = without_secrets(f"Invalid header value: 'Bearer {SECRET}\\n' or b'Basic {login}' of lab, {SECRET}ive")
    assert said == f"Invalid header value: 'Bearer ***\\n' or b'Basic ***' of lab, {SECRET}ive"
    assert str(RequestError(f"key={SECRET} is not allowed")) == "key=*** is not allowed"
