"""bge-m3 with its architecture overridden: token weights and token embeddings over /pooling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from starlette.testclient import TestClient
from torch.nn import functional as F
from torch.testing import assert_close

from tests.api.app_client import make_client
from tests.seeds.checkpoints import Models
from tests.tiny import compute_hidden_states

TEXTS = ["what is the old river in berlin?", "a red bird and a blue fish"]
OVERRIDE = ["--hf-overrides", '{"architectures": ["BgeM3EmbeddingModel"]}']


@pytest.fixture
def client(models: Models) -> TestClient:
    return make_client(models.load_as_served("bge-m3", *OVERRIDE))


def pool(client: TestClient, task: str) -> list[torch.Tensor]:
    reply = client.post("/pooling", json={"task": task, "input": TEXTS})
    assert reply.status_code == 200, reply.text
    return [torch.tensor(item["data"]) for item in reply.json()["data"]]


def tokenize(client: TestClient) -> list[list[int]]:
    return [client.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in TEXTS]


def test_bge_m3_embedding_model_override(client: TestClient, models: Models) -> None:
    encoder, sparse, colbert = models.reference("bge-m3")
    states = compute_hidden_states(encoder, tokenize(client))

    expected: list[tuple[str, Any]] = [
        ("token_classify", lambda rows: sparse(rows).relu()[1:-1].squeeze(-1)),
        ("token_embed", lambda rows: F.normalize(colbert(rows)[1:], dim=-1)),
        ("embed", lambda rows: F.normalize(rows[0], dim=0)),
    ]
    for task, compute in expected:
        for actual, rows in zip(pool(client, task), states, strict=True):
            assert_close(actual.reshape(compute(rows).shape), compute(rows), atol=1e-4, rtol=1e-4)


def test_token_weights_pair_with_tokenize(client: TestClient) -> None:
    weights = pool(client, "token_classify")

    # all but the first and the last token
    assert [len(row) for row in weights] == [len(tokens) - 2 for tokens in tokenize(client)]
    assert float(torch.cat(weights).min()) == 0 < float(torch.cat(weights).max())
