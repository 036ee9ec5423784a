"""Cohere's embed routes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cohere
import numpy as np
import pytest
from starlette.testclient import TestClient

from cenote import LLM
from cenote.api.dialects.cohere import EmbedBody
from tests.api.app_client import make_client
from tests.tiny import change_config, save_tiny, tiny_bert, tiny_bert_classifier

TEXTS = ["a deep cave", "the price of bread"]
ROUTES = ["/v1/embed", "/v2/embed"]
TYPES = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
LONG = "the cat is in the city " * 40
PROMPTS = {"query": "search ", "passage": "the book ", "Clustering": "", "rhyme": "song of "}


@pytest.fixture(scope="module")
def client(llm: LLM) -> TestClient:
    """384 numbers per text, at most 256 tokens, no instructions."""
    return make_client(llm)


@pytest.fixture(scope="module")
def prompted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A tiny embedder with Sentence Transformers prompts: 32 numbers, 66 tokens, vectors that are not normalised."""
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
    with LLM(str(folder), dtype="float32", device="cpu", served_model_name="tiny") as llm:
        yield llm


def embed(client: TestClient, path: str = "/v2/embed", **body: Any) -> Any:
    reply = client.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def refusal(client: TestClient, path: str = "/v2/embed", **body: Any) -> tuple[int, str, str | None]:
    reply = client.post(path, json=body)
    assert reply.status_code >= 400, reply.text
    error = reply.json()["error"]
    return reply.status_code, error["message"], error["param"]


def vectors(llm: LLM, texts: Sequence[str], **options: Any) -> np.ndarray[Any, Any]:
    found = llm.embed(list(texts), use_tqdm=False, **options)
    return np.array([each.outputs.embedding for each in found], dtype=np.float32)


def test_version_2_answers_by_type(client: TestClient, llm: LLM) -> None:
    reply = client.post("/v2/embed", json={"model": "mini", "texts": TEXTS, "input_type": "search_document"})

    found = reply.json()
    tokens = sum(len(each.prompt_token_ids) for each in llm.embed(TEXTS, use_tqdm=False))
    assert np.allclose(found.pop("embeddings")["float"], vectors(llm, TEXTS), atol=1e-6)
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


def test_version_1_answers_with_a_bare_list_unless_types_are_asked_for(client: TestClient, llm: LLM) -> None:
    bare = embed(client, "/v1/embed", texts=TEXTS)
    typed = embed(client, "/v1/embed", texts=TEXTS, embedding_types=["float"])

    assert (bare["response_type"], typed["response_type"]) == ("embeddings_floats", "embeddings_by_type")
    assert bare["meta"]["api_version"] == {"version": "1"}
    assert bare["embeddings"] == typed["embeddings"]["float"]
    assert np.allclose(bare["embeddings"], vectors(llm, TEXTS), atol=1e-6)


@pytest.mark.parametrize("path", ROUTES)
def test_all_types_at_once_are_what_numpy_makes_of_the_floats(client: TestClient, path: str) -> None:
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


def test_only_the_types_that_were_asked_for_come_back(client: TestClient) -> None:
    assert list(embed(client, texts=TEXTS, embedding_types=["ubinary", "ubinary"])["embeddings"]) == ["ubinary"]


def test_vectors_longer_than_1_are_scaled_into_bytes(prompted: LLM) -> None:
    found = embed(make_client(prompted), texts=["the cat", "a red bird"], embedding_types=["float", "int8", "uint8"])

    floats = np.array(found["embeddings"]["float"], dtype=np.float32)
    lengths = np.linalg.norm(floats, axis=1, keepdims=True)
    assert (lengths > 1.5).all()
    assert found["embeddings"]["int8"] == np.rint(floats / lengths * 127).astype(int).tolist()
    assert found["embeddings"]["uint8"] == np.rint((floats / lengths + 1) * 127.5).astype(int).tolist()


def test_more_rows_than_are_written_at_once_keep_their_order(client: TestClient, llm: LLM) -> None:
    texts = [f"number {number}" for number in range(300)]

    found = embed(client, texts=texts, embedding_types=["float"])

    assert found["texts"] == texts
    assert np.allclose(found["embeddings"]["float"], vectors(llm, texts), atol=1e-5)


def test_a_width_that_is_no_multiple_of_8_has_no_binary_form(tmp_path: Path) -> None:
    save_tiny(tmp_path, "BertModel", hidden_size=36)
    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        status, message, param = refusal(make_client(llm), texts=["a"], embedding_types=["binary"])

    assert (status, param) == (400, "embedding_types")
    assert message.startswith("Embedding dimension must be a multiple of 8 for binary embedding types, but got 36.")


