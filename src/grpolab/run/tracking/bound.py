"""A report's pages bound into one file: MLflow shows an artefact in a frame that can follow no link out of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

LINK = re.compile(r'<a href="(?!#|[a-z]+:)([^"#]*)(#[^"]*)?">(.*?)</a>', re.DOTALL)
# Reads the page that a link names out of what is bound here, in place of the one that is shown.
SCRIPT = """
<script type="application/json" id="bound">%s</script>
<script>
{
  const pages = JSON.parse(document.getElementById("bound").textContent);
  let here = %s;
  const follow = event => {
    const link = event.target.closest("a[href]"), way = link ? link.getAttribute("href") : "#";
    if (way.startsWith("#")) return;
    const to = new URL(way, "file:///" + here), path = decodeURIComponent(to.pathname.slice(1));
    if (!(path in pages)) return;
    event.preventDefault();
    document.open(); document.write(pages[path]); document.close();
    here = path;
    document.addEventListener("click", follow);
    const place = document.getElementById(decodeURIComponent(to.hash.slice(1)));
    place ? place.scrollIntoView() : window.scrollTo(0, 0);
  };
  document.addEventListener("click", follow);
}
</script>
"""


def bound(file: Path) -> str:
    """The page with every page below its folder that its links reach inside; other links become words."""
    root = file.parent.resolve()
    pages: dict[str, str] = {}
    waiting = [root / file.name]
    while waiting:
        page = waiting.pop()
        text = page.read_text()
        pages[page.relative_to(root).as_posix()] = text
        there = {(page.parent / link[1]).resolve() for link in LINK.finditer(text)}
        beside = {to for to in there if to.suffix == ".html" and to.is_relative_to(root) and to.is_file()}
        waiting += sorted(to for to in beside if to.relative_to(root).as_posix() not in pages and to not in waiting)
    kept = {path: _with_words(text, (root / path).parent, root, pages) for path, text in pages.items()}
    if len(kept) == 1:
        return kept[file.name]
    content = json.dumps(kept).replace("<", "\\u003c")
    head, end, tail = kept[file.name].rpartition("</body>")
    return head + SCRIPT % (content, json.dumps(file.name)) + end + tail


def alone(file: Path) -> str:
    """The page by itself: its links to others are words."""
    return _with_words(file.read_text(), file.parent.resolve(), file.parent.resolve(), {})


def _with_words(text: str, folder: Path, root: Path, pages: dict[str, str]) -> str:
    def kept(link: re.Match[str]) -> str:
        to = (folder / link[1]).resolve()
        return link[0] if to.is_relative_to(root) and to.relative_to(root).as_posix() in pages else link[3]

    return LINK.sub(kept, text)
