"""Requests of guides to multimodal models, sent to a real server with two front-ends; only the images are replaced."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from cenote import LLM
from tests.api.image_helpers import CAT, DOG, image_part, make_message, text_part
from tests.factories import LLMFactory
from tests.models.tiny_qwen3_vl import IMAGE, save_tiny_colqwen3

from .server_process import ServerProcess

NAME = "TomoroAI/tomoro-colqwen3-embed-4b"
BEIJING, DESCRIBE = "Retrieve the city of Beijing", text_part("Describe the image.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("colqwen3")
    save_tiny_colqwen3(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder: Path, open_llm: LLMFactory) -> LLM:
    return open_llm(folder)


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    flags = ["--dtype", "float32", "--max-model-len", "400", "--served-model-name", NAME, "--api-server-count", "2"]
    flags += ["--limit-mm-per-prompt", '{"image": 3}', "--mm-processor-kwargs", '{"max_pixels": 2048}']
    server = ServerProcess(str(folder), *flags).wait_until_ready()
    with server.client() as client:
        yield client
    assert server.stop() == 0
    assert "Traceback" not in server.output


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    reply = client.post(path, json={"model": NAME} | body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def image_document(image: Any) -> dict[str, Any]:
    return {"content": [image_part(image), DESCRIBE]}


def describe_image(text: str, image: Any) -> dict[str, Any]:
    """Return the prompt with the max_pixels of the server, which differs from the model's files."""
    prompt = {"prompt": text, "multi_modal_data": {"image": image}}
    return prompt | {"mm_processor_kwargs": {"max_pixels": 2048}}


def token_embeddings(llm: LLM, prompt: Any, **kwargs: Any) -> Any:
    (output,) = llm.encode(prompt, pooling_task="token_embed", use_tqdm=False, tokenization_kwargs=kwargs)
    return output.outputs.data.numpy()


def max_sim(query: Any, document: Any) -> float:
    return float((query @ document.T).max(axis=1).sum())


def test_images_are_reranked_by_a_text(client: httpx.Client, llm: LLM) -> None:
    documents = [image_document(CAT), image_document(DOG)]

    reply = post(client, "/rerank", query=BEIJING, documents=documents, top_n=2)

    query = token_embeddings(llm, BEIJING)
    scores = [
        max_sim(query, token_embeddings(llm, describe_image(f"{IMAGE}\nDescribe the image.", image)))
        for image in (CAT, DOG)
    ]
    assert [result["index"] for result in reply["results"]] == np.argsort(scores)[::-1].tolist()
    for result in reply["results"]:
        assert result["relevance_score"] == pytest.approx(scores[result["index"]], abs=1e-4)
        assert result["document"] == {"text": None, "multi_modal": documents[result["index"]]["content"]}


def test_options_and_limits_reach_the_engine_from_every_front_end(folder: Path, client: httpx.Client) -> None:
    body = {"messages": [make_message(*[image_part(CAT)] * 4)]}
    for _ in range(4):  # connections reach either front-end
        with httpx.Client(base_url=client.base_url, timeout=60) as another:
            reply = another.post("/pooling", json=body)
            assert (reply.status_code, "At most 3 image(s)" in reply.text) == (400, True), reply.text
            reply = another.post(
                "/pooling", json={"messages": [make_message(image_part(CAT))], "mm_processor_kwargs": {"x": 1}}
            )
            assert (reply.status_code, "mm_processor_kwargs has 'x'" in reply.text) == (400, True), reply.text
            counts = [
                another.post("/tokenize", json={"messages": [make_message(image_part(CAT))]} | more).json()["count"]
                for more in ({}, {"mm_processor_kwargs": {"max_pixels": 256}})
            ]
            assert counts[1] < counts[0]
