"""Hash the content that settings name: data files, a user's code, local models. Nothing is run.

`registry.py` loads this only if a run names something.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from grpolab import RESULTS_VERSION
from grpolab.credentials import REFERENCE, is_secret_name, reveals
from grpolab.identity import ABSENT, STEPS, dotted, is_library, keys_with_content
from grpolab.paths import open_file

# A file that was changed shortly before it was read may change again within the same time stamp: its hash is not kept.
SETTLED_SECONDS = 2.0
VARIABLE = re.compile(  # that a source reads from the environment
    rb"""(?:environ\[|environ\.\w+\(|getenv\()\s*["'](\w+)["']|["'](\w+)["'] in (?:os\.)?environ"""
)

MOST_LETTERS = 200  # of a text that may name a folder

_hashed: dict[str, tuple[tuple[int, ...], str]] = {}  # path -> the file's state and hash; this process's cache


def content_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents that resolved settings name, by key; empty for built-in tasks, rewards and models.

    A data file is its SHA-256; reasoning-gym's dataset its name and the version of the package; a task or reward the
    name of its object and the SHA-256 of each source; a folder (model, data set) the SHA-256 of each of its files, as
    `task.options` of the files that it names. What cannot be read is {"absent": name}.
    """
    content: dict[str, Any] = {}
    for key, name in _named(settings):
        content[key] = {ABSENT: name}
        with suppress(OSError, ValueError, importlib.metadata.PackageNotFoundError):
            content[key] = _hash_named(key, name, settings) or content[key]
    options = (settings.get("task") or {}).get("options")
    if options and (hashed := _hash_files_in(options)) != options:
        content["task.options"] = hashed
    return content


def _named(settings: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return each key that names content, with its value."""
    values = dict(dotted(dict(settings)))
    return [(key, values[key]) for key in keys_with_content(settings)]


def _hash_named(key: str, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Hash what a setting names; empty if nothing is there. Raises OSError, ValueError or PackageNotFoundError."""
    if key == "model.path" or (key == "task.dataset" and settings["task"]["name"] == "dataset"):
        hashes: dict[str, str] = {}
        for path in sorted(Path(name).rglob("*")):
            place = path.relative_to(name)
            if path.is_file() and not any(part.startswith(".") for part in place.parts):
                hashes[place.as_posix()] = file_sha256(path)
        return {"files": hashes} if hashes else {}
    if key.endswith("_file"):
        return {"sha256": file_sha256(Path(name).expanduser())}
    if key == "task.dataset":
        return {"dataset": name, "version": importlib.metadata.version("reasoning-gym")}
    folder, module, object_name = place_of(name)
    code = sources(module, folder)
    return {"object": object_name, "sources": code} if code else {}


def _hash_files_in(options: Any) -> Any:
    """Return a task's options with the content of each file in place of its name."""
    if isinstance(options, dict):
        return {key: _hash_files_in(value) for key, value in options.items()}
    if isinstance(options, list):
        return [_hash_files_in(value) for value in options]
    with suppress(OSError, ValueError):
        if isinstance(options, str) and (file := Path(options).expanduser()).is_file():
            return {"sha256": file_sha256(file)}
    return options


def environment_read(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the environment variables that a user's task and reward ask for by name; they are no part of a signature.

    Each has the beginning of its value's SHA-256, which tells two runs apart; `set` if the value is a secret; None if
    it is not set.
    """
    options = json.dumps((settings.get("task") or {}).get("options"))
    names = {match[1] for match in REFERENCE.finditer(options)}
    for key, path in _named(settings):
        if key in ("task.path", "reward.function", *STEPS):
            folder, module, _ = place_of(path)
            matches = (match for source in source_files(module, folder).values() for match in VARIABLE.finditer(source))
            names |= {(match[1] or match[2]).decode() for match in matches}
    return {name: _fingerprint(name, os.environ.get(name)) for name in sorted(names)}


def _fingerprint(name: str, value: str | None) -> str | None:
    if value is None:
        return None
    return "set" if is_secret_name(name) or reveals(name, value) else hashlib.sha256(value.encode()).hexdigest()[:8]


def file_sha256(file: Path) -> str:
    """Return the SHA-256 of a file's bytes, which this process keeps by path, size and times. Raises OSError."""
    place, state = os.path.realpath(file), _state(file)  # realpath passes links that lead to themselves
    known_state, digest = _hashed.get(place, ((), ""))
    if known_state == state:
        return digest
    began = time.time()
    with open(file, "rb", opener=open_file) as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    changed_ns = state[-1]
    if _state(file) == state and began - changed_ns / 1e9 > SETTLED_SECONDS:
        _hashed[place] = state, digest
    return digest


def _state(file: Path) -> tuple[int, ...]:
    stat = file.stat()
    return stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns  # no copying tool sets the last one back


def place_of(path: str) -> tuple[Path, str, str]:
    """Split `package.module:name` or `path/to/file.py:name` into (folder, module, name).

    A user's module is searched in `folder` too: the working directory, or the file's. Raises ValueError if the path has
    neither form.
    """
    place, _, name = path.rpartition(":")
    if not (place and name):
        raise ValueError(path)
    if place.endswith(".py"):
        file = Path(place).expanduser().resolve()
        return file.parent, file.stem, name
    return Path.cwd(), place, name


def sources(module: str, folder: Path) -> dict[str, str]:
    """Return the SHA-256 of a module's source and of all user code that it imports, by module name.

    Import statements are followed wherever they stand. Libraries are left out, but the module itself may be in one;
    this program counts by its `RESULTS_VERSION`. Empty if there is no such module. Raises OSError.
    """
    if module.partition(".")[0] == "grpolab":
        return {module: f"results_version {RESULTS_VERSION}"}
    read = source_files(module, folder)
    return {name: hashlib.sha256(source).hexdigest() for name, source in read.items()} if module in read else {}


def source_files(module: str, folder: Path) -> dict[str, bytes]:
    """Return the sources of a module and of all user code that it imports, by module name."""
    top = module.partition(".")[0]
    importlib.invalidate_caches()
    read: dict[str, bytes] = {}
    seen: set[str] = set()
    places = [str(folder)]  # grows by the folders that modules put on `sys.path`
    missed: list[str] = []  # a later folder may have them
    waiting = list(_with_packages(module))
    while waiting:
        if (name := waiting.pop()) in seen:
            continue
        seen.add(name)
        head = name.partition(".")[0]
        if head != top and (head in sys.stdlib_module_names or head == "grpolab"):
            continue
        if (module_at := _locate(name, places)) is None:
            missed.append(name)
            continue
        file, folders = module_at
        if file is None or (head != top and is_library(file)):
            continue
        read[name] = source = file.read_bytes()
        waiting += _imported_names(source, name if folders else name.rpartition(".")[0])
        if new := [place for place in folders_on_path(source, file) if place not in places]:
            places += new
            seen -= set(missed)
            waiting += missed
            missed = []
    return read


def _locate(name: str, places: list[str]) -> tuple[Path | None, list[str]] | None:
    """Find a module as Python would, in `places` too: its file, and the folders of its own modules if it is a package.

    None if there is no such module. A package without an __init__.py has no file, nor has a module of Python's core.
    """
    file, folders = None, [*sys.path, *places]
    for module in _with_packages(name):
        spec = None
        if module == name.partition(".")[0]:
            with suppress(ImportError, ValueError):  # the latter: a module that was made by hand
                spec = importlib.util.find_spec(module)
        # Python would ask a package without an __init__.py for its folders by importing its parents: KeyError.
        with suppress(KeyError):
            if (spec := spec or PathFinder.find_spec(module, folders)) is None:
                return None
        if spec and (spec.has_location or spec.submodule_search_locations is None):
            file = Path(spec.origin) if spec.has_location and spec.origin else None
            folders = list(spec.submodule_search_locations or ())
        else:
            last = module.rpartition(".")[2]
            file, folders = None, [str(place) for folder in folders if (place := Path(folder, last)).is_dir()]
    return file, folders


def folders_on_path(source: bytes, file: Path) -> list[str]:
    """Return the folders that a module may put on `sys.path`: those around its file, and those in them that it names.

    Too many folders do no harm: only modules found nowhere else are searched there, and `load_object` refuses a module
    that Python takes from another place.
    """
    if b"sys.path" not in source and b"addsitedir" not in source:
        return []
    constants = (node.value for node in _nodes(source) if isinstance(node, ast.Constant))
    texts = dict.fromkeys(text for text in constants if isinstance(text, str) and 0 < len(text) <= MOST_LETTERS)
    around = [os.path.abspath(folder) for folder in (*file.parents[:3], Path())]
    named = [os.path.join(folder, text.lstrip("/")) for folder in ("/", *around) for text in texts]
    inner = [os.path.join(folder, text) for folder in named if os.path.isdir(folder) for text in texts]  # 'a' / 'b'
    return [os.path.normpath(folder) for folder in [*named, *inner, *around] if os.path.isdir(folder)]


@functools.lru_cache(maxsize=16)  # two functions read the same file in a row
def _nodes(source: bytes) -> tuple[ast.AST, ...]:
    """Return the nodes of a source's syntax, from the top down; none if it is no valid Python source."""
    try:
        return tuple(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


@functools.lru_cache(maxsize=1024)
def _imported_names(source: bytes, package: str) -> list[str]:
    """Return the names in every import statement of a module of `package`; they may be modules."""
    names: list[str] = []
    for node in _nodes(source):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return [part for name in names if name for part in _with_packages(name)]


def _with_packages(name: str) -> list[str]:
    """Return `a.b.c` as a, a.b, a.b.c: importing a module runs the packages around it."""
    parts = name.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]
