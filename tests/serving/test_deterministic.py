"""`--deterministic`: servers and LLM return the same bits, under load and after a restart."""

from __future__ import annotations

import base64
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from cenote import LLM
from tests.serving.conftest import StartServer
from tests.tiny import WORDS


def embed(client: httpx.Client, texts: list[str]) -> list[bytes]:
    reply = client.post("/v1/embeddings", json={"input": texts, "encoding_format": "base64"}).raise_for_status()
    return [base64.b64decode(item["embedding"]) for item in reply.json()["data"]]


@pytest.mark.slow
def test_results_over_http_have_the_bits_of_llm_under_load_and_after_a_restart(
    start_server: StartServer, default_folder: Path
) -> None:
    rng = random.Random(0)
    texts = [f"{index} " + " ".join(rng.choices(WORDS, k=rng.randint(1, 24))) for index in range(24)]
    with LLM(str(default_folder), device="cpu", deterministic=True) as llm:
        embeddings = [np.float32(o.outputs.embedding).tobytes() for o in llm.embed(texts, use_tqdm=False)]
    expected = dict(zip(texts, embeddings, strict=True))
    for _ in range(2):
        # results are equal for equal numbers of threads
        server = start_server("--deterministic", OMP_NUM_THREADS=str(torch.get_num_threads())).wait_until_ready()
        assert "deterministic" in server.wait_for_line(r"runs ")
        requests = [rng.sample(texts, rng.choice((1, 1, 2, 7, 20))) for _ in range(12)]
        with server.client() as client, ThreadPoolExecutor(8) as pool:
            for request, results in zip(
                requests, pool.map(lambda request: embed(client, request), requests), strict=True
            ):
                assert results == [expected[text] for text in request]
        assert server.stop() == 0
