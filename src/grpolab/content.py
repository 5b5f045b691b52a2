"""The content that settings name: hashes of data files, of a user's code and of local models. Nothing is run.

`registry.py` loads this only where a run names something.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from grpolab import RESULTS_VERSION
from grpolab.credentials import is_secret_name, reveals, variables_named
from grpolab.identity import ABSENT, SIGNATURE_LENGTH, is_library, keys_with_content
from grpolab.paths import open_file, read_json, write_json_atomic
from grpolab.user_source import folders_added, nodes, variables_read

# A file that was changed shortly before it was read may change again within the same time stamp: its hash is not kept.
SETTLED_SECONDS = 2.0
LARGE_BYTES = 2**20  # smaller files are hashed faster than their kept hash is found

_hashed: dict[str, dict[str, Any]] = {}  # the hashes that this process knows, by path


def content_of(settings: Mapping[str, Any], cache: Path | None = None) -> dict[str, Any]:
    """Return the contents that resolved settings name, by key; empty for built-in tasks, rewards and models.

    A data file is its SHA-256; a dataset its name and the version of the package; a task or reward the name of its
    object and the SHA-256 of each source; a model that of each file of its folder; `task.options` those of the files
    that it names. What cannot be read is {"absent": name}. Hashes of large files are kept in the folder `cache`.
    """
    content: dict[str, Any] = {}
    for key in keys_with_content(settings):
        group, _, last = key.partition(".")
        name, hashes = settings[group][last], {}
        with suppress(OSError, ValueError, importlib.metadata.PackageNotFoundError):
            if key == "model.path":
                hashes = _model(Path(name), cache)
            elif last.endswith("_file"):
                hashes = _data_file(name, cache)
            elif key == "task.dataset":
                hashes = {"dataset": name, "version": importlib.metadata.version("reasoning-gym")}
            else:
                folder, module, object_name = place_of(name)
                if code := sources(module, folder):
                    hashes = {"object": object_name, "sources": code}
        content[key] = hashes or {ABSENT: name}
    options = (settings.get("task") or {}).get("options")
    if options and (named := _with_files(options, cache)) != options:
        content["task.options"] = named
    return content


def environment_read(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the environment variables that a user's task and reward ask for by name; they are no part of a signature.

    Each has the beginning of its value's SHA-256, which tells two runs apart; `set` where the value is a secret; None
    where it is not set.
    """
    names: set[str] = set()
    for key in keys_with_content(settings):
        if key in ("task.path", "reward.function"):
            group, _, last = key.partition(".")
            folder, module, _ = place_of(settings[group][last])
            names |= {name for source in source_files(module, folder).values() for name in variables_read(source)}
    names |= set(variables_named((settings.get("task") or {}).get("options")))
    return {name: _fingerprint(name, os.environ.get(name)) for name in sorted(names)}


def _fingerprint(name: str, value: str | None) -> str | None:
    if value is None:
        return None
    return "set" if is_secret_name(name) or reveals(name, value) else hashlib.sha256(value.encode()).hexdigest()[:8]


def _data_file(name: str, cache: Path | None) -> dict[str, Any]:
    return {"sha256": file_sha256(Path(name).expanduser(), cache)}


def _model(folder: Path, cache: Path | None) -> dict[str, Any]:
    """Hash every file below a model's folder but hidden ones."""
    hashes: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in place.parts):
            hashes[place.as_posix()] = file_sha256(path, cache)
    return {"files": hashes} if hashes else {}


def _with_files(options: Any, cache: Path | None) -> Any:
    """Return a task's options with the content of each file in place of its name."""
    if isinstance(options, dict):
        return {key: _with_files(value, cache) for key, value in options.items()}
    if isinstance(options, list):
        return [_with_files(value, cache) for value in options]
    with suppress(OSError, ValueError):
        if isinstance(options, str) and Path(options).expanduser().is_file():
            return _data_file(options, cache)
    return options


def file_sha256(file: Path, cache: Path | None = None) -> str:
    """Return the SHA-256 of a file's bytes. Raises OSError.

    A hash is kept by path, size and times of change: in this process, and for large files in the folder `cache`.
    """
    place, state = os.path.realpath(file), _state(file)  # which goes through links that lead to themselves
    entry = cache / f"{hashlib.sha256(place.encode()).hexdigest()[:SIGNATURE_LENGTH]}.json" if cache else None
    kept = entry if entry and state["size"] >= LARGE_BYTES else None
    known = _hashed.get(place) or (kept and read_json(kept))
    if known and known["state"] == state:
        return str(known["sha256"])
    began = time.time()
    with open(file, "rb", opener=open_file) as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if _state(file) == state and began - state["changed_ns"] / 1e9 > SETTLED_SECONDS:
        _hashed[place] = known = {"path": place, "state": state, "sha256": digest}
        if kept and kept.parent.parent.is_dir():  # no results folder is made for it
            with suppress(OSError):
                write_json_atomic(kept, known, durable=False)
    return digest


def _state(file: Path) -> dict[str, int]:
    stat = file.stat()
    return {
        "size": stat.st_size,
        "modified_ns": stat.st_mtime_ns,
        "changed_ns": stat.st_ctime_ns,  # no copying tool sets this one back
        "inode": stat.st_ino,
    }


def place_of(path: str) -> tuple[Path, str, str]:
    """Split `package.module:name` or `path/to/file.py:name` into (folder, module, name).

    A user's module is searched in `folder` too: the working directory, or the file's. Raises ValueError where the path
    has neither form.
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
    this program counts by its `RESULTS_VERSION`. Empty where there is no such module. Raises OSError.
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
        spec = _spec(name, places)
        if spec is None:
            missed.append(name)
            continue
        if not spec.has_location or spec.origin is None:
            continue
        file = Path(spec.origin)
        if head != top and is_library(file):
            continue
        read[name] = source = file.read_bytes()
        waiting += _imported(source, name if spec.submodule_search_locations is not None else name.rpartition(".")[0])
        if new := [place for place in folders_added(source, file) if place not in places]:
            places += new
            seen -= set(missed)
            waiting += missed
            missed = []
    return read


def _spec(name: str, places: list[str]) -> ModuleSpec | None:
    """Find a module as Python would, in `places` too; None if it is none."""
    parent, _, _ = name.rpartition(".")
    if not parent:
        with suppress(ImportError, ValueError):  # the latter: a module that was made by hand
            if spec := importlib.util.find_spec(name):
                return spec
        return PathFinder.find_spec(name, places)
    try:
        return PathFinder.find_spec(name, inside) if (inside := _inside(parent, places)) else None
    except KeyError:  # a package without an __init__.py, of a parent that nobody has imported
        return ModuleSpec(name, None, is_package=True)


def _inside(package: str, places: list[str]) -> list[str]:
    """Return the folders of a package's modules; none if it is no package."""
    spec = _spec(package, places)
    if spec is None or spec.submodule_search_locations is None:
        return []
    if spec.has_location:
        return list(spec.submodule_search_locations)
    # It has no __init__.py: to say where it is, Python would ask its parents, which nobody has imported.
    parent, _, last = package.rpartition(".")
    above = _inside(parent, places) if parent else [*sys.path, *places]
    return [str(place) for folder in above if (place := Path(folder, last)).is_dir()]


@functools.lru_cache(maxsize=1024)
def _imported(source: bytes, package: str) -> list[str]:
    """Return the names in every import statement of a module of `package`; they may be modules."""
    names: list[str] = []
    for node in nodes(source):
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
