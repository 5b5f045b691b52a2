"""Import a user's own task or reward, named by import path or by file."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

from grpolab.content import place_of, sources
from grpolab.errors import RequestError
from grpolab.registry import resolve

_imported: dict[str, dict[str, str]] = {}  # hashes of a module's sources when it was imported


def load_object(key: str, path: str) -> Any:
    """Import the object at `package.module:name`, or at `path/to/file.py:name` as seen from the working directory.

    A module's folder (the working directory, or the file's) goes to the end of `sys.path`, so nothing in it replaces an
    installed module. Raises RequestError with the settings key if the path is malformed, nothing is there, Python takes
    an installed module of the same name, or the source has changed since this process imported it.
    """
    try:
        folder, module, name = place_of(path)
    except ValueError as error:
        raise RequestError(f"{key}={path}: write it as package.module:name or path/to/file.py:name") from error
    if ".py:" in path and not (folder / f"{module}.py").is_file():
        raise RequestError(f"{key}={path}: there is no file {folder / f'{module}.py'}")
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    now, top = sources(module, folder), module.partition(".")[0]
    before = _imported.get(module, now)
    if before != {name: digest for name, digest in now.items() if name in before}:
        raise RequestError(f"{key}={path} was changed after this process had imported it: start the command again")
    try:
        imported = resolve(f"{module}:{name}")
    except Exception as error:  # a module of one's own may raise anything
        sought = f" (sought in {folder} too)" if isinstance(error, ModuleNotFoundError) else ""
        raise RequestError(f"{key}={path} cannot be imported: {error}{sought}{_elsewhere(module, folder)}") from error
    if elsewhere := _elsewhere(module, folder):
        raise RequestError(f"{key}={path} cannot be imported{elsewhere}")
    _imported[module] = before
    for source, digest in before.items() if top != "grpolab" else ():
        file = Path(getattr(sys.modules.get(source), "__file__", None) or "")
        if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            raise RequestError(f"{key}={path} takes {source} from {file}, one of two modules of that name: rename one")
    if unread := sources(module, folder).keys() - before.keys():
        raise RequestError(
            f"{key}={path} imports {', '.join(sorted(unread))} from a folder on sys.path that its source does not name,"
            " so that a change there would not be noticed: write"
            " sys.path.insert(0, str(Path(__file__).parent / 'FOLDER')), or put them beside it"
        )
    return imported


def _elsewhere(module: str, folder: Path) -> str:
    """Return a sentence if Python took another module of the same name from elsewhere; else an empty string."""
    top = module.partition(".")[0]
    if not ((folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file()) or top not in sys.modules:
        return ""
    taken = getattr(sys.modules[top], "__file__", None)
    if taken and Path(taken).resolve().is_relative_to(folder.resolve()):
        return ""
    return f": {top} is also the name of {taken or 'a built-in module'}; give yours another name"
