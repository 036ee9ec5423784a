"""Search by meaning and by words at once, and merge both rankings by reciprocal rank fusion.

    python examples/hybrid_search.py
    python examples/hybrid_search.py --sparse-model naver/splade-v3 --question "gluten in rye"

Without --sparse-model, words are compared with BM25. SPLADE models and bge-m3 weight related words too.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from collections.abc import Sequence

from passages import TEXTS
from semantic_search import embed

from cenote import LLM


def bm25(question: str, texts: Sequence[str], k1: float = 1.5, b: float = 0.75) -> list[float]:
    documents = [Counter(re.findall(r"\w+", text.lower())) for text in texts]
    mean = sum(document.total() for document in documents) / len(documents)
    scores = [0.0] * len(texts)
    for word in set(re.findall(r"\w+", question.lower())):
        matches = sum(word in document for document in documents)
        weight = math.log(1 + (len(documents) - matches + 0.5) / (matches + 0.5))
        for index, document in enumerate(documents):
            length = k1 * (1 - b + b * document.total() / mean)
            scores[index] += weight * document[word] * (k1 + 1) / (document[word] + length)
    return scores


def sparse_scores(llm: LLM, question: str, texts: Sequence[str]) -> list[float]:
    """Return the dot products of sparse embeddings."""
    cut = {"truncate_prompt_tokens": -1}  # long texts are cut, not refused
    replies = llm.sparse_embed([question, *texts], tokenization_kwargs=cut, use_tqdm=False)
    outputs = [reply.outputs for reply in replies]
    query, *documents = [dict(zip(output.token_ids, output.weights, strict=True)) for output in outputs]
    return [sum(weight * document.get(token, 0.0) for token, weight in query.items()) for document in documents]


def fuse(*scores: Sequence[float], k: int = 60) -> list[float]:
    """Return the sum of 1 / (k + rank) over all rankings."""
    fused = [0.0] * len(scores[0])
    for ranking in scores:
        for rank, index in enumerate(sorted(range(len(ranking)), key=lambda index: -ranking[index]), start=1):
            fused[index] += 1 / (k + rank)
    return fused


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="embedding model: a folder or hub name; a small bundled model if unset")
    parser.add_argument("--sparse-model", help="a SPLADE model or bge-m3: a folder or hub name")
    parser.add_argument("--question", default="line that opened in 1964")
    args = parser.parse_args(arguments)
    with LLM(args.model) as llm:
        dense = (embed(llm, TEXTS) @ embed(llm, [args.question])[0]).tolist()
    words = bm25(args.question, TEXTS)
    if args.sparse_model:
        with LLM(args.sparse_model) as llm:
            words = sparse_scores(llm, args.question, TEXTS)
    fused = fuse(dense, words)
    print("fused   dense   words")
    for index in sorted(range(len(TEXTS)), key=lambda index: -fused[index])[:3]:
        print(f"{fused[index]:.4f}  {dense[index]:.4f}  {words[index]:6.3f}  {TEXTS[index]}")


if __name__ == "__main__":
    main()
