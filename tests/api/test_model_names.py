"""The names that a request may give as its model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cenote import LLM
from tests.api.app_client import make_client
from tests.tiny import tiny_bert

HUB_NAME = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "bge-small"
    folder.mkdir()
    tiny_bert(folder)
    return folder


@pytest.fixture(scope="module")
def default(default_folder: Path) -> Iterator[LLM]:
    """What is loaded where no model is named; the package that has it is installed."""
    with LLM(dtype="float32", device="cpu") as llm:
        yield llm


@pytest.fixture(scope="module")
def of_folder(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), dtype="float32", device="cpu") as llm:
        yield llm


def status(client: TestClient, name: str) -> int:
    return int(client.post("/v1/embeddings", json={"input": "a", "model": name}).status_code)


@pytest.mark.parametrize("name", ["all-MiniLM-L6-v2", HUB_NAME])
def test_the_default_model_answers_to_its_short_name_and_to_the_hub_s(name: str, default: LLM) -> None:
    client = make_client(default)

    reply = client.post("/v1/embeddings", json={"input": "a", "model": name})

    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == "all-MiniLM-L6-v2"
    assert client.get(f"/v1/models/{name}").json()["id"] == "all-MiniLM-L6-v2"
    assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["all-MiniLM-L6-v2"]


@pytest.mark.parametrize("name", ["model", "MiniLM", "sentence-transformers", "", "/", "."])
def test_the_default_model_answers_to_no_other_name(name: str, default: LLM) -> None:
    assert status(make_client(default), name) == 404


def test_a_folder_answers_to_its_path_and_to_its_base_name(of_folder: LLM, folder: Path) -> None:
    client = make_client(of_folder)

    for name in (str(folder), f"{folder}/", "bge-small"):
        assert status(client, name) == 200
        assert client.get(f"/v1/models/{name.rstrip('/')}").json()["id"] == str(folder)
    for name in (str(folder.parent), folder.parent.name, "bge", "/bge-small"):
        assert status(client, name) == 404
    assert [card["id"] for card in client.get("/v1/models").json()["data"]] == [str(folder)]


def test_a_relative_folder_answers_to_its_path_as_well(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    with LLM("./bge-small", dtype="float32", device="cpu") as llm:
        client = make_client(llm)

        assert [status(client, name) for name in ("./bge-small", "bge-small", str(folder))] == [200, 200, 200]


def test_names_that_were_configured_are_the_only_ones(of_folder: LLM, folder: Path) -> None:
    client = make_client(of_folder, served_model_name=("mine",))

    assert [status(client, name) for name in ("mine", "bge-small", str(folder))] == [200, 404, 404]
    assert client.get("/v1/models/bge-small").status_code == 404
