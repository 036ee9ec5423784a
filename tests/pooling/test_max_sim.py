"""MaxSim over packed documents equals the sum computed term by term."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from cenote.layers.torch_dtypes import to_array
from cenote.pooling import max_sim as module
from cenote.pooling.max_sim import max_sim, max_sim_pairs
from cenote.pooling.torch_ops import TorchOps
from cenote.utils.arrays import Array

OPS = TorchOps()
COUNTS = [3, 1, 40, 7, 7, 2]


def documents(seed: int = 0) -> Tensor:
    return torch.randn(sum(COUNTS), 8, generator=torch.Generator().manual_seed(seed))


def queries(*lengths: int) -> list[Tensor]:
    return [torch.randn(length, 8, generator=torch.Generator().manual_seed(length)) for length in lengths]


def to_host(*tensors: Tensor) -> list[Array]:
    return [tensor.numpy() for tensor in tensors]


def expected_score(query: Tensor, document: Tensor) -> float:
    return sum(max(float(q @ d) for d in document) for q in query)


@pytest.mark.parametrize("max_similarities", [1 << 24, 100, 20, 1])  # all at once, some documents, parts of one
def test_every_query_token_counts_its_best_match(max_similarities: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SIMILARITIES", max_similarities)
    (query,), rows = queries(5), documents()

    scores = max_sim(OPS, query, rows, COUNTS)

    expected = [expected_score(query, document) for document in torch.split(rows, COUNTS)]
    assert_close(scores, torch.tensor(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("max_similarities", [1 << 24, 1000, 300, 1])
def test_documents_may_have_different_queries_in_any_order(
    max_similarities: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SIMILARITIES", max_similarities)
    one, two, three = to_host(*queries(5, 1, 9))
    pairs, rows = [one, two, one, three, two, one], documents()

    scores = max_sim_pairs(OPS, pairs, rows, COUNTS)

    expected = [
        expected_score(torch.from_numpy(query), document)
        for query, document in zip(pairs, torch.split(rows, COUNTS), strict=True)
    ]
    assert_close(scores, torch.tensor(expected), atol=1e-5, rtol=0)


def test_a_document_without_rows_has_score_zero() -> None:
    (query,), rows = queries(3), documents()[:4]

    assert_close(max_sim(OPS, query, rows, [0, 4, 0])[[0, 2]], torch.zeros(2))
    assert_close(max_sim(OPS, query, rows[:0], [0]), torch.zeros(1))
    assert_close(max_sim_pairs(OPS, to_host(query, *queries(2, 5)), rows, [0, 4, 0])[[0, 2]], torch.zeros(2))
    assert_close(max_sim_pairs(OPS, to_host(query, query[:0]), rows, [2, 2])[1], torch.zeros(()))


def test_half_precision_is_summed_in_float32() -> None:
    (query,), rows = queries(64), documents().bfloat16()

    scores = max_sim_pairs(OPS, [to_array(query.bfloat16())] * len(COUNTS), rows, COUNTS)

    assert scores.dtype == torch.float32
    assert_close(scores, max_sim(OPS, query.bfloat16().float(), rows.float(), COUNTS))


@pytest.mark.gpu
def test_a_gpu_gives_the_same_scores() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    (one, two), rows = to_host(*queries(5, 9)), documents()
    pairs = [one, two, one, one, two, one]

    scores = max_sim_pairs(OPS, pairs, rows.cuda(), COUNTS)

    assert scores.is_cuda
    assert_close(scores.cpu(), max_sim_pairs(OPS, pairs, rows, COUNTS), atol=1e-4, rtol=0)
