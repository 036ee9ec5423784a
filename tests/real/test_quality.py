"""Evaluation metrics on real data, compared with Sentence Transformers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cenote import LLM
from cenote.bench.quality import (
    make_cenote_embed,
    make_cenote_score,
    make_reference_embed,
    make_reference_score,
    mean_ndcg,
    rank_by_vectors,
    read_pairs,
    read_retrieval,
    rerank,
    similarity_correlation,
)
from tests.real.conftest import model_folder, shared_folder

NUM_PAIRS = 100
NUM_WORDS = 40  # of every document that is ranked


@pytest.mark.parametrize("name", ["default", "granite-embedding-30m-english"])
def test_people_and_model_agree_on_similarity_as_much_as_with_the_library(name: str) -> None:
    first, second, gold = read_pairs(shared_folder("data", "stsb-ccbysa") / "stsb_images_track5.tsv")
    pairs, folder = (first[:NUM_PAIRS], second[:NUM_PAIRS], gold[:NUM_PAIRS]), model_folder(name)

    with LLM(str(folder), dtype="float32") as llm:
        actual = similarity_correlation(*pairs, make_cenote_embed(llm))

    assert actual > 0.7
    assert abs(actual - similarity_correlation(*pairs, make_reference_embed(str(folder), "cpu"))) < 1e-3


def test_the_pairs_are_those_of_two_genres_that_the_documentation_names() -> None:
    file = shared_folder("data", "stsb-ccbysa") / "stsb_images_track5.tsv"
    genres = {line.split("\t")[1] for line in file.read_text().splitlines()[1:]}

    assert len(read_pairs(file)[0]) == 375
    assert genres == {"images", "track5.en-en"}


def test_a_small_collection_is_searched_and_reranked_as_well_as_by_the_library() -> None:
    whole = read_retrieval(shared_folder("data", "scifact"), max_queries=12)
    relevant = {name for query in whole.queries for name in whole.relevant[query]}
    others = [name for name in whole.documents if name not in relevant][:20]
    documents = {name: " ".join(whole.documents[name].split()[:NUM_WORDS]) for name in (*sorted(relevant), *others)}
    data = replace(whole, documents=documents)
    long = max((whole.documents[name] for name in relevant), key=len)  # both models truncate it
    embedder, reranker = model_folder("default"), model_folder("ms-marco-MiniLM-L12-v2")

    their_embed, their_score = make_reference_embed(str(embedder), "cpu"), make_reference_score(str(reranker), "cpu")
    with LLM(str(embedder), dtype="float32") as llm:
        ranked = rank_by_vectors(data, make_cenote_embed(llm))
        vectors = make_cenote_embed(llm)([long])
    expected = rank_by_vectors(data, their_embed)
    with LLM(str(reranker), dtype="float32") as llm:
        reranked = rerank(data, ranked, make_cenote_score(llm), depth=3)
        scores = make_cenote_score(llm)("a query", [long])
    their_reranked = rerank(data, expected, their_score, depth=3)

    assert 0.5 < mean_ndcg(data, ranked) < 1
    assert abs(mean_ndcg(data, ranked) - mean_ndcg(data, expected)) < 1e-3
    assert abs(mean_ndcg(data, reranked) - mean_ndcg(data, their_reranked)) < 1e-3
    assert np.allclose(vectors, their_embed([long]), atol=1e-5)
    assert np.allclose(scores, their_score("a query", [long]), atol=1e-3)
