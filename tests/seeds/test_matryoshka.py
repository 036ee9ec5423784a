"""Embeddings of other sizes: who may have them, how a model is told, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from cenote import LLM, BadRequest, PoolingParams
from tests.api.app_client import make_client
from tests.seeds.checkpoints import Models, data_of
from tests.seeds.conftest import EMBEDDER
from tests.serving.server_process import ServerProcess

RABBIT = "Follow the white rabbit."
ANY_SIZE: dict[str, Any] = {"hf_overrides": {"is_matryoshka": True}}


def embed(llm: LLM, **params: Any) -> Tensor:
    (vector,) = data_of(llm.embed([RABBIT], pooling_params=PoolingParams(**params), use_tqdm=False))
    return vector


def test_matryoshka_refused_with_the_exact_error_body(embedding_server: ServerProcess) -> None:
    with embedding_server.client() as client:
        reply = client.post("/v1/embeddings", json={"input": RABBIT, "model": EMBEDDER, "dimensions": 32})

    expected = {
        "object": "error",
        "message": f'Model "{EMBEDDER}" does not support matryoshka representation, changing output dimensions will '
        "lead to poor results.",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
    assert reply.status_code == 400
    assert {name: reply.json()[name] for name in expected} == expected


def test_is_matryoshka_allows_any_size(models: Models) -> None:
    llm = models.load("bert", **ANY_SIZE)

    assert [len(embed(llm, dimensions=size)) for size in (32, 17, 1)] == [32, 17, 1]
    with pytest.raises(BadRequest, match=r"only supports dimensions in range \[1, 32\], got 100000"):
        embed(llm, dimensions=100_000)


def test_matryoshka_dimensions_allows_only_these_sizes(models: Models) -> None:
    llm = models.load("bert", hf_overrides={"matryoshka_dimensions": [16]})

    assert len(embed(llm, dimensions=16)) == 16
    with pytest.raises(BadRequest) as caught:
        embed(llm, dimensions=8)
    assert caught.value.message == (
        'Model "bert" only supports [16] matryoshka dimensions, use other output dimensions will lead to poor results.'
    )


@pytest.mark.parametrize("flag", ["--hf-overrides", "--hf_overrides"])
def test_hf_overrides_flag(flag: str, models: Models) -> None:
    llm = models.load_as_served("bert", flag, '{"matryoshka_dimensions":[16]}')

    assert len(embed(llm, dimensions=16)) == 16


def test_hf_overrides_option_as_a_dict_or_a_function(models: Models) -> None:
    def override(config: dict[str, Any]) -> dict[str, Any]:
        return config | {"is_matryoshka": True}

    for value in ({"is_matryoshka": True}, override):
        assert len(embed(models.load("bert", hf_overrides=value), dimensions=8)) == 8


def test_pooling_params_dimensions(models: Models) -> None:
    llm = models.load("bert", **ANY_SIZE)

    whole = embed(llm, normalize=False)
    assert_close(embed(llm, dimensions=8), F.normalize(whole[:8], dim=0))


def test_dimensions_in_a_request_body(models: Models) -> None:
    llm = models.load("bert", **ANY_SIZE)
    body = {"input": RABBIT, "model": "bert", "encoding_format": "float", "dimensions": 8}

    reply = make_client(llm).post("/v1/embeddings", json=body).json()

    assert reply["id"].startswith("embd-")
    assert (reply["object"], reply["model"]) == ("list", "bert") and type(reply["created"]) is int
    (item,) = reply["data"]
    assert (item["index"], item["object"]) == (0, "embedding")
    assert_close(torch.tensor(item["embedding"]), embed(llm, dimensions=8))
    usage = reply["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] > 0
    assert usage["completion_tokens"] == 0 and usage["prompt_tokens_details"] is None


def test_the_printed_output_shows_the_size(models: Models, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = models.load("bert", **ANY_SIZE).embed([RABBIT], pooling_params=PoolingParams(dimensions=8))

    print(outputs[0].outputs)

    assert capsys.readouterr().out == "EmbeddingOutput(hidden_size=8)\n"
