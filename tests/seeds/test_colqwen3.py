"""ColQwen3 models: texts and images on the scoring routes, on /pooling and offline.

The model recognises colours, so that the right order of images is known.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient
from torch.testing import assert_close

from cenote import LLM, BadRequest
from tests.api.app_client import make_client
from tests.api.image_helpers import data_uri, image_part, make_message, text_part
from tests.models.tiny_qwen3_vl import INPUTS, states_of
from tests.seeds.checkpoints import Models, encode, score

MODEL = "TomoroAI/tomoro-colqwen3-embed-4b"
RED, BLUE = (Image.new("RGB", (64, 64), colour) for colour in ("red", "blue"))
TEXTS = ["the blue sea", "a red bar", "a page of text"]


@pytest.fixture
def llm(models: Models) -> LLM:
    return models.load("colours", served_model_name=MODEL)


@pytest.fixture
def client(llm: LLM) -> TestClient:
    return make_client(llm)


def post(client: TestClient, route: str, **body: Any) -> Any:
    reply = client.post(route, json={"model": MODEL, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def document(image: Image.Image | str) -> dict[str, Any]:
    return {"content": [image_part(image), text_part("Describe the image.")]}


def test_colqwen3_text_rerank_and_score(llm: LLM, client: TestClient) -> None:
    expected = score(llm, "red", TEXTS)
    results = post(client, "/rerank", query="red", documents=TEXTS)["results"]
    scores = post(client, "/score", text_1="red", text_2=TEXTS)["data"]

    assert max(expected) == expected[1]
    assert results[0]["index"] == 1
    assert [item["score"] for item in scores] == pytest.approx(expected, abs=1e-4)


def test_colqwen3_score_of_image_documents(client: TestClient) -> None:
    red, blue = post(client, "/score", data_1="red", data_2=[document(RED), document(BLUE)])["data"]

    assert red["score"] > blue["score"] + 0.1


def test_colqwen3_rerank_of_image_documents_with_top_n(client: TestClient) -> None:
    documents = [document(RED), document(BLUE), document(RED)]

    results = post(client, "/rerank", query="blue", documents=documents, top_n=2)["results"]

    assert len(results) == 2
    assert results[0]["index"] == 1
    assert results[0]["relevance_score"] > results[1]["relevance_score"] + 0.1


def test_colqwen3_pooling_of_texts_and_of_messages_with_an_image(client: TestClient) -> None:
    image = Image.new("RGB", (320, 240), "red")
    (text,) = post(client, "/pooling", input="What is machine learning?", task="token_embed")["data"]
    (with_image,) = post(client, "/pooling", messages=[make_message(image_part(image), text_part("red"))])["data"]

    rows = [torch.tensor(item["data"]) for item in (text, with_image)]
    assert [row.shape[1] for row in rows] == [8, 8]
    assert len(rows[1]) > 10 * 8 > len(rows[0])  # a token for every 32 by 32 pixels, and those of the message
    assert_close(torch.cat(rows).norm(dim=-1), torch.ones(len(rows[0]) + len(rows[1])))


def test_max_model_len(models: Models) -> None:
    longer = '{"text_config": {"max_position_embeddings": 8192}}'

    llm = models.load_as_served("colours", "--max-model-len", "4096", "--hf-overrides", longer)

    assert llm.model_config.max_model_len == 4096
    assert len(encode(llm, "red " * 4096, "token_embed")[0]) == 4096
    with pytest.raises(BadRequest, match="4096"):
        encode(llm, "red " * 4097, "token_embed")


def test_ops_colqwen3_model(models: Models) -> None:
    llm = models.load("ops colqwen3")

    vlm, projection = models.reference("ops colqwen3")
    for prompt, images in INPUTS:
        prompts = {"prompt": prompt, "multi_modal_data": {"image": images}} if images else prompt
        (rows,) = encode(llm, prompts, "token_embed")
        states = states_of(vlm, models.folder("ops colqwen3"), prompt, images)
        expected = torch.nn.functional.normalize(projection(states), dim=-1)
        assert_close(rows, expected, atol=1e-4, rtol=1e-4)


def test_llm_score_with_images(llm: LLM) -> None:
    forms = [{"type": "image_pil", "image_pil": RED}, image_part(RED), image_part(BLUE)]

    pil, uri, blue, text = score(llm, "red", [*({"content": [part]} for part in forms), "something blue"])

    assert pil == pytest.approx(uri, abs=1e-5)
    assert pil > blue + 0.1 and pil > text + 0.1
    (same,) = score(llm, {"content": [image_part(RED)]}, {"content": [image_part(RED)]})
    (other,) = score(llm, {"content": [image_part(RED)]}, {"content": [image_part(BLUE)]})
    assert same > other


@pytest.fixture
def image_url() -> Iterator[str]:
    """The URL of a red image on a web server of this machine."""
    file = io.BytesIO()
    RED.save(file, "PNG")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(file.getvalue())))
            self.end_headers()
            self.wfile.write(file.getvalue())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/red.png"
        server.shutdown()
        thread.join()


def test_http_image_urls_offline(models: Models, image_url: str) -> None:
    fetched, sent = score(models.load("colours"), "red", [document(image_url), document(data_uri(RED))])

    assert fetched == pytest.approx(sent, abs=1e-5)
    restricted = models.load("colours", allowed_media_domains=("other.example",))
    with pytest.raises(BadRequest, match=r"(?<!-)\ballowed_media_domains"):  # the option of LLM, not the flag
        score(restricted, "red", document(image_url))
