"""Images on every route give the results of `LLM`, and errors name the image."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from transformers import CLIPConfig, CLIPModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from cenote import LLM
from tests.api.app_client import assert_refused, load_llm, make_client, post_json
from tests.api.image_helpers import (
    CAT,
    DOG,
    data_uri,
    image_part,
    make_message,
    make_untrusted_client,
    save_tiny_vl_reranker,
    text_part,
)
from tests.factories import LLMFactory
from tests.models.tiny_qwen3_vl import IMAGE, save_tiny_colqwen3, save_tiny_qwen3_vl
from tests.models.two_towers import TEXT, VISION, save

QUERY = "the cat is in the city"
EMPTY = "data:image/png;base64,"
PAIRS = [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")]
COHERE = ["/v1/embed", "/v2/embed"]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory, open_llm: LLMFactory) -> LLM:
    folder = tmp_path_factory.mktemp("embedder")
    save_tiny_qwen3_vl(folder)
    prompts = {"prompts": {"query": "who is this?", "document": ""}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return open_llm(folder, limit_mm_per_prompt={"image": 2})


@pytest.fixture(scope="module")
def colqwen(shared_llm: LLMFactory) -> LLM:
    """ColQwen3: token embeddings, late interaction."""
    return shared_llm(save_tiny_colqwen3, limit_mm_per_prompt={"image": 2})


@pytest.fixture(scope="module")
def vl_reranker(shared_llm: LLMFactory) -> LLM:
    return shared_llm(save_tiny_vl_reranker)


@pytest.fixture(scope="module")
def client(embedder: LLM) -> Iterator[TestClient]:
    with make_untrusted_client(embedder) as client:
        yield client


@pytest.fixture(scope="module")
def colqwen_client(colqwen: LLM) -> Iterator[TestClient]:
    with make_untrusted_client(colqwen) as client:
        yield client


def render_chat(*contents: str, role: str = "user") -> str:
    """Render messages as the template of the tiny models does."""
    return "".join(f"<|im_start|>{role}\n{content}<|im_end|>\n" for content in contents)


def make_prompt(text: str, *images: Any) -> dict[str, Any]:
    return {"prompt": text, "multi_modal_data": {"image": list(images)}}


def expected(llm: LLM, *prompts: Any, task: str = "embed") -> list[Any]:
    options = {"add_special_tokens": False}
    outputs = llm.encode(list(prompts), pooling_task=task, use_tqdm=False, tokenization_kwargs=options)
    return [output.outputs.data.numpy() for output in outputs]


def post_vectors(client: TestClient, path: str = "/v1/embeddings", **body: Any) -> list[Any]:
    data = post_json(client, path, **body)["data"]
    return [item["embedding" if "embedding" in item else "data"] for item in data]


def assert_same(one: Any, other: Any) -> None:
    assert len(one) == len(other)
    for ours, theirs in zip(one, other, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


# conversations


def test_an_image_is_inserted_at_its_position_in_a_message(client: TestClient, embedder: LLM) -> None:
    messages = [make_message(text_part("the dog"), image_part(CAT), text_part("in the river"))]

    found = post_vectors(client, messages=messages)

    assert_same(found, expected(embedder, make_prompt(render_chat(f"the dog{IMAGE}in the river"), CAT)))
    without = post_vectors(client, messages=[make_message(text_part("the dog"), text_part("in the river"))])
    assert np.abs(np.array(found) - without).max() > 0.01


def test_conversations_with_images_in_messages_or_input(client: TestClient, embedder: LLM) -> None:
    one, two = (
        [make_message(image_part(CAT))],
        [make_message(text_part("a"), role="system"), make_message(image_part(DOG), image_part(CAT))],
    )
    theirs = expected(
        embedder,
        make_prompt(render_chat(IMAGE), CAT),
        make_prompt(render_chat("a", role="system") + render_chat(IMAGE + IMAGE), DOG, CAT),
    )

    assert_same(post_vectors(client, messages=one), theirs[:1])
    assert_same(post_vectors(client, input=one), theirs[:1])
    assert_same(post_vectors(client, messages=[one, two]), theirs)
    assert_same(post_vectors(client, "/pooling", input=[one, two], task="embed"), theirs)


def test_every_format_of_an_image_part_is_accepted(client: TestClient, embedder: LLM) -> None:
    url = data_uri(CAT)
    parts: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
        {"type": "image_url", "image_url": url},
        {"type": "input_image", "image_url": url},
        {"type": "image", "image": url},
        {"image_url": {"url": url}},
        {"image": url},
    ]

    found = post_vectors(client, messages=[[make_message(part)] for part in parts])

    assert_same(found, expected(embedder, make_prompt(render_chat(IMAGE), CAT)) * len(parts))


@pytest.mark.parametrize("image_format", ["JPEG", "WEBP", "GIF"])
def test_other_image_formats_are_accepted(client: TestClient, image_format: str) -> None:
    assert len(post_vectors(client, messages=[make_message(image_part(data_uri(CAT, image_format)))])) == 1


def test_image_tokens_have_token_embeddings(colqwen_client: TestClient, colqwen: LLM) -> None:
    messages = [make_message(image_part(DOG), text_part("the river"))]

    found = post_vectors(colqwen_client, "/pooling", messages=messages, task="token_embed")

    assert_same(found, expected(colqwen, make_prompt(render_chat(f"{IMAGE}the river"), DOG), task="token_embed"))


def test_an_image_is_classified(vl_reranker: LLM) -> None:
    reply = make_client(vl_reranker).post(
        "/classify", json={"messages": [make_message(image_part(CAT), text_part("the river"))]}
    )

    (probs,) = expected(vl_reranker, make_prompt(render_chat(f"{IMAGE}the river"), CAT), task="classify")
    assert reply.status_code == 200, reply.text
    np.testing.assert_allclose(reply.json()["data"][0]["probs"], probs, atol=1e-5)
    assert reply.json()["data"][0]["label"] == ["cat", "dog", "neither"][int(np.argmax(probs))]


def test_tokenize_counts_image_tokens(client: TestClient, embedder: LLM) -> None:
    messages = [make_message(image_part(CAT), text_part("the river"))]
    body = {"messages": messages, "add_generation_prompt": False}

    reply = client.post("/tokenize", json=body).json()
    smaller = client.post("/tokenize", json=body | {"mm_processor_kwargs": {"max_pixels": 256}}).json()

    text = make_prompt(render_chat(f"{IMAGE}the river"), CAT)
    ids = embedder.embed(text, use_tqdm=False, tokenization_kwargs={"add_special_tokens": False})[0].prompt_token_ids
    assert reply["tokens"] == list(ids)
    assert reply["count"] > smaller["count"]
    used = client.post("/v1/embeddings", json={"messages": messages}).json()["usage"]["prompt_tokens"]
    assert used == reply["count"]


def test_a_request_may_set_image_processor_options(client: TestClient, embedder: LLM) -> None:
    kwargs = {"max_pixels": 256}

    found = post_vectors(
        client, messages=[make_message(image_part(CAT))], mm_processor_kwargs=kwargs, media_io_kwargs={}
    )

    assert_same(found, expected(embedder, make_prompt(render_chat(IMAGE), CAT) | {"mm_processor_kwargs": kwargs}))
    assert np.abs(np.array(found) - post_vectors(client, messages=[make_message(image_part(CAT))])).max() > 1e-4


# queries and documents


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_scores_compare_texts_and_images_in_any_combination(
    colqwen_client: TestClient, colqwen: LLM, first: str, second: str
) -> None:
    cat, both = {"content": [image_part(CAT)]}, {"content": [image_part(DOG), text_part("the river")]}
    pairs = [(QUERY, [cat, both, "the dog"]), (cat, [QUERY, cat]), ([both, QUERY], [QUERY, both])]

    for queries, documents in pairs:
        reply = colqwen_client.post("/score", json={first: queries, second: documents})
        assert reply.status_code == 200, reply.text
        scores = [output.outputs.score for output in colqwen.score(queries, documents, use_tqdm=False)]
        assert_same([item["score"] for item in reply.json()["data"]], scores)


def test_a_score_is_max_sim_of_the_token_embeddings(colqwen_client: TestClient, colqwen: LLM) -> None:
    reply = colqwen_client.post(
        "/score", json={"data_1": QUERY, "data_2": {"content": [text_part("dog"), image_part(DOG)]}}
    )

    (query,) = colqwen.encode(QUERY, pooling_task="token_embed", use_tqdm=False)
    (document,) = colqwen.encode(make_prompt(f"{IMAGE}\ndog", DOG), pooling_task="token_embed", use_tqdm=False)
    rows = query.outputs.data @ document.outputs.data.T
    assert reply.json()["data"][0]["score"] == pytest.approx(rows.amax(dim=1).sum().item(), abs=1e-4)


def test_an_embedding_model_scores_by_cosine(client: TestClient, embedder: LLM) -> None:
    reply = client.post(
        "/score", json={"queries": {"content": [image_part(CAT)]}, "documents": {"content": [image_part(CAT)]}}
    )

    assert reply.json()["data"][0]["score"] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_with_images_are_returned_unchanged(colqwen_client: TestClient, colqwen: LLM, path: str) -> None:
    parts = [image_part(CAT), text_part("the river")]
    documents = [{"content": parts, "id": 7}, "the dog", {"image": data_uri(DOG)}]

    reply = colqwen_client.post(path, json={"query": QUERY, "documents": documents, "top_n": 3})

    assert reply.status_code == 200, reply.text
    results = sorted(reply.json()["results"], key=lambda result: result["index"])
    scores = [output.outputs.score for output in colqwen.score(QUERY, documents, use_tqdm=False)]
    assert_same([result["relevance_score"] for result in results], scores)
    assert results[0]["document"] == {"text": None, "multi_modal": parts, "id": 7}
    assert results[1]["document"] == {"text": "the dog", "multi_modal": None}
    assert results[2]["document"]["text"] is None and results[2]["document"]["multi_modal"][0]["image"] == data_uri(DOG)


def test_documents_returned_as_strings_contain_their_text_parts(colqwen: LLM) -> None:
    client = make_client(colqwen, rerank_document_shape="string")
    documents = [{"content": [image_part(CAT), text_part("the river"), text_part("is deep")]}]

    reply = client.post("/rerank", json={"query": {"content": [image_part(DOG)]}, "documents": documents})

    assert reply.json()["results"][0]["document"] == "the river\nis deep"


def test_image_options_apply_to_query_and_document(colqwen_client: TestClient, colqwen: LLM) -> None:
    body = {"queries": {"content": [image_part(CAT)]}, "documents": {"content": [image_part(DOG)]}}

    default, smaller = (
        colqwen_client.post("/score", json=body | options).json()["usage"]["prompt_tokens"]
        for options in ({}, {"mm_processor_kwargs": {"max_pixels": 256}})
    )

    assert smaller < default


# Cohere


@pytest.mark.parametrize("path", COHERE)
def test_cohere_images_become_conversations(client: TestClient, embedder: LLM, path: str) -> None:
    body = {"images": [data_uri(CAT), data_uri(DOG)], "input_type": "image", "embedding_types": ["float"]}

    reply = client.post(path, json=body)

    assert reply.status_code == 200, reply.text
    assert_same(
        reply.json()["embeddings"]["float"],
        expected(embedder, make_prompt(render_chat(IMAGE), CAT), make_prompt(render_chat(IMAGE), DOG)),
    )
    units = reply.json()["meta"]["billed_units"]
    assert units["input_tokens"] == 0 and units["image_tokens"] > 2 and units["images"] == 2
    assert "texts" not in reply.json()


def test_cohere_inputs_mix_texts_and_images(client: TestClient, embedder: LLM) -> None:
    inputs = [{"content": [text_part("the dog"), image_part(CAT)]}, {"content": [text_part("the river")]}]

    without_prompt = client.post("/v2/embed", json={"inputs": inputs, "input_type": "search_document"}).json()
    with_prompt = client.post("/v2/embed", json={"inputs": inputs, "input_type": "search_query"}).json()

    contents = [render_chat(f"the dog{IMAGE}"), render_chat("the river")]
    assert_same(without_prompt["embeddings"]["float"], expected(embedder, make_prompt(contents[0], CAT), contents[1]))
    system = render_chat("who is this?", role="system")
    assert_same(
        with_prompt["embeddings"]["float"],
        expected(embedder, make_prompt(system + contents[0], CAT), system + contents[1]),
    )
    assert without_prompt["meta"]["billed_units"]["images"] == 1


def test_cohere_max_tokens_applies_to_images(client: TestClient) -> None:
    body = {"images": [data_uri(CAT)], "truncate": "NONE", "max_tokens": 3}

    reply = client.post("/v2/embed", json=body)

    assert_refused(reply, "tokens exceeds max_tokens=3 with truncate=NONE", "max_tokens")


def test_a_two_tower_model_embeds_texts_and_images_separately(tmp_path: Path) -> None:
    config = CLIPConfig(text_config=dict(TEXT), vision_config=VISION | {"image_size": 28}, projection_dim=20)
    processor = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    reference = save(tmp_path, config, CLIPModel, processor)
    inputs = [{"content": [text_part("the cat")]}, {"content": [image_part(CAT)]}]

    with load_llm(tmp_path) as llm, make_untrusted_client(llm) as client:
        found = client.post("/v2/embed", json={"inputs": inputs, "input_type": "search_document"}).json()
        image = client.post("/v2/embed", json={"images": [data_uri(CAT)], "input_type": "image"}).json()
        both = client.post("/v2/embed", json={"inputs": [{"content": [text_part("a"), image_part(CAT)]}]})
        score = client.post("/score", json={"queries": "the cat", "documents": inputs[1]}).json()

    text, cat = (reference.vector(value).numpy() for value in ("the cat", CAT))
    np.testing.assert_allclose(found["embeddings"]["float"], [text, cat], atol=1e-4)
    np.testing.assert_allclose(image["embeddings"]["float"], [cat], atol=1e-4)
    assert_refused(both, "CLIP accepts text-only or image-only inputs, not both!", "multi_modal_data")
    assert score["data"][0]["score"] == pytest.approx(float(text @ cat), abs=1e-4)


# errors

CORRUPT = "data:image/png;base64,iVBORw0KGgo="
INVALID_PARTS: list[tuple[Any, str]] = [
    (image_part(EMPTY), "empty, 0 bytes"),
    (image_part(CORRUPT), "header is corrupt or truncated"),
    (image_part("data:image/png;base64,***"), "base64"),
    (image_part("data:text/plain;base64,aGVsbG8="), ""),
    (image_part("http://127.0.0.1/cat.png"), ""),
    (image_part("file:///etc/passwd"), ""),
    (image_part("cat.png"), "unsupported image URL"),
    (image_part(""), "has no image_url"),
    ({"type": "image_url", "image_url": 5}, "int"),
    ({"type": "image_url"}, "has no image_url"),
    ({"type": "image"}, "has no image"),
    ({"type": "picture", "url": "x"}, ".type: invalid value 'picture'; expected one of:"),
    ({"type": "image_embeds", "image_embeds": "AAAA"}, "reads text and images only"),
    ({"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AA=="}}, "reads text and images only"),
    ({"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA=="}}, "reads text and images only"),
    (7, "must be an object with a type, got int"),
]


@pytest.mark.parametrize(("part", "words"), INVALID_PARTS)
def test_an_invalid_part_is_named_in_a_conversation(client: TestClient, part: Any, words: str) -> None:
    reply = client.post(
        "/v1/embeddings",
        json={"messages": [[make_message("fine")], [make_message("a"), make_message(text_part("b"), part)]]},
    )

    assert reply.status_code == 400, reply.text
    assert "messages[1].content[1]" in reply.json()["message"] and words in reply.json()["message"], reply.text
    assert reply.json()["error"]["index"] == 1


@pytest.mark.parametrize(("part", "words"), INVALID_PARTS)
def test_an_invalid_part_is_named_in_query_and_document(colqwen_client: TestClient, part: Any, words: str) -> None:
    for body in (
        {"queries": "a", "documents": ["fine", {"content": [text_part("b"), part]}]},
        {"queries": ["fine", {"content": [text_part("b"), part]}], "documents": ["a", "b"]},
    ):
        reply = colqwen_client.post("/score", json=body)

        assert reply.status_code == 400, reply.text
        name = "queries[1].content[1]" if isinstance(body["queries"], list) else "documents[1].content[1]"
        assert name in reply.json()["message"] and words in reply.json()["message"], reply.text
        if isinstance(body["queries"], str):
            assert reply.json()["error"]["index"] == 1


@pytest.mark.parametrize("path", COHERE)
def test_errors_about_cohere_images_name_their_field(client: TestClient, path: str) -> None:
    reply = client.post(path, json={"images": [data_uri(CAT), CORRUPT]})
    assert_refused(reply, "images[1]: ", "images[1]")
    assert reply.json()["error"]["index"] == 1

    reply = client.post(path, json={"inputs": [{"content": [text_part("a"), image_part(EMPTY)]}]})
    assert_refused(reply, "inputs[0].content[1]: ", "inputs[0].content[1]")


def test_too_many_images_are_refused_with_the_limit(client: TestClient, colqwen_client: TestClient) -> None:
    parts = [image_part(CAT)] * 3
    words = "At most 2 image(s) may be provided in one prompt, got 3"

    for reply, name in (
        (client.post("/v1/embeddings", json={"messages": [make_message(*parts)]}), "messages[0].content[2]"),
        (colqwen_client.post("/score", json={"queries": "a", "documents": {"content": parts}}), "documents.content[2]"),
    ):
        assert reply.status_code == 400
        assert words in reply.json()["message"] and name in reply.json()["message"], reply.text


def test_images_above_the_maximum_length_are_not_all_preprocessed(colqwen: LLM) -> None:
    with load_llm(Path(colqwen.config.model), max_model_len=40) as llm, make_untrusted_client(llm) as client:
        reply = client.post("/pooling", json={"messages": [make_message(*[image_part(CAT)] * 100)]})

    assert reply.status_code == 400
    assert "of 100 images are" in reply.json()["message"], reply.text
    assert "this model reads at most 40" in reply.json()["message"]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"colour": "red"},
        {"max_pixels": "many"},
        {"max_pixels": -5},
        {"min_pixels": 10**15, "max_pixels": 10**15},
        {"max_pixels": {"a": 1}},
    ],
)
def test_invalid_image_options_are_refused(client: TestClient, kwargs: dict[str, Any]) -> None:
    reply = client.post(
        "/v1/embeddings", json={"messages": [make_message(image_part(CAT))], "mm_processor_kwargs": kwargs}
    )

    assert reply.status_code == 400, reply.text


def test_image_options_must_be_an_object(client: TestClient) -> None:
    for path, body in (
        ("/v1/embeddings", {"messages": [make_message(image_part(CAT))]}),
        ("/score", {"queries": "a", "documents": "b"}),
        ("/v2/embed", {"texts": ["a"]}),
        ("/tokenize", {"prompt": "a"}),
    ):
        reply = client.post(path, json=body | {"mm_processor_kwargs": [1]})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "body.mm_processor_kwargs"


def test_a_template_that_omits_an_image_is_refused(embedder: LLM) -> None:
    client = make_client(embedder, trust_request_chat_template=True)

    for template in ("the dog", "{% for m in messages %}" + IMAGE * 2 + "{% endfor %}"):
        reply = client.post(
            "/v1/embeddings", json={"messages": [make_message(image_part(CAT))], "chat_template": template}
        )
        assert reply.status_code == 400
        assert "1 images were given" in reply.json()["message"], reply.text


def test_an_invalid_image_does_not_affect_later_requests(client: TestClient) -> None:
    with pytest.raises(AssertionError, match="empty"):
        post_vectors(client, messages=[[make_message(image_part(CAT))], [make_message(image_part(EMPTY))]])

    assert len(post_vectors(client, messages=[[make_message(image_part(CAT))], [make_message(image_part(DOG))]])) == 2


def test_a_text_model_names_the_image_part_it_refuses(llm: LLM) -> None:
    client, part = make_client(llm), image_part(CAT)

    for path in ("/v1/embeddings", "/pooling", "/tokenize"):
        reply = client.post(path, json={"messages": [make_message("a", part)]})
        assert reply.status_code == 400  # this model has no chat template either
    for path, body, name in (
        ("/score", {"data_1": "a", "data_2": ["b", {"content": [part]}]}, "data_2.1.content.0"),
        ("/rerank", {"query": {"content": [text_part("a"), part]}, "documents": ["b"]}, "query.content.1"),
    ):
        assert_refused(client.post(path, json=body), "MultiModalParam is not supported for BertModel", name)
    for path in COHERE:
        assert_refused(client.post(path, json={"images": [data_uri(CAT)]}), "does not support images", "images")


# OpenAPI document


def test_the_openapi_document_describes_image_fields(client: TestClient) -> None:
    text = client.get("/openapi.json").text

    assert "no model here reads images" not in text
    assert "Images as data URIs, or URLs" in text and "such as max_pixels" in text
    assert "no model here reads images" not in client.get("/docs").text


def test_requests_may_read_images_below_the_allowed_path(tmp_path: Path, embedder: LLM) -> None:
    (tmp_path / "images").mkdir()
    CAT.save(tmp_path / "images" / "cat.png")
    CAT.save(tmp_path / "cat.png")
    inside, outside = f"file://{tmp_path}/images/cat.png", f"file://{tmp_path}/cat.png"
    options = {"allowed_local_media_path": str(tmp_path / "images")}

    with load_llm(Path(embedder.config.model), **options) as llm, make_untrusted_client(llm) as client:
        found = post_vectors(client, messages=[make_message(image_part(inside))])
        refused = client.post("/v1/embeddings", json={"messages": [make_message(image_part(outside))]})

    assert_same(found, expected(embedder, make_prompt(render_chat(IMAGE), CAT)))
    assert refused.status_code == 400
