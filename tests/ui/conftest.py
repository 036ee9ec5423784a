"""A server with a model of every kind, and a headless Chromium whose pages must log no error and call no other host."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from .local_server import LocalServer
from .models import save_models

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
AXE = gzip.decompress(Path(__file__).with_name("axe.min.js.gz").read_bytes()).decode()
TIMEOUT_MS = 60_000


@pytest.fixture(scope="package")  # the event loop of Playwright must not outlive the tests of this folder
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="the tests of the pages need Playwright")
    executable = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    if executable is None:
        pytest.skip(f"no Chromium in PATH: looked for {', '.join(CHROMIUMS)}")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def server(browser: Any, tmp_path_factory: pytest.TempPathFactory, default_folder: Path) -> Iterator[LocalServer]:
    """The default model and a tiny one of every other kind; without keys."""
    server = LocalServer(save_models(tmp_path_factory.mktemp("models"), default_folder))
    yield server
    server.stop()


@pytest.fixture
def api(server: LocalServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@dataclass
class Watched:
    """A page, and what must not happen on it."""

    page: Any
    address: str
    errors: list[str] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)

    def open(self, tab: str, path: str = "/") -> None:
        self.page.goto(f"{self.address}{path}#{tab}")
        self.page.locator(f"#tab-{tab}[aria-selected=true]").wait_for()

    def run(self) -> None:
        """Run the tab and wait for its results."""
        self.page.get_by_role("button", name="Run", exact=True).click()
        self.page.get_by_text("Done in").wait_for()

    def numbers(self, selector: str) -> list[float]:
        return [float(text) for text in self.page.locator(selector).all_text_contents()]

    def find_faults(self, **options: Any) -> list[str]:
        """Return the serious and critical faults of accessibility that axe finds; `options`: of axe.run."""
        if not self.page.evaluate("'axe' in window"):
            self.page.evaluate(AXE)
        found = self.page.evaluate("options => axe.run(document, options)", {"resultTypes": ["violations"], **options})
        return [
            f"{fault['id']}: {fault['help']}: {[node['html'][:120] for node in fault['nodes'][:3]]}"
            for fault in found["violations"]
            if fault["impact"] in ("serious", "critical")
        ]

    def check(self) -> None:
        assert self.errors == []
        others = [
            request.url for request in self.requests if not request.url.startswith((self.address, "data:", "blob:"))
        ]
        assert others == []


OpenPage = Callable[..., Watched]


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """Open pages of a server; after the test, none has logged an error, shown a dialog or called another host."""
    opened: list[Watched] = []

    def open_page(address: str, **options: Any) -> Watched:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
        context.set_default_timeout(TIMEOUT_MS)
        watched = Watched(context.new_page(), address)
        page = watched.page
        page.on("console", lambda message: message.type == "error" and watched.errors.append(message.text))
        page.on("pageerror", lambda error: watched.errors.append(str(error)))
        page.on("dialog", lambda dialog: (watched.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: watched.requests.append(request))
        opened.append(watched)
        return watched

    yield open_page
    for watched in opened:
        watched.page.context.close()
    for watched in opened:
        watched.check()


@pytest.fixture
def page(open_page: OpenPage, server: LocalServer) -> Watched:
    return open_page(server.address)


def bodies(watched: Watched, path: str) -> list[Any]:
    """Return the bodies of the requests that the page sent to a path."""
    sent = [request for request in watched.requests if request.url == f"{watched.address}{path}"]
    return [json.loads(request.post_data) for request in sent]
