"""Select the context of a question for a language model: embeddings find candidates, a reranker selects the best.

    python examples/rag_with_reranking.py
    python examples/rag_with_reranking.py --reranker cross-encoder/ms-marco-MiniLM-L6-v2

Without --reranker, the embedding model scores the candidates too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from passages import TEXTS
from semantic_search import search

from cenote import LLM

PROMPT = """Answer the question from these passages only.

{passages}

Question: {question}
Answer:"""


def rerank(llm: LLM, question: str, candidates: Sequence[str], top: int) -> list[str]:
    scores = [output.outputs.score for output in llm.score(question, list(candidates), use_tqdm=False)]
    order = sorted(range(len(candidates)), key=lambda index: -scores[index])
    return [candidates[index] for index in order[:top]]


def make_prompt(question: str, passages: Sequence[str]) -> str:
    numbered = "\n".join(f"[{number}] {text}" for number, text in enumerate(passages, start=1))
    return PROMPT.format(passages=numbered, question=question)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="embedding model: a folder or hub name; a small bundled model if unset")
    parser.add_argument("--reranker", help="a cross-encoder or another reranker: a folder or hub name")
    parser.add_argument("--question", default="Which bread needs no yeast from a shop?")
    parser.add_argument("--candidates", type=int, default=6, help="passages for the reranker")
    parser.add_argument("--top", type=int, default=2, help="passages in the prompt")
    args = parser.parse_args(arguments)
    with LLM(args.model) as embedder:
        candidates = [text for _, text in search(embedder, args.question, TEXTS, args.candidates)]
        if args.reranker is None:
            best = rerank(embedder, args.question, candidates, args.top)
    if args.reranker is not None:
        with LLM(args.reranker) as reranker:
            best = rerank(reranker, args.question, candidates, args.top)
    print(make_prompt(args.question, best))


if __name__ == "__main__":
    main()
