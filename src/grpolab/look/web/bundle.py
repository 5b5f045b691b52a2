"""Join the modules of this folder into bundle.js, and the style into bundle.css: `python bundle.py`.

A page inlines these two, so they are committed, and a test repeats this script. The joining is plain because the
modules keep to three rules, which are checked: every import stands on one line, names what it takes and comes from a
module beside it; exports stand at their declaration; no two modules have a name at the top in common.
"""

from __future__ import annotations

import re
from graphlib import TopologicalSorter
from pathlib import Path

HERE = Path(__file__).parent
FIRST = "main.js"  # what the page runs; everything else is imported by it
_IMPORT = re.compile(r'^import \{ [\w, ]+ \} from "\./(\w+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?function |const |let |class )", re.MULTILINE)
_NAME = re.compile(r"^(?:async )?(?:function|const|let|class) (\w+)", re.MULTILINE)
# Must not be left: imports, exports, and declarations of several names at once, which the check of names cannot see.
_LEFT = re.compile(r"^(?:import|export)\b.*|^(?:const|let) [\[{].*", re.MULTILINE)
_ENDS_A_SCRIPT = re.compile(r"</script|<!--", re.IGNORECASE)


def modules(folder: Path = HERE) -> dict[str, str]:
    """Return the text of each module that the page needs, after those that it imports."""
    sources: dict[str, str] = {}
    needs: dict[str, list[str]] = {}
    open_names = [FIRST]
    while open_names:
        name = open_names.pop()
        if name not in sources:
            sources[name] = (folder / name).read_text(encoding="utf-8")
            needs[name] = sorted(set(_IMPORT.findall(sources[name])))
            open_names += needs[name]
    graph = TopologicalSorter({name: needs[name] for name in sorted(needs)})  # a circle of imports is an error
    return {name: sources[name] for name in graph.static_order()}


def script(folder: Path = HERE) -> str:
    """Return bundle.js: the chart library, then the modules as one function."""
    owners: dict[str, str] = {}
    parts = []
    for name, source in modules(folder).items():
        plain = _EXPORT.sub("", _IMPORT.sub("", source))
        if left := _LEFT.search(plain):
            raise ValueError(f"{name}: not in a form that bundle.py joins: {left[0]}")
        for found in _NAME.findall(plain):
            if owners.setdefault(found, name) != name:
                raise ValueError(f"{name}: the name {found} is {owners[found]}'s too")
        parts.append(f"// --- {name}\n{plain.strip()}\n")
    library = (folder / "vendor" / "uPlot.iife.min.js").read_text(encoding="utf-8").strip()
    text = f'{library}\n(() => {{\n"use strict";\n' + "\n".join(parts) + "})();\n"
    if found := _ENDS_A_SCRIPT.search(text):
        raise ValueError(f"{found[0]} would end the page's script element")
    return text


def style(folder: Path = HERE) -> str:
    """Return bundle.css: the chart library's style, then ours."""
    library = (folder / "vendor" / "uPlot.min.css").read_text(encoding="utf-8").strip()
    return f"{library}\n{(folder / 'style.css').read_text(encoding='utf-8')}"


if __name__ == "__main__":
    (HERE / "bundle.js").write_text(script(), encoding="utf-8")
    (HERE / "bundle.css").write_text(style(), encoding="utf-8")
