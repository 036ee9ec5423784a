"""A real SPLADE model returns the embeddings of Sentence Transformers."""

from __future__ import annotations

import pytest
import torch
from sentence_transformers import SparseEncoder
from torch import Tensor
from torch.testing import assert_close

from cenote import LLM, SparseEmbeddingOutput
from cenote.bench.quality import mean_ndcg, read_retrieval
from tests.factories import LLMFactory
from tests.real.conftest import model_folder, shared_folder
from tests.real.texts import TEXTS

NAME = "splade-tiny"
TRUNCATE = {"truncate_prompt_tokens": -1}


@pytest.fixture(scope="module")
def llm(open_llm: LLMFactory) -> LLM:
    return open_llm(model_folder(NAME))


@pytest.fixture(scope="module")
def reference() -> SparseEncoder:
    return SparseEncoder(str(model_folder(NAME)), device="cpu", local_files_only=True)


def encode_with_reference(reference: SparseEncoder, texts: list[str]) -> Tensor:
    return reference.encode(texts, batch_size=4, convert_to_sparse_tensor=False, show_progress_bar=False)


def test_every_text_gets_the_vector_of_sentence_transformers(llm: LLM, reference: SparseEncoder) -> None:
    expected = encode_with_reference(reference, TEXTS)

    dense = [output.outputs.data for output in llm.embed(TEXTS, tokenization_kwargs=TRUNCATE, use_tqdm=False)]
    pairs = [output.outputs for output in llm.sparse_embed(TEXTS, tokenization_kwargs=TRUNCATE, use_tqdm=False)]

    assert_close(torch.stack(dense), expected, atol=1e-4, rtol=0)
    for output, vector in zip(pairs, expected, strict=True):
        sparse = torch.zeros_like(vector)
        sparse[output.token_ids] = torch.tensor(output.weights)
        assert_close(sparse, vector, atol=1e-4, rtol=0)
        assert len(output.token_ids) < 500


def test_the_words_are_those_that_the_library_decodes(llm: LLM, reference: SparseEncoder) -> None:
    text = "What is the capital of France?"
    decoded = dict(reference.decode(reference.encode(text, show_progress_bar=False)))  # type: ignore[arg-type]

    (output,) = llm.sparse_embed(text, use_tqdm=False)

    found = dict(zip(output.outputs.tokens, output.outputs.weights, strict=True))
    assert found == pytest.approx(decoded, abs=1e-4)
    assert {"france", "french", "paris", "capital"} <= found.keys()


@pytest.mark.slow
def test_a_small_collection_is_searched_as_well_as_by_the_library(
    llm: LLM, reference: SparseEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = read_retrieval(shared_folder("data", "scifact"), max_queries=15)
    relevant = {name for query in data.queries for name in data.relevant[query]}
    names = [*sorted(relevant), *[name for name in data.documents if name not in relevant][:25]]
    queries, documents = list(data.queries.values()), [data.documents[name] for name in names]
    monkeypatch.setattr(reference[0], "max_seq_length", 64)  # truncate, for speed
    expected = encode_with_reference(reference, queries) @ encode_with_reference(reference, documents).T

    cut = {"truncate_prompt_tokens": 64}
    found = [
        output.outputs for output in llm.sparse_embed([*queries, *documents], tokenization_kwargs=cut, use_tqdm=False)
    ]
    actual = torch.tensor([[overlap(query, text) for text in found[len(queries) :]] for query in found[: len(queries)]])
    (score, *_) = llm.score(queries[0], documents[:3], tokenization_kwargs=cut, use_tqdm=False)

    assert_close(actual, expected, atol=1e-3, rtol=0)
    assert score.outputs.score == pytest.approx(expected[0, 0].item(), abs=1e-3)
    figures = [
        mean_ndcg(data, {query: [names[place] for place in row] for query, row in zip(data.queries, best, strict=True)})
        for best in (scores.argsort(descending=True, stable=True).tolist() for scores in (actual, expected))
    ]
    assert figures[0] == pytest.approx(figures[1], abs=1e-3)
    assert 0.5 < figures[0] < 1


def overlap(query: SparseEmbeddingOutput, text: SparseEmbeddingOutput) -> float:
    """Dot product of sparse embeddings, as in a search engine."""
    weights = dict(zip(text.token_ids, text.weights, strict=True))
    return sum(weight * weights.get(token, 0.0) for token, weight in zip(query.token_ids, query.weights, strict=True))
