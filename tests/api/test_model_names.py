"""Model names that requests may use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.model_names import list_source_names
from tests.api.app_client import list_served_routes, make_client
from tests.factories import LLMFactory
from tests.tiny import tiny_bert

HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "bge-small"
    folder.mkdir()
    tiny_bert(folder)
    return folder


@pytest.fixture(scope="module")
def default_llm(default_folder: Path) -> Iterator[LLM]:
    """The default model, from its installed package."""
    with LLM(dtype="float32", device="cpu") as llm:
        yield llm


@pytest.fixture(scope="module")
def folder_llm(folder: Path, open_llm: LLMFactory) -> LLM:
    return open_llm(folder, served_model_name=None)


def get_status(client: TestClient, name: str) -> int:
    return int(client.post("/v1/embeddings", json={"input": "a", "model": name}).status_code)


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", HUB_NAME])
def test_the_default_model_is_served_under_its_short_and_hub_names(name: str, default_llm: LLM) -> None:
    client = make_client(default_llm)

    reply = client.post("/v1/embeddings", json={"input": "a", "model": name})

    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == "all-MiniLM-L6-v2"
    assert client.get(f"/v1/models/{name}").json()["id"] == "all-MiniLM-L6-v2"
    assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["all-MiniLM-L6-v2"]


@pytest.mark.parametrize("source", ["~nosuchuser/x", "/" + "x" * 300, "a/" * 3000, "\0", "\ud800", ""])
def test_the_names_of_a_source_that_cannot_be_resolved_are_those_of_its_text(source: str) -> None:
    assert list_source_names(source) <= {source, source.rpartition("/")[2]}


@pytest.mark.parametrize("name", ["model", "MiniLM", "sentence-transformers", "", "/", "."])
def test_the_default_model_has_no_other_names(name: str, default_llm: LLM) -> None:
    assert get_status(make_client(default_llm), name) == 404


def test_a_folder_is_served_under_its_base_name_and_its_path(folder_llm: LLM, folder: Path) -> None:
    client = make_client(folder_llm)

    for name in (str(folder), f"{folder}/", "bge-small"):
        assert get_status(client, name) == 200
        assert client.get(f"/v1/models/{name.rstrip('/')}").json()["id"] == "bge-small"
    for name in (str(folder.parent), folder.parent.name, "bge", "/bge-small"):
        assert get_status(client, name) == 404
    assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["bge-small"]


REQUESTS = {
    "/v1/embeddings": {"input": "a"},
    "/pooling": {"input": "a", "task": "token_embed"},
    "/v2/embed": {"texts": ["a"], "input_type": "search_query"},
    "/embed": {"inputs": "a"},
    "/api/embed": {"input": "a", "model": "bge-small"},
    "/api/show": {"model": "bge-small"},
    "/classify": {"input": "a"},
    "/v1/embeddings/": {"input": "a"},
    "/score": {"text_1": "a", "text_2": "a"},
    "/tokenize": {"prompt": "a"},
}
ERRORS: list[dict[str, Any]] = [
    {"dimensions": 8},
    {"model": "unknown"},
    {"input": "a " * 300},
    {"input": {"image": "a"}},
    {"task": "none"},
]


def test_no_response_has_the_path_of_the_folder(folder_llm: LLM, folder: Path) -> None:
    client = make_client(folder_llm, enable_tokenizer_info_endpoint=True, max_request_items=1)
    paths = [path for path, methods in list_served_routes(client).items() if "GET" in methods]

    replies = [client.post(path, json=body) for path, body in REQUESTS.items()]
    replies += [client.post("/v1/embeddings", json={"input": "a", "model": str(folder)})]
    replies += [
        client.post(path, json={"input": "a", **error}) for error in ERRORS for path in ("/v1/embeddings", "/pooling")
    ]
    replies += [client.get(path.replace("{name}", "bge-small")) for path in paths if not path.startswith("/admin")]

    leaks = [reply.url.path for reply in replies if str(folder.parent) in f"{reply.text}{reply.headers}"]
    assert leaks == []


def test_a_relative_folder_is_served_under_its_absolute_path_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    with LLM("./bge-small", dtype="float32", device="cpu") as llm:
        client = make_client(llm)

        assert [get_status(client, name) for name in ("./bge-small", "bge-small", str(folder))] == [200, 200, 200]


def test_configured_names_replace_the_aliases(folder_llm: LLM, folder: Path) -> None:
    client = make_client(folder_llm, served_model_name=("mine",))

    assert [get_status(client, name) for name in ("mine", "bge-small", str(folder))] == [200, 404, 404]
    assert client.get("/v1/models/bge-small").status_code == 404
