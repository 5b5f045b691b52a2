"""List the presets, the studies and their code that other installed packages add (`grpolab plugins`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpolab.errors import RequestError
from grpolab.hub import without_the_hub
from grpolab.paths import Plugin, plugins
from grpolab.registry import LOAD_OBJECT, SURROGATES, resolve
from grpolab.sweep.compose import Composer
from grpolab.sweep.plan import plans

# A setting that is an import path, in a preset or in an override: `path: my_package.tasks:Reversed`.
CODE = re.compile(r"\b(path|function|kernel|aggregation|framework)\s*[:=]\s*([^\W\d][\w.]*:\w+)")
KEYS = {"path": "task.path", "function": "reward.function"}


@dataclass(frozen=True)
class PluginContent:
    """The presets, studies and code that one package adds, and what is wrong with them."""

    package: str
    version: str
    entry_point: str
    module: str
    adds: dict[str, list[str]]  # names by group of presets, by key of code, and of `study`
    problems: list[str]


def additions() -> Iterator[PluginContent]:
    """Yield what each plugin adds. All of it is tried: presets and studies are composed, code is imported."""
    with without_the_hub():
        for plugin in plugins():
            adds = dict(_names(plugin.folder)) if plugin.folder else {}
            problems = list(dict.fromkeys(_problems(plugin, adds)))
            yield PluginContent(*plugin[:4], adds, problems)


def describe(listed: Sequence[PluginContent]) -> str:
    """Return the list as text."""
    lines = []
    for one in listed:
        lines.append(f"{one.package} {one.version}, entry point {one.entry_point} = {one.module}")
        lines += [f"  {kind:<15} {', '.join(names)}" for kind, names in one.adds.items()]
        lines += [f"  wrong: {problem}" for problem in one.problems]
    return "\n".join(lines) or "no installed package has an entry point of the group grpolab (docs/adding.md)"


def _names(folder: Path) -> Iterator[tuple[str, list[str]]]:
    conf, files = folder / "conf", sorted(folder.glob("experiments/*.yaml"))
    presets = sorted(conf.rglob("*.yaml"))
    for group in sorted({file.relative_to(conf).parts[0] for file in presets if file.parent != conf}):
        inside = [file for file in presets if file.is_relative_to(conf / group)]
        yield group, [file.relative_to(conf / group).with_suffix("").as_posix() for file in inside]
    named = sorted({match.groups() for file in (*presets, *files) for match in CODE.finditer(file.read_text())})
    for key in dict.fromkeys(key for key, _ in named):
        yield KEYS.get(key, key), [path for of, path in named if of == key]
    if files:
        yield "study", [file.stem for file in files]


def _problems(plugin: Plugin, adds: dict[str, list[str]]) -> Iterator[str]:
    if not adds:
        lacks = "it has neither presets in conf/ nor studies in experiments/"
        yield f"{plugin.module} adds nothing: {lacks if plugin.folder else 'there is no package of that name'}"
    composer = Composer()
    for kind, names in adds.items():
        for name in names:
            if kind == "study":
                yield from _refused(plans, name)
            elif kind in composer.groups:
                problems = _refused(composer.compose, [f"{kind}={name}"])
                # What a preset leaves to the user (`train_file: ???`) is no mistake.
                yield from () if any(" has no value: give " in text for text in problems) else problems
            elif ":" in name:
                yield from _refused(resolve(LOAD_OBJECT), kind, name) or _refused(_load_function, kind, name)
            else:
                yield f"conf/{kind} is no group of presets: groups are {', '.join(composer.groups)}"


def _load_function(key: str, path: str) -> None:
    if key == "kernel":
        resolve(LOAD_OBJECT)(key, SURROGATES[path].function)


def _refused(body: Callable[..., Any], *arguments: Any) -> list[str]:
    """Return the problems for which a call is refused."""
    try:
        body(*arguments)
    except RequestError as error:
        return error.problems
    return []