def test_every_field_may_be_null(client: TestClient) -> None:
    nothing = dict.fromkeys(EmbedBody.__struct_fields__)

    assert embed(client, **{**nothing, "texts": TEXTS})["embeddings"] == embed(client, texts=TEXTS)["embeddings"]


def test_texts_in_parts_are_lines_of_one_text_and_are_not_echoed(client: TestClient, llm: LLM) -> None:
    parts = [{"type": "text", "text": "a deep cave"}, {"type": "text", "text": "in the hill"}]

    found = embed(client, inputs=[{"content": parts}, {"content": parts[:1]}])

    assert "texts" not in found
    expected = vectors(llm, ["a deep cave\nin the hill", "a deep cave"])
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
def test_exactly_one_kind_of_input_is_wanted(client: TestClient, path: str, body: dict[str, Any]) -> None:
    status, message, _ = refusal(client, path, **body)

    assert status == 400
    assert message.startswith("Exactly one of texts, images, or inputs must be provided, and it must be non-empty")


@pytest.mark.parametrize(
    ("body", "words", "param"),
    [
        ({"images": ["data:image/png;base64,AA=="]}, "mini reads only text", "images"),
        (
            {"inputs": [{"content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]},
            "mini reads only text",
            "inputs.0.content.0",
        ),
        (
            {"inputs": [{"content": [{"type": "text"}]}]},
            "CohereEmbedContent with type='text' requires text",
            "body.inputs.0.content.0",
        ),
        (
            {"inputs": [{"content": [{"type": "image_url", "image_url": {}}]}]},
            "CohereEmbedContent with type='image_url' requires image_url.url",
            "body.inputs.0.content.0",
        ),
        ({"inputs": [{"content": []}]}, "at least one part", "body.inputs.0.content"),
        ({"inputs": [{"content": [{"type": "audio"}]}]}, "audio", "body.inputs.0.content.0.type"),
        ({"texts": ["a", 5]}, "got int", "body.texts.1"),
        ({"texts": "a"}, "got str", "body.texts"),
        ({"texts": ["a"], "embedding_types": ["int4"]}, "int4", "body.embedding_types.0"),
        ({"texts": ["a"], "truncate": "MIDDLE"}, "END, START, NONE", "body.truncate"),
        ({"texts": ["a"], "max_tokens": 0}, ">= 1", "body.max_tokens"),
        ({"texts": ["a"], "output_dimension": 0}, ">= 1", "body.output_dimension"),
    ],
)
def test_a_bad_body_is_refused_with_the_field(client: TestClient, body: dict[str, Any], words: str, param: str) -> None:
    status, message, named = refusal(client, **body)

    assert (status, named) == (400, param)
    assert words in message


@pytest.mark.parametrize("input_type", ["search_document", "search_query", "classification", "clustering", "image"])
@pytest.mark.parametrize("path", ROUTES)
def test_cohere_s_own_input_types_work_on_a_model_without_instructions(
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
def test_an_input_type_puts_the_model_s_own_prompt_before_every_text(
    prompted: LLM, input_type: str | None, prompt: str
) -> None:
    found = embed(make_client(prompted), texts=["red fish", "old dog"], input_type=input_type)

    expected = vectors(prompted, [f"{prompt}red fish", f"{prompt}old dog"])
    assert np.allclose(found["embeddings"]["float"], expected, atol=1e-5)
    assert found["texts"] == ["red fish", "old dog"]


def test_the_instructions_of_the_config_come_before_the_prompts(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    change_config(tmp_path, task_instructions={"search_query": "who is ", "song": "song "})
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))
    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        client = make_client(llm)

        found = embed(client, texts=["the cat"], input_type="search_query")
        status, message, param = refusal(client, texts=["the cat"], input_type="rhyme")

        assert np.allclose(found["embeddings"]["float"], vectors(llm, ["who is the cat"]), atol=1e-5)
    assert (status, param) == (400, "input_type")
    assert message.startswith("Unsupported input_type 'rhyme'. Supported values: search_query, song")


def test_an_unknown_input_type_of_a_model_without_instructions_is_refused(client: TestClient) -> None:
    status, message, param = refusal(client, texts=["a"], input_type="rhyme")

    assert (status, param) == (400, "input_type")
    assert message.startswith(
        "Unsupported input_type 'rhyme'. This model does not define any input_type task instructions."
    )


@pytest.mark.parametrize("path", ROUTES)
def test_a_long_text_is_cut_at_its_end_and_the_reply_says_so(prompted: LLM, path: str) -> None:
    body = {"texts": ["the cat", LONG], "embedding_types": ["float"], "return_token_counts": True}

    reply = make_client(prompted).post(path, json=body)

    found = reply.json()
    expected = vectors(prompted, [LONG], tokenization_kwargs={"truncate_prompt_tokens": -1})
    assert np.allclose(found["embeddings"]["float"][1:], expected, atol=1e-5)
    assert reply.headers["x-truncated-inputs"] == "1"
    assert found["token_counts"] == [
        {"used": 4, "given": 4, "truncated": 0},
        {"used": 66, "given": 242, "truncated": 242 - 66},
    ]
    assert len(found["meta"]["warnings"]) == 1


@pytest.mark.parametrize(("truncate", "side"), [("END", None), ("START", "left"), (None, None)])
def test_max_tokens_cuts_on_the_side_that_was_named(prompted: LLM, truncate: str | None, side: str | None) -> None:
    text = "one two three red green blue cat dog bird"

    found = embed(make_client(prompted), texts=[text], truncate=truncate, max_tokens=6)

    how = {"truncate_prompt_tokens": 6, "truncation_side": side}
    assert np.allclose(found["embeddings"]["float"], vectors(prompted, [text], tokenization_kwargs=how), atol=1e-5)
    assert found["meta"]["tokens"]["input_tokens"] == 6


def test_more_max_tokens_than_the_model_reads_is_what_it_reads(prompted: LLM) -> None:
    found = embed(make_client(prompted), texts=[LONG], max_tokens=100_000)

    assert found["meta"]["tokens"]["input_tokens"] == 66


def test_without_truncation_a_long_text_is_an_error(prompted: LLM) -> None:
    status, message, param = refusal(make_client(prompted), texts=["the cat", "the cat " * 40], truncate="NONE")

    assert (status, param) == (400, "input_tokens")
    assert message.startswith("This model's maximum context length is 66 tokens.")


def test_without_truncation_max_tokens_is_checked_before_anything_runs(prompted: LLM) -> None:
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


def test_an_output_dimension_is_a_matter_of_matryoshka(client: TestClient, tmp_path: Path) -> None:
    status, message, _ = refusal(client, texts=["a"], output_dimension=64)
    assert status == 400
    assert "does not support matryoshka representation" in message

    tiny_bert(tmp_path)
    overrides = {"is_matryoshka": True}
    with LLM(str(tmp_path), dtype="float32", device="cpu", hf_overrides=overrides) as llm:
        found = embed(make_client(llm), texts=["the cat"], output_dimension=16, embedding_types=["float", "ubinary"])

    assert len(found["embeddings"]["float"][0]) == 16
    assert np.linalg.norm(found["embeddings"]["float"][0]) == pytest.approx(1, abs=1e-5)
    assert len(found["embeddings"]["ubinary"][0]) == 2


@pytest.mark.parametrize("path", ROUTES)
def test_an_unknown_model_is_not_found(client: TestClient, path: str) -> None:
    assert refusal(client, path, model="other", texts=["a"])[:2] == (404, "The model `other` does not exist.")


def test_more_texts_than_a_request_may_have_are_refused(llm: LLM) -> None:
    status, message, param = refusal(make_client(llm, max_request_items=2), texts=["a", "b", "c"])

    assert (status, param) == (400, "texts")
    assert message.startswith("texts has 3 items, one request takes at most 2")


def test_a_classifier_does_not_embed(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path)
    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        status, message, _ = refusal(make_client(llm), texts=["a"])

    assert status == 501
    assert message.startswith("The model does not support Embeddings API")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:You should not use the 'timeout'")
def test_cohere_s_clients_of_both_versions_get_their_vectors(client: TestClient, llm: LLM) -> None:
    options: dict[str, Any] = {"api_key": "none", "base_url": "http://testserver", "httpx_client": client}
    older, newer = cohere.Client(**options), cohere.ClientV2(**options)
    many = [f"text {number}" for number in range(100)]  # version 1 sends them in two requests

    floats = older.embed(texts=many, model="mini", input_type="search_document")
    typed = older.embed(texts=TEXTS, model="mini", input_type="search_query", embedding_types=["int8", "float"])
    second = newer.embed(
        texts=TEXTS,
        model="mini",
        input_type="search_query",
        embedding_types=["float", "ubinary"],
        truncate="END",
        max_tokens=128,
    )

    assert floats.response_type == "embeddings_floats"
    assert np.allclose(floats.embeddings, vectors(llm, many), atol=1e-5)
    assert typed.response_type == "embeddings_by_type"
    assert second.embeddings.float_ is not None and second.embeddings.ubinary is not None
    assert typed.embeddings.float_ == second.embeddings.float_
    assert np.allclose(second.embeddings.float_, vectors(llm, TEXTS), atol=1e-6)
    assert second.meta is not None and second.meta.tokens is not None and second.meta.tokens.input_tokens
