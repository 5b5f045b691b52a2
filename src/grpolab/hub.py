"""The commit of a model or data set on the hub, by which it is a part of a run's signature."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from os.path import expanduser
from pathlib import Path

from grpolab.identity import COMMIT

ANSWER_SECONDS = 8.0  # of the hub; its own client tries six times, and each try may wait for the name's address

_may_ask = ContextVar("_may_ask", default=True)


@contextmanager
def without_the_hub() -> Iterator[None]:
    """Ask the hub for no commit inside this context: commands that only read a config need not wait for the network."""
    before = _may_ask.set(False)
    try:
        yield
    finally:
        _may_ask.reset(before)


def pinned(key: str, path: str, revision: str | None) -> dict[str, str | None]:
    """Return the settings `key` and revision of a model (`path`) or data set (`dataset`): its folder, or its commit.

    A folder has no commit, and ~ in its name is the user's home; the hub's is as it is given if it is not known.
    """
    path = expanduser(path)
    if Path(path).is_dir():
        return {key: path, "revision": None}
    kind = "dataset" if key == "dataset" else "model"
    return {key: path, "revision": hub_commit(path, revision, _may_ask.get(), kind)[0] or revision}


@functools.cache  # one commit for all that a process does
def hub_commit(path: str, revision: str | None, may_ask: bool = True, kind: str = "model") -> tuple[str | None, str]:
    """Return the commit of a model or data set on the hub, or None and the reason why it is unknown.

    The local cache answers; the hub is asked only if the cache has none, and config.json or README.md is then kept.
    """
    if revision is not None and COMMIT.fullmatch(revision):
        return revision, ""
    if Path(path).is_absolute() or path.startswith((".", "~")):
        return None, "there is no such folder"
    from huggingface_hub import constants, hf_hub_download, try_to_load_from_cache

    name = "config.json" if kind == "model" else "README.md"
    try:
        file = try_to_load_from_cache(path, name, revision=revision, repo_type=kind)
        if not isinstance(file, str):
            if not may_ask:
                return None, f"the local cache has no such {kind}"
            if not constants.is_offline_mode() and not hub_answers():
                return None, f"the local cache has no such {kind}, and {constants.ENDPOINT} does not answer"
            file = hf_hub_download(path, name, revision=revision, repo_type=kind)
    except Exception as error:  # the network's, the hub's, the name's: all of them end the request alike
        return None, " ".join(str(error).split()).partition(". ")[0]
    return Path(file).parent.name, ""


@functools.cache  # one question for all that a process does
def hub_answers() -> bool:
    """Return True if the hub, or the mirror in HF_ENDPOINT, gives any answer at all in 8 seconds; False if offline."""
    from huggingface_hub import constants, get_session

    answers, session = list[object](), get_session()  # it has the user's proxies and certificates

    def ask() -> None:
        with suppress(Exception):
            answers.append(session.head(constants.ENDPOINT, timeout=ANSWER_SECONDS))

    if not constants.is_offline_mode():
        asking = threading.Thread(target=ask, daemon=True)  # no time limit ends a search for the name's address
        asking.start()
        asking.join(ANSWER_SECONDS)
    return bool(answers)


def cached_file(path: str, revision: str | None, name: str) -> Path | None:
    """Find a file of a model of the hub in the local cache; None if it is not there."""
    if hub_commit(path, revision, _may_ask.get())[0] is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    with suppress(ValueError):  # no name of the hub
        file = try_to_load_from_cache(path, name, revision=revision)
        return Path(file) if isinstance(file, str) else None
    return None
