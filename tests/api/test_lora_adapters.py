"""LoRA adapters over HTTP: selected by model name on every route, listed, loaded and unloaded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

from cenote import LLM
from cenote.engine import adapter_manager
from cenote.engine.engine import PoolingEngine
from cenote.engine.execution.executor import EchoExecutor
from cenote.errors import BadRequest, UnknownModel
from cenote.loading.checkpoint import find_adapter
from cenote.protocol.requests import PoolRequest
from cenote.protocol.results import PoolResult
from tests.api.app_client import assert_refused, load_llm, make_client, post_json
from tests.engine.conftest import BatchGate, wait_until
from tests.factories import LLMFactory
from tests.models.adapters import BERT_TARGETS, save_adapter
from tests.tiny import TEXTS, compute_logits, tiny_bert, tiny_bert_classifier, tiny_bert_token_classifier

ADDED = "Success: LoRA adapter 'late' added successfully."
REMOVED = "Success: LoRA adapter 'late' removed successfully."


@dataclass(frozen=True)
class TunedModel:
    """A model with one loaded adapter, and the folders of two."""

    llm: LLM
    first: Path
    late: Path


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> TunedModel:
    folder = tmp_path_factory.mktemp("tuned")
    plain = tiny_bert(folder / "model")
    for seed, name in enumerate(("first", "late")):
        save_adapter(folder / name, plain, BERT_TARGETS, seed=seed)
    return TunedModel(
        open_llm(folder / "model", lora_modules=(f"first={folder / 'first'}",)), folder / "first", folder / "late"
    )


def make_admin_client(llm: LLM, **settings: Any) -> TestClient:
    """Return a client that may load adapters."""
    client = make_client(llm, allow_runtime_lora_updating=True, admin_api_key=("ops",), **settings)
    client.headers["Authorization"] = "Bearer ops"
    return client


@pytest.fixture
def client(tuned: TunedModel) -> Iterator[TestClient]:
    yield make_admin_client(tuned.llm, served_model_name=("tiny", "small"))
    if "late" in tuned.llm.engine.model_info.adapters:
        asyncio.run(tuned.llm.engine.unload_adapter("late"))


def post_vectors(client: TestClient, model: str | None = None) -> np.ndarray[Any, Any]:
    reply = post_json(client, "/v1/embeddings", input=TEXTS, model=model)
    return np.array([item["embedding"] for item in reply["data"]])


def expected(llm: LLM, adapter: str | None) -> np.ndarray[Any, Any]:
    return np.array([output.outputs.embedding for output in llm.embed(TEXTS, lora_request=adapter, use_tqdm=False)])


def test_an_adapter_is_selected_as_the_model_and_the_response_names_the_base_model(
    client: TestClient, tuned: TunedModel
) -> None:
    plain, first = expected(tuned.llm, None), expected(tuned.llm, "first")
    assert np.abs(plain - first).max() > 0.01

    for model, ours in ((None, plain), ("tiny", plain), ("small", plain), ("first", first)):
        np.testing.assert_allclose(post_vectors(client, model), ours, atol=1e-5)
        assert post_json(client, "/v1/embeddings", input="a", model=model)["model"] == "tiny"
    reply = post_json(client, "/v1/embeddings", input=TEXTS, adapter="first")
    np.testing.assert_allclose([item["embedding"] for item in reply["data"]], first, atol=1e-5)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/embed", {"texts": TEXTS}),
        ("/v1/embed", {"texts": TEXTS}),
        ("/pooling", {"input": TEXTS, "task": "embed"}),
        ("/pooling", {"input": TEXTS, "task": "token_embed"}),
        ("/score", {"queries": TEXTS[0], "documents": TEXTS[1:]}),
        ("/score", {"queries": TEXTS[0], "documents": TEXTS[1:], "score_type": "late-interaction"}),
        ("/rerank", {"query": TEXTS[0], "documents": TEXTS[1:]}),
        ("/v2/rerank", {"query": TEXTS[0], "documents": TEXTS[1:]}),
        ("/invocations", {"input": TEXTS}),
    ],
)
def test_every_route_applies_the_adapter(client: TestClient, path: str, body: dict[str, Any]) -> None:
    def post(**fields: Any) -> Any:
        reply = post_json(client, path, **body, **fields)
        return reply.get("embeddings") or reply.get("results") or reply["data"]

    assert post(model="first") == post(adapter="first") == post(model="first", adapter="first")
    assert post(model="first") != post(model="tiny") == post()


@pytest.mark.parametrize("model_type", ["classifier", "cross-encoder", "token-classifier"])
def test_classifiers_apply_adapters_to_their_backbone(tmp_path: Path, model_type: str) -> None:
    save_model = tiny_bert_token_classifier if model_type == "token-classifier" else tiny_bert_classifier
    reference = save_model(tmp_path / "model", num_labels=1 if model_type == "cross-encoder" else 3)
    merged = save_adapter(tmp_path / "first", reference, BERT_TARGETS, seed=1)
    bodies: dict[str, list[tuple[str, dict[str, Any]]]] = {
        "classifier": [("/classify", {"input": TEXTS})],
        "cross-encoder": [
            ("/score", {"queries": TEXTS[0], "documents": TEXTS}),
            ("/rerank", {"query": TEXTS[0], "documents": TEXTS}),
        ],
        "token-classifier": [("/pooling", {"input": TEXTS}), ("/entities", {"input": TEXTS, "ignore_labels": []})],
    }

    with load_llm(tmp_path / "model", lora_modules=(f"first={tmp_path / 'first'}",)) as llm:
        client = make_client(llm)
        for path, body in bodies[model_type]:
            plain, adapted = post_json(client, path, **body), post_json(client, path, **body, model="first")
            by_field = post_json(client, path, **body, adapter="first")
            results = [reply.get("data", reply.get("results")) for reply in (plain, adapted, by_field)]
            assert results[1] == results[2] != results[0]
            assert adapted["model"] == "tiny"
        if model_type == "classifier":
            outputs = llm.classify(TEXTS, use_tqdm=False)
            expected = [
                row.softmax(dim=-1) for row in compute_logits(merged, [output.prompt_token_ids for output in outputs])
            ]
            np.testing.assert_allclose([item["probs"] for item in results[1]], expected, atol=1e-4)


def test_an_unknown_model_or_adapter_is_not_found(client: TestClient) -> None:
    assert_refused(client.post("/v1/embeddings", json={"input": "a", "model": "late"}), "The model `late`", None, 404)
    assert_refused(
        client.post("/v1/embeddings", json={"input": "a", "adapter": "late"}),
        "unknown adapter 'late'; available: first",
        "adapter",
    )
    assert_refused(
        client.post("/v1/embeddings", json={"input": "a", "model": "first", "adapter": "late"}),
        "model names the adapter 'first', but adapter is 'late'",
        "adapter",
    )


def test_adapters_are_listed_after_the_model_names(client: TestClient, tuned: TunedModel) -> None:
    cards = client.get("/v1/models").json()["data"]

    assert [(card["id"], card["parent"]) for card in cards] == [("tiny", None), ("small", None), ("first", "tiny")]
    assert cards[2]["root"] == "first"  # the end of its path
    assert len({card["permission"][0]["id"] for card in cards}) == 3
    assert client.get("/v1/models/first").json() == cards[2]


# loading at runtime


def test_an_adapter_is_loaded_and_unloaded(client: TestClient, tuned: TunedModel) -> None:
    body = {"lora_name": "late", "lora_path": str(tuned.late)}

    added = client.post("/v1/load_lora_adapter", json=body)
    assert (added.status_code, added.text) == (200, ADDED)
    late = post_vectors(client, "late")
    np.testing.assert_allclose(late, expected(tuned.llm, "late"), atol=1e-5)
    assert np.abs(late - post_vectors(client, "first")).max() > 0.01
    assert [card["id"] for card in client.get("/v1/models").json()["data"]] == ["tiny", "small", "first", "late"]
    again = client.post("/v1/load_lora_adapter", json=body)
    assert_refused(
        again, "The lora adapter 'late' has already been loaded. If you want to load the adapter in", "lora_name"
    )

    replaced = client.post("/v1/load_lora_adapter", json=body | {"lora_path": str(tuned.first), "load_inplace": True})
    assert replaced.status_code == 200
    np.testing.assert_allclose(post_vectors(client, "late"), post_vectors(client, "first"), atol=1e-5)

    removed = client.post("/v1/unload_lora_adapter", json={"lora_name": "late", "lora_int_id": 2})
    assert (removed.status_code, removed.text) == (200, REMOVED)
    assert client.post("/v1/embeddings", json={"input": "a", "model": "late"}).status_code == 404
    assert tuned.llm.engine.model_info.adapters == ("first",)
    assert set(tuned.llm.engine.model.adapters.context.adapters) == {"first"}  # type: ignore[union-attr]


def test_load_and_unload_errors_give_the_reason(client: TestClient, tuned: TunedModel, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for body, words, param, status in (
        ({"lora_name": "late"}, "Both 'lora_name' and 'lora_path' must be provided.", None, 400),
        ({"lora_path": "/there"}, "Both 'lora_name' and 'lora_path' must be provided.", None, 400),
        ({"lora_name": "a" * 1001, "lora_path": "/there"}, "lora_name has 1001 characters, limit", "lora_name", 400),
        ({"lora_name": "a\nb", "lora_path": "/there"}, "a character that cannot be printed", "lora_name", 400),
        ({"lora_name": "small", "lora_path": str(tuned.late)}, "is a name of the model itself", "lora_name", 400),
        ({"lora_name": "late", "lora_path": "/nowhere/at/all"}, "No adapter found for /nowhere", "lora_path", 404),
        ({"lora_name": "late", "lora_path": str(tmp_path / "empty")}, "is not an adapter", "lora_path", 400),
    ):
        assert_refused(client.post("/v1/load_lora_adapter", json=body), words, param, status)
    for body, words, param, status in (
        ({}, "'lora_name' needs to be provided to unload a LoRA adapter.", None, 400),
        ({"lora_name": "late"}, "The lora adapter 'late' cannot be found.", "lora_name", 404),
        ({"lora_name": "tiny"}, "The lora adapter 'tiny' cannot be found.", "lora_name", 404),
    ):
        assert_refused(client.post("/v1/unload_lora_adapter", json=body), words, param, status)
    assert tuned.llm.engine.model_info.adapters == ("first",)


def test_the_default_adapter_cannot_be_unloaded(tuned: TunedModel) -> None:
    folder, flags = tuned.first.parent / "model", (f"first={tuned.first}",)
    with load_llm(folder, lora_modules=flags, default_adapter="first") as llm:
        np.testing.assert_allclose(post_vectors(make_client(llm)), expected(tuned.llm, "first"), atol=1e-5)
        client = make_admin_client(llm)
        reply = client.post("/v1/unload_lora_adapter", json={"lora_name": "first"})
        assert_refused(reply, "'first' is the default adapter", "lora_name")


def test_adapter_routes_are_off_by_default(tuned: TunedModel, llm: LLM) -> None:
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        assert make_client(tuned.llm).post(path, json={}).status_code == 404
        assert path not in make_client(tuned.llm).get("/openapi.json").json()["paths"]
    body = {"lora_name": "late", "lora_path": str(tuned.late)}
    reply = make_admin_client(llm).post("/v1/load_lora_adapter", json=body)
    assert_refused(reply, "LoRA is not enabled; start the server with --enable-lora", "lora_name")


def test_the_openapi_document_lists_the_routes_if_enabled(client: TestClient) -> None:
    document = client.get("/openapi.json").json()

    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        post = document["paths"][path]["post"]
        content = post["requestBody"]["content"]["application/json"]
        Draft202012Validator(content["schema"] | {"components": document["components"]}).validate(content["example"])
        assert post["responses"]["200"]["content"] == {"text/plain": {"schema": {"type": "string"}}}
    assert client.get("/docs").status_code == 200


def test_an_adapter_is_freed_only_after_its_requests_finish(tuned: TunedModel) -> None:
    gate = BatchGate()
    engine = PoolingEngine(tuned.llm.engine.model, tuned.llm.config, EchoExecutor(gate))
    try:
        engine.add_adapter("late", str(tuned.late))
        pending = engine.submit(PoolRequest(task="embed", inputs=["the cat"], adapter="late"))
        assert gate.reached.wait(20)
        unloading = threading.Thread(target=lambda: asyncio.run(engine.unload_adapter("late")))
        unloading.start()
        wait_until(lambda: "late" not in engine.model_info.adapters)
        with pytest.raises(BadRequest, match="unknown adapter 'late'; available: first"):
            engine.submit(PoolRequest(task="embed", inputs=["the cat"], adapter="late"))
        loaded = engine.model.adapters
        assert loaded is not None and "late" in loaded.context.adapters
        assert unloading.is_alive()
        gate.opened.set()
        pending.wait()
        unloading.join(20)
        assert not unloading.is_alive() and "late" not in loaded.context.adapters
    finally:
        gate.opened.set()
        engine.stop()


def test_a_request_after_an_adapter_was_replaced_does_not_share_an_input_computed_before(tuned: TunedModel) -> None:
    gate = BatchGate()
    engine = PoolingEngine(tuned.llm.engine.model, tuned.llm.config, EchoExecutor(gate))
    try:
        engine.add_adapter("late", str(tuned.late))
        old = engine.submit(PoolRequest(task="embed", inputs=[[5, 6]], adapter="late"))
        assert gate.reached.wait(20)
        asyncio.run(engine.load_adapter("late", str(tuned.first), in_place=True))
        new = [engine.submit(PoolRequest(task="embed", inputs=[[5, 6]], adapter="late")) for _ in range(2)]
        wait_until(lambda: engine.core.dedup.num_deduplicated == 1)
        gate.opened.set()
        for state in (old, *new):
            state.wait()

        assert gate.token_ids == [5, 6, 5, 6]  # once with each set of weights
    finally:
        gate.opened.set()
        engine.stop()
        asyncio.run(engine.unload_adapter("late"))


async def test_a_slow_download_of_an_adapter_blocks_no_other_call(
    tuned: TunedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, opened, reached = tuned.llm.engine, threading.Event(), threading.Event()

    def find_slowly(path: str, **options: Any) -> Any:
        if path == "slow":
            reached.set()
            assert opened.wait(20)
            path = str(tuned.first)
        return find_adapter(path, **options)

    monkeypatch.setattr(adapter_manager, "find_adapter", find_slowly)

    slow = [asyncio.create_task(engine.load_adapter(f"slow{number}", "slow")) for number in range(3)]
    await asyncio.sleep(0.01)
    assert reached.wait(20)
    await asyncio.wait_for(engine.load_adapter("late", str(tuned.late)), 10)
    await asyncio.wait_for(engine.unload_adapter("late"), 10)
    assert await asyncio.wait_for(engine.detokenize([5]), 10)
    assert not any(task.done() for task in slow)
    opened.set()
    await asyncio.gather(*slow)
    for number in range(3):
        await engine.unload_adapter(f"slow{number}")


def test_a_request_for_an_unloaded_adapter_fails_alone(tuned: TunedModel) -> None:
    engine, loaded = tuned.llm.engine, tuned.llm.engine.model.adapters
    assert loaded is not None
    loaded.added_paths["gone"] = "/there"  # as while the adapter is being unloaded
    try:
        request = PoolRequest(
            task="embed", inputs=["a", "b", "a"], adapter=["first", "gone", None], return_exceptions=True
        )
        first, gone, plain = engine.submit(request).wait()
    finally:
        del loaded.added_paths["gone"]

    assert isinstance(first, PoolResult) and isinstance(plain, PoolResult)
    assert isinstance(gone, UnknownModel) and "was unloaded before this input was processed" in gone.message
