"""A browser for the page of a study. `make test-all WHAT=browser` installs Playwright and runs this folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

ASKS_NOBODY = ("file:", "data:", "blob:")
Visit = Callable[..., Any]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Playwright's handle of Debian's Chromium."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: make extras WHAT=browser", exc_type=ImportError
    )
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if not program:
        pytest.skip("there is no chromium here: apt-get install chromium, or CHROMIUM=PATH")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any) -> Iterator[Visit]:
    """A function that opens an address; at the end no page has asked for anything or written an error."""
    wrong: list[str] = []

    def opened(address: str, width: int = 1280, **options: Any) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": 900}, **options)
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        context.set_default_timeout(10_000)
        page = context.new_page()
        page.on("request", lambda request: request.url.startswith(ASKS_NOBODY) or wrong.append(request.url))
        page.on("console", lambda said: said.type not in ("error", "warning") or wrong.append(said.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.goto(address)
        return page

    yield opened
    for context in chromium.contexts:
        context.close()
    assert wrong == []
