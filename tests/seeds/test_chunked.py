"""Texts longer than the model's positions: chunks, their weighted mean, limits and log lines."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from openai import OpenAI
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from cenote import LLM, BadRequest, InputTooLong, PoolerConfig
from tests.seeds.checkpoints import Models, data_of
from tests.seeds.conftest import CHUNKED
from tests.serving.server_process import ServerProcess

LONG_TEXT = "Very long text that exceeds the model's position embeddings..." * 50
IDS = [7 + number % 100 for number in range(150)]  # the tiny BERT reads 66 at a time


def embed(llm: LLM, ids: list[int]) -> Tensor:
    (vector,) = data_of(llm.embed([ids], use_tqdm=False))
    return vector


def chunked(models: Models, **changes: Any) -> LLM:
    return models.load("bert", pooler_config=CHUNKED | changes)


def test_chunked_command_with_task_embed(embedding_server: ServerProcess) -> None:
    with embedding_server.client() as client:
        reply = client.post("/v1/embeddings", json={"input": LONG_TEXT}).json()

    assert len(reply["data"][0]["embedding"]) == 384
    assert reply["usage"]["prompt_tokens"] > 2 * 256  # the model reads 256


def test_chunked_is_off_by_default(models: Models) -> None:
    config = PoolerConfig()

    assert not config.enable_chunked_processing
    assert config.max_embed_len is None
    with pytest.raises(InputTooLong):
        embed(models.load("bert"), IDS)


def test_chunked_refuses_texts_above_max_embed_len(models: Models) -> None:
    llm = chunked(models, max_embed_len=100)

    assert len(embed(llm, IDS[:100])) == 32
    with pytest.raises(BadRequest, match="150.* exceeds max_embed_len 100"):
        embed(llm, IDS)


def test_chunked_logs_both_lines(models: Models, caplog: pytest.LogCaptureFixture) -> None:
    llm = chunked(models)

    with caplog.at_level("INFO", "cenote"):
        embed(llm, IDS)

    assert caplog.messages[-2:] == [
        "Input length 150 exceeds max_position_embeddings 66, will use chunked processing",
        "Split input of 150 tokens into 3 chunks (max_chunk_size: 66)",
    ]


def test_chunked_result_is_the_weighted_mean_with_the_same_size(models: Models) -> None:
    llm = chunked(models, normalize=False)

    chunks = [IDS[:66], IDS[66:132], IDS[132:]]
    weights = torch.tensor([len(chunk) for chunk in chunks]) / len(IDS)
    expected = (torch.stack([embed(llm, chunk) for chunk in chunks]) * weights[:, None]).sum(dim=0)
    assert_close(embed(llm, IDS), expected, atol=1e-5, rtol=1e-4)
    assert_close(embed(chunked(models), IDS).norm(), torch.tensor(1.0))  # normalised again
    assert float(F.cosine_similarity(embed(chunked(models), IDS), expected, dim=0)) > 0.5


def test_chunked_needs_no_environment_variable(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "CENOTE_ALLOW_LONG_MAX_MODEL_LEN"):
        monkeypatch.delenv(name, raising=False)

    llm = models.load("bert", pooler_config={"enable_chunked_processing": True, "max_embed_len": 100_000})

    assert llm.model_config.max_model_len == 66
    assert len(embed(llm, IDS * 20)) == 32


def test_chunked_openai_client_sample(embedding_server: ServerProcess) -> None:
    with OpenAI(api_key="your-api-key", base_url=f"{embedding_server.address}/v1") as client:
        response = client.embeddings.create(input=LONG_TEXT, model="multilingual-e5-large")

    assert len(response.data[0].embedding) == 384
    embedding_server.wait_for_line("exceeds max_position_embeddings 256, will use chunked processing")
