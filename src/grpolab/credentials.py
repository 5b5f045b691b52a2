"""Passwords and tokens: they come from the environment alone, and reach no file and no screen."""

from __future__ import annotations

import base64
import os
import re

# Where MLflow, databases and object stores look for them, in the form that may be shown to nobody.
SECRETS = (
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "PGPASSWORD",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
)
USER = re.compile(r"(?<=://)([^:/?#@\s]*):[^@\s]*@")  # user:password@
HTTP_USER = re.compile(r"(https?://)[^/?#@\s]+@")  # of a server, where a user alone may be a token
OPTION = re.compile(r"((?:password|passwd|pwd|token|secret)\w*(?:=|%3D))[^&;%\s]+", re.IGNORECASE)
HIDDEN = "***"


def password_problem(uri: str) -> str | None:
    """Why a URI is refused that has a password or a token in it: it would be written down; None where it has none."""
    if not any(pattern.search(uri) for pattern in (USER, HTTP_USER, OPTION)):
        return None
    return (
        "has a password in it, which would be written down with every run: leave it to the environment"
        " (MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD or MLFLOW_TRACKING_TOKEN for a server, PGPASSWORD or"
        " ~/.pgpass for PostgreSQL)"
    )


def without_secrets(text: str) -> str:
    """The text with `***` for passwords in URIs and for what the environment keeps secret, as it is or as a login."""
    text = HTTP_USER.sub(rf"\1{HIDDEN}@", USER.sub(rf"\1:{HIDDEN}@", text))
    text = OPTION.sub(rf"\1{HIDDEN}", text)
    user = os.environ.get("MLFLOW_TRACKING_USERNAME", "")
    for secret in filter(None, (os.environ.get(name, "").strip() for name in SECRETS)):
        login = base64.b64encode(f"{user}:{secret}".encode()).decode()
        text = re.sub(rf"(?<!\w)(?:{re.escape(secret)}|{re.escape(login)})(?!\w)", HIDDEN, text)
    return text
