"""Take the pictures of docs/page.md: `.venv/bin/python docs/tour/pictures.py results/studies/reference/report.html`.

Needs playwright (`make extras WHAT=browser`) and Chromium.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).parent
WIDTH, HEIGHT = 1180, 640
STATES = {
    "answer": "tab=answer&claim=clip_range.H6+stressed",
    "curves": "tab=curves&study=clip_range&metric=clip/active",
    "difference": "tab=curves&study=ratio_level&metric=entropy/behaviour&show=difference",
    "runs": "tab=runs&study=clip_range",
    "tokens": "tab=tokens&colour=ratio",
}


def save(page: Page, name: str) -> None:
    """Keep what the window shows, in 64 colours."""
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(64, dither=Image.Dither.NONE).save(HERE / f"{name}.png", optimize=True)


def main() -> None:
    report = Path(sys.argv[1]).resolve().as_uri()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, state in STATES.items():
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
            page.goto(f"{report}#{state}")
            page.wait_for_timeout(800)
            if name == "curves":
                page.mouse.move(300, 330)
                page.wait_for_timeout(300)
            save(page, name)
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
