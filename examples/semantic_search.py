"""Find the passages that are nearest in meaning to a question.

python examples/semantic_search.py
python examples/semantic_search.py --model BAAI/bge-small-en-v1.5 --question "Why is the crust crisp?"
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np
from passages import TEXTS

from cenote import LLM


def embed(llm: LLM, texts: Sequence[str]) -> np.ndarray[Any, Any]:
    """Return one vector of length 1 per text."""
    vectors = np.array([output.outputs.embedding for output in llm.embed(texts, use_tqdm=False)])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def search(llm: LLM, question: str, texts: Sequence[str], top: int) -> list[tuple[float, str]]:
    """Return the cosine similarity and text of the best passages, best first."""
    similarities = embed(llm, texts) @ embed(llm, [question])[0]
    order = np.argsort(-similarities)[:top]
    return [(float(similarities[index]), texts[index]) for index in order]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder or hub name; a small bundled model if unset")
    parser.add_argument("--question", default="How does a sinkhole with water in it form?")
    parser.add_argument("--top", type=int, default=3, help="passages to print")
    args = parser.parse_args(arguments)
    with LLM(args.model) as llm:
        print(args.question)
        for similarity, text in search(llm, args.question, TEXTS, args.top):
            print(f"{similarity:6.3f}  {text}")


if __name__ == "__main__":
    main()
