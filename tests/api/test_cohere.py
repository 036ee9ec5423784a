"""Cohere embed routes, versions 1 and 2."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from tests.api.app_client import make_client, post_json
from tests.factories import LLMFactory
from tests.tiny import change_config, save_tiny, tiny_bert

TEXTS = ["a deep cave", "the price of bread"]
ROUTES = ["/v1/embed", "/v2/embed"]
TYPES = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
LONG = "the cat is in the city " * 40
PROMPTS = {"query": "search ", "passage": "the book ", "Clustering": "", "rhyme": "song of "}


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> LLM:
    """Tiny model with Sentence Transformers prompts: size 32, maximum length 66, embeddings not normalised."""
    folder = tmp_path_factory.mktemp("prompted")
    tiny_bert(folder)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))
    return open_llm(folder)


def embed(client: TestClient, path: str = "/v2/embed", **body: Any) -> Any:
    return post_json(client, path, **body)


def get_error(client: TestClient, path: str = "/v2/embed", **body: Any) -> tuple[int, str, str | None]:
    reply = client.post(path, json=body)
    assert reply.status_code >= 400, reply.text
    error = reply.json()["error"]
    return reply.status_code, error["message"], error["param"]


def embed_offline(llm: LLM, texts: Sequence[str], **options: Any) -> np.ndarray[Any, Any]:
    outputs = llm.embed(list(texts), use_tqdm=False, **options)
    return np.array([output.outputs.embedding for output in outputs], dtype=np.float32)


def test_version_2_returns_embeddings_by_type(client: TestClient, llm: LLM) -> None:
    reply = client.post("/v2/embed", json={"model": "mini", "texts": TEXTS, "input_type": "search_document"})

    found = reply.json()
    tokens = sum(len(output.prompt_token_ids) for output in llm.embed(TEXTS, use_tqdm=False))
    assert np.allclose(found.pop("embeddings")["float"], embed_offline(llm, TEXTS), atol=1e-6)
    assert found == {
        "id": f"embd-{reply.headers['x-request-id']}",
        "response_type": "embeddings_by_type",
        "texts": TEXTS,
        "meta": {
            "api_version": {"version": "2"},
            "billed_units": {"input_tokens": tokens, "image_tokens": 0},
            "tokens": {"input_tokens": tokens, "output_tokens": 0},
            "warnings": [],
        },
    }


def test_version_1_returns_a_plain_list_unless_types_are_requested(client: TestClient, llm: LLM) -> None:
    plain = embed(client, "/v1/embed", texts=TEXTS)
    typed = embed(client, "/v1/embed", texts=TEXTS, embedding_types=["float"])

    assert (plain["response_type"], typed["response_type"]) == ("embeddings_floats", "embeddings_by_type")
    assert plain["meta"]["api_version"] == {"version": "1"}
    assert plain["embeddings"] == typed["embeddings"]["float"]
    assert np.allclose(plain["embeddings"], embed_offline(llm, TEXTS), atol=1e-6)


@pytest.mark.parametrize("path", ROUTES)
def test_all_types_equal_numpy_conversions_of_the_floats(client: TestClient, path: str) -> None:
    found = embed(client, path, texts=TEXTS, embedding_types=TYPES)["embeddings"]

    floats = np.array(found["float"], dtype=np.float32)
    packed = np.packbits(floats >= 0, axis=1)
    assert list(found) == TYPES
    assert found["int8"] == np.rint(floats * 127).astype(int).tolist()
    assert found["uint8"] == np.rint((floats + 1) * 127.5).astype(int).tolist()
    assert found["ubinary"] == packed.tolist()
    assert found["binary"] == (packed.astype(int) - 128).tolist()
    assert [len(row) for row in found["binary"]] == [48, 48]
    decoded = [np.frombuffer(base64.b64decode(text), dtype="<f4") for text in found["base64"]]
    assert np.array_equal(np.stack(decoded), floats)


def test_only_requested_types_are_returned(client: TestClient) -> None:
    assert list(embed(client, texts=TEXTS, embedding_types=["ubinary", "ubinary"])["embeddings"]) == ["ubinary"]


def test_vectors_with_a_norm_above_1_are_scaled_for_int8(prompted: LLM) -> None:
    found = embed(make_client(prompted), texts=["the cat", "a red bird"], embedding_types=["float", "int8", "uint8"])

    floats = np.array(found["embeddings"]["float"], dtype=np.float32)
    norms = np.linalg.norm(floats, axis=1, keepdims=True)
    assert (norms > 1.5).all()
    assert found["embeddings"]["int8"] == np.rint(floats / norms * 127).astype(int).tolist()
    assert found["embeddings"]["uint8"] == np.rint((floats / norms + 1) * 127.5).astype(int).tolist()


def test_rows_encoded_in_several_steps_keep_their_order(client: TestClient, llm: LLM) -> None:
    texts = [f"number {number}" for number in range(300)]

    found = embed(client, texts=texts, embedding_types=["float"])

    assert found["texts"] == texts
    assert np.allclose(found["embeddings"]["float"], embed_offline(llm, texts), atol=1e-5)


def test_binary_types_need_a_size_that_is_a_multiple_of_8(tmp_path: Path) -> None:
    save_tiny(tmp_path, "BertModel", hidden_size=36)
    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        errors = [get_error(make_client(llm), texts=["a"], embedding_types=[name]) for name in ("binary", "ubinary")]

    for status, message, param in errors:
        assert (status, param) == (400, "embedding_types")
        assert message.startswith("Embedding dimension must be a multiple of 8 for binary embedding types, but got 36.")


def test_text_parts_are_joined_by_newlines_and_not_echoed(client: TestClient, llm: LLM) -> None:
    parts = [{"type": "text", "text": "a deep cave"}, {"type": "text", "text": "in the hill"}]

    found = embed(client, inputs=[{"content": parts}, {"content": parts[:1]}])

    assert "texts" not in found
    expected = embed_offline(llm, ["a deep cave\nin the hill", "a deep cave"])
    assert np.allclose(found["embeddings"]["float"], expected, atol=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"texts": []},
        {"texts": None, "images": []},
        {"texts": ["a"], "images": ["data:image/png;base64,AA=="]},
        {"texts": ["a"], "inputs": [{"content": [{"type": "text", "text": "a"}]}]},
    ],
)
@pytest.mark.parametrize("path", ROUTES)
def test_exactly_one_input_field_is_required(client: TestClient, path: str, body: dict[str, Any]) -> None:
    status, message, _ = get_error(client, path, **body)

    assert status == 400
    assert message.startswith("Exactly one of texts, images, or inputs must be provided, and it must be non-empty")


@pytest.mark.parametrize(
    ("body", "words", "param"),
    [
        ({"images": ["data:image/png;base64,AA=="]}, "mini does not support images", "images"),
        (
            {"inputs": [{"content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]},
            "mini does not support images",
            "inputs.0.content.0",
        ),
        (
            {"inputs": [{"content": [{"type": "image_url", "image_url": {}}]}]},
            "CohereEmbedContent with type='image_url' requires image_url.url",
            "body.inputs.0.content.0",
        ),
        ({"texts": ["a"], "max_tokens": 0}, ">= 1", "body.max_tokens"),
        ({"texts": ["a"], "output_dimension": 0}, ">= 1", "body.output_dimension"),
    ],
)
def test_a_bad_body_is_refused_with_the_field(client: TestClient, body: dict[str, Any], words: str, param: str) -> None:
    status, message, named = get_error(client, **body)

    assert (status, named) == (400, param)
    assert words in message


@pytest.mark.parametrize("input_type", ["search_document", "search_query", "classification", "clustering", "image"])
@pytest.mark.parametrize("path", ROUTES)
def test_cohere_input_types_work_on_a_model_without_instructions(
    client: TestClient, path: str, input_type: str
) -> None:
    found = embed(client, path, texts=TEXTS, input_type=input_type, embedding_types=["float"])

    assert found["embeddings"] == embed(client, texts=TEXTS)["embeddings"]


@pytest.mark.parametrize(
    ("input_type", "prompt"),
    [
        ("query", "search "),
        ("search_query", "search "),
        ("passage", "the book "),
        ("search_document", "the book "),
        ("rhyme", "song of "),
        ("clustering", ""),
        ("classification", ""),
        (None, ""),
    ],
)
def test_an_input_type_prepends_the_model_prompt(prompted: LLM, input_type: str | None, prompt: str) -> None:
    found = embed(make_client(prompted), texts=["red fish", "old dog"], input_type=input_type)

    expected = embed_offline(prompted, [f"{prompt}red fish", f"{prompt}old dog"])
    assert np.allclose(found["embeddings"]["float"], expected, atol=1e-5)
    assert found["texts"] == ["red fish", "old dog"]


def test_task_instructions_take_precedence_over_prompts(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    change_config(tmp_path, task_instructions={"search_query": "who is ", "song": "song "})
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))
    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        client = make_client(llm)

        found = embed(client, texts=["the cat"], input_type="search_query")
        status, message, param = get_error(client, texts=["the cat"], input_type="rhyme")

        assert np.allclose(found["embeddings"]["float"], embed_offline(llm, ["who is the cat"]), atol=1e-5)
    assert (status, param) == (400, "input_type")
    assert message.startswith("Unsupported input_type 'rhyme'. Supported values: search_query, song")


def test_an_unknown_input_type_of_a_model_without_instructions_is_refused(client: TestClient) -> None:
    status, message, param = get_error(client, texts=["a"], input_type="rhyme")

    assert (status, param) == (400, "input_type")
    assert message.startswith(
        "Unsupported input_type 'rhyme'. This model does not define any input_type task instructions."
    )


@pytest.mark.parametrize("path", ROUTES)
def test_a_long_text_is_truncated_at_the_end_and_reported(prompted: LLM, path: str) -> None:
    body = {"texts": ["the cat", LONG], "embedding_types": ["float"], "return_token_counts": True}

    reply = make_client(prompted).post(path, json=body)

    found = reply.json()
    expected = embed_offline(prompted, [LONG], tokenization_kwargs={"truncate_prompt_tokens": -1})
    assert np.allclose(found["embeddings"]["float"][1:], expected, atol=1e-5)
    assert reply.headers["x-truncated-inputs"] == "1"
    assert found["token_counts"] == [
        {"used": 4, "given": 4, "truncated": 0},
        {"used": 66, "given": 242, "truncated": 242 - 66},
    ]
    assert len(found["meta"]["warnings"]) == 1


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(("truncate", "kept"), [("LEFT", "blue cat dog bird"), ("RIGHT", "one two three red")])
def test_the_sides_of_bedrock_are_truncated(prompted: LLM, path: str, truncate: str, kept: str) -> None:
    body = {"texts": ["one two three red green blue cat dog bird"], "truncate": truncate, "max_tokens": 6}

    reply = make_client(prompted).post(path, json=body | {"embedding_types": ["float"]})

    assert reply.status_code == 200, reply.text
    assert np.allclose(reply.json()["embeddings"]["float"], embed_offline(prompted, [kept]), atol=1e-5)


@pytest.mark.parametrize(("truncate", "side"), [("END", None), ("START", "left"), (None, None)])
def test_max_tokens_truncates_on_the_chosen_side(prompted: LLM, truncate: str | None, side: str | None) -> None:
    text = "one two three red green blue cat dog bird"

    found = embed(make_client(prompted), texts=[text], truncate=truncate, max_tokens=6)

    options = {"truncate_prompt_tokens": 6, "truncation_side": side}
    assert np.allclose(
        found["embeddings"]["float"], embed_offline(prompted, [text], tokenization_kwargs=options), atol=1e-5
    )
    assert found["meta"]["tokens"]["input_tokens"] == 6


def test_max_tokens_above_the_model_maximum_is_capped(prompted: LLM) -> None:
    found = embed(make_client(prompted), texts=[LONG], max_tokens=100_000)

    assert found["meta"]["tokens"]["input_tokens"] == 66


def test_without_truncation_a_long_text_is_an_error(prompted: LLM) -> None:
    status, message, param = get_error(make_client(prompted), texts=["the cat", "the cat " * 40], truncate="NONE")

    assert (status, param) == (400, "input_tokens")
    assert message.startswith("Leave out truncate=NONE to cut such inputs to 66 tokens;")
    assert "This model's maximum context length is 66 tokens. However, you requested 0 output tokens" in message


def test_without_truncation_max_tokens_is_checked_before_the_model_runs(prompted: LLM) -> None:
    client = make_client(prompted)
    body = {"texts": ["the cat", "a red bird in the city"], "input_type": "query", "truncate": "NONE"}

    fits = embed(client, **body, max_tokens=9)
    reply = client.post("/v2/embed", json={**body, "max_tokens": 8})

    assert fits["meta"]["tokens"]["input_tokens"] == 5 + 9  # with the prompt
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["message"].startswith(
        "Input of 9 tokens exceeds max_tokens=8 with truncate=NONE. Set truncate to END or START to allow truncation."
    )
    assert (error["param"], error["index"]) == ("max_tokens", 1)
    assert reply.headers["x-prompt-tokens"] == "0"


def test_output_dimension_requires_a_matryoshka_model(client: TestClient, tmp_path: Path) -> None:
    status, message, _ = get_error(client, texts=["a"], output_dimension=64)
    assert status == 400
    assert "does not support matryoshka representation" in message

    tiny_bert(tmp_path)
    overrides = {"is_matryoshka": True}
    with LLM(str(tmp_path), dtype="float32", device="cpu", hf_overrides=overrides) as llm:
        found = embed(make_client(llm), texts=["the cat"], output_dimension=16, embedding_types=["float", "ubinary"])

    assert len(found["embeddings"]["float"][0]) == 16
    assert np.linalg.norm(found["embeddings"]["float"][0]) == pytest.approx(1, abs=1e-5)
    assert len(found["embeddings"]["ubinary"][0]) == 2
