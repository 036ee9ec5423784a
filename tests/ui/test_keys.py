"""Pages of a server with API keys behind a prefix: they ask for a key, keep it in the tab and send it nowhere else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.server_process import ServerProcess
from tests.tiny import tiny_bert, tiny_splade

from .conftest import Watched
from .models import HOSTILE_NAME, write_model_table


@pytest.fixture(scope="module")
def prefixed(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("tiny")
    (folder / "embedder").mkdir()
    (folder / "splade").mkdir()
    tiny_bert(folder / "embedder")
    tiny_splade(folder / "splade")
    table = write_model_table(folder, {HOSTILE_NAME: (folder / "embedder", {}), "splade": (folder / "splade", {})})
    flags = ("--api-key", "secret", "--admin-api-key", "boss", "--root-path", "/p")
    server = ServerProcess("--models", str(table), *flags)
    yield server.wait_until_ready()
    server.stop()


def enter_key(page: Any, key: str) -> None:
    page.get_by_label("API key").last.fill(key)
    page.get_by_role("button", name="Use this key").click()


def test_the_playground_asks_for_a_key_and_keeps_it_in_the_tab(open_page: Any, prefixed: ServerProcess) -> None:
    watched: Watched = open_page(prefixed.address)
    page = watched.page
    page.goto(prefixed.address)  # redirects to the prefix with a slash
    page.get_by_text("This server needs an API key").wait_for()
    assert page.get_by_role("tab").count() == 0
    enter_key(page, "wrong")
    page.get_by_text("key needed").wait_for()
    enter_key(page, "secret")
    page.get_by_role("tab", name="Embed").wait_for()
    watched.run()
    assert HOSTILE_NAME in page.get_by_label(re.compile("^Model")).locator("option").all_text_contents()
    page.reload()
    page.get_by_role("tab", name="Server").click()
    page.get_by_text("with an admin key").wait_for()

    assert page.evaluate("Object.values(sessionStorage)") == ["secret"]
    assert page.evaluate("Object.keys(localStorage)") == [] and page.context.cookies() == []
    assert not any("secret" in request.url for request in watched.requests)
    sent = [request for request in watched.requests if "secret" in str(request.all_headers())]
    assert sent and all(request.url.startswith(f"{prefixed.address}/") for request in sent)
    assert not any("/ui/" in request.url for request in sent)
    other = open_page(prefixed.address)
    other.page.goto(f"{prefixed.address}/")
    other.page.get_by_text("This server needs an API key").wait_for()
    for each in (watched, other):
        assert all("401" in error or "403" in error for error in each.errors), each.errors
        each.errors.clear()  # the browser logs every 401 and 403


@pytest.mark.slow
def test_the_documentation_asks_for_a_key_and_sends_requests_with_it(open_page: Any, prefixed: ServerProcess) -> None:
    watched: Watched = open_page(prefixed.address)
    page = watched.page
    page.goto(f"{prefixed.address}/docs")
    page.get_by_label("API key").fill("secret")
    page.get_by_role("button", name="Show the documentation").click()
    operation = page.locator("#operations-OpenAI-post_v1_embeddings")
    operation.wait_for()
    assert page.locator(".opblock-summary-path[data-path='/embeddings']").count() == 0  # an alias
    assert HOSTILE_NAME in page.locator(".info").text_content()
    groups = page.locator(".opblock-tag").all_text_contents()
    assert any("OpenAI" in group for group in groups) and any("Ollama" in group for group in groups)
    operation.locator(".opblock-summary-control").click()
    assert "/embeddings" in operation.locator(".opblock-description").text_content()
    operation.get_by_role("button", name="Execute").click()
    operation.locator(".live-responses-table .response-col_status").get_by_text("200").wait_for()

    (executed,) = [request for request in watched.requests if request.url == f"{prefixed.address}/v1/embeddings"]
    assert executed.all_headers()["authorization"] == "Bearer secret"
    assert all("401" in error for error in watched.errors), watched.errors
    watched.errors.clear()


def test_server_shows_metrics_and_unloads_and_loads_models(open_page: Any, prefixed: ServerProcess) -> None:
    watched: Watched = open_page(prefixed.address)
    page = watched.page
    page.goto(f"{prefixed.address}/#server")
    enter_key(page, "boss")
    page.locator(".charts canvas").first.wait_for()
    page.get_by_role("row", name="splade").first.wait_for()
    with prefixed.client(headers={"authorization": "Bearer boss"}) as api:

        def list_rows() -> dict[str, Any]:
            return {row["name"]: row for row in api.get("/admin/models").json()["models"]}

        page.get_by_role("button", name="unload splade").click()
        page.get_by_text("splade is unloaded.").wait_for()
        rows = list_rows()
        assert rows["splade"]["state"] == "unloaded" and rows[HOSTILE_NAME]["state"] == "ready"
        body = {"model": HOSTILE_NAME, "input": ["the cat"] * 50}
        assert api.post("/v1/embeddings", json=body).status_code == 200
        page.get_by_role("button", name="load splade", exact=True).click()
        page.get_by_text("splade is ready.").wait_for()
        latest = page.get_by_role("region", name="Latest values").get_by_role("row", name=HOSTILE_NAME)
        memory = float(latest.locator("td").nth(6).text_content())
        assert memory == pytest.approx(list_rows()[HOSTILE_NAME]["memory_bytes"] / 2**20, rel=0.2)
    assert all("401" in error for error in watched.errors), watched.errors
    watched.errors.clear()
