"""The commit of a model or data set on the hub, by which it is a part of a run's signature."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from grpolab.identity import COMMIT

_may_ask = ContextVar("_may_ask", default=True)


@contextmanager
def without_the_hub() -> Iterator[None]:
    """Ask the hub for no commit inside this context: commands that only read a config need not wait for the network."""
    before = _may_ask.set(False)
    try:
        yield
    finally:
        _may_ask.reset(before)


def pinned_commit(path: str, revision: str | None, kind: str = "model") -> str | None:
    """Return the commit of a model or data set on the hub, else the revision as it is given; None for a folder."""
    if Path(path).is_dir():
        return None
    return hub_commit(path, revision, _may_ask.get(), kind)[0] or revision


@functools.cache  # one commit for all that a process does
def hub_commit(path: str, revision: str | None, may_ask: bool = True, kind: str = "model") -> tuple[str | None, str]:
    """Return the commit of a model or data set on the hub, or None and the reason why it is unknown.

    The local cache answers; the hub is asked only if the cache has none, and config.json or README.md is then kept.
    """
    if revision is not None and COMMIT.fullmatch(revision):
        return revision, ""
    if Path(path).is_absolute() or path.startswith((".", "~")):
        return None, "there is no such folder"
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    name = "config.json" if kind == "model" else "README.md"
    try:
        file = try_to_load_from_cache(path, name, revision=revision, repo_type=kind)
        if not isinstance(file, str):
            if not may_ask:
                return None, f"the local cache has no such {kind}"
            file = hf_hub_download(path, name, revision=revision, repo_type=kind)
    except Exception as error:  # the network's, the hub's, the name's: all of them end the request alike
        return None, " ".join(str(error).split()).partition(". ")[0]
    return Path(file).parent.name, ""


def cached_file(path: str, revision: str | None, name: str) -> Path | None:
    """Find a file of a model of the hub in the local cache; None if it is not there."""
    if hub_commit(path, revision, _may_ask.get())[0] is None:
        return None
    from huggingface_hub import try_to_load_from_cache

    with suppress(ValueError):  # no name of the hub
        file = try_to_load_from_cache(path, name, revision=revision)
        return Path(file) if isinstance(file, str) else None
    return None
