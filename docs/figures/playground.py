"""Screenshots of the playground: every tab in the light theme, one in the dark theme, and on a phone.

    cenote serve &
    python docs/figures/playground.py http://127.0.0.1:8000 FOLDER

Needs Playwright and a Chromium in PATH. `playground.png` beside this file is `embed-light.png` with 128 colours.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

DESKTOP = {"width": 1280, "height": 1060}
PHONE = {"width": 390, "height": 844}


def take(
    browser: Browser, address: str, folder: Path, theme: str, size: dict[str, int], tabs: list[str] | None
) -> None:
    """Run every tab, or the named ones, and save what it shows."""
    context = browser.new_context(viewport=size, color_scheme=theme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(address)
    page.get_by_role("tab").first.wait_for()
    names = [tab.get_attribute("id") or "" for tab in page.get_by_role("tab").all()]
    for name in (name.removeprefix("tab-") for name in names):
        if tabs is None or name in tabs:
            page.locator(f"#tab-{name}").click()
            show(page, name)
            kind = theme if size is DESKTOP else f"phone-{theme}"
            page.screenshot(path=folder / f"{name}-{kind}.png", full_page=size is PHONE)
    context.close()


def show(page: Page, name: str) -> None:
    if name == "server":
        page.get_by_role("heading", name="Latest values").wait_for()
        page.wait_for_timeout(5000)  # a few samples
        return
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("Done in").wait_for()
    page.wait_for_timeout(400)  # the bars grow


def main(address: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        take(browser, address, folder, "light", DESKTOP, None)
        take(browser, address, folder, "dark", DESKTOP, ["embed", "rerank", "late", "server"])
        take(browser, address, folder, "light", PHONE, ["embed", "rerank"])
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
