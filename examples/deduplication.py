"""Find texts that say the same in other words, and keep one of each.

    python examples/deduplication.py
    python examples/deduplication.py lines.txt --threshold 0.9

near_duplicates/ does the same for large collections on Ray.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from semantic_search import embed

from cenote import LLM

TEXTS = [
    "How do I reset my password?",
    "The train to Berlin leaves at nine.",
    "I forgot my password, how can I reset it?",
    "At nine o'clock the train for Berlin departs.",
    "Which bread is baked without yeast?",
    "How can I reset my password?",
]


def find_duplicates(vectors: np.ndarray[Any, Any], threshold: float) -> dict[int, tuple[int, float]]:
    """Return for each duplicate the first kept text that is similar enough, and the similarity."""
    kept: list[int] = []
    duplicates: dict[int, tuple[int, float]] = {}
    for index, vector in enumerate(vectors):
        similarities = vectors[kept] @ vector
        if kept and similarities.max() >= threshold:
            duplicates[index] = (kept[int(similarities.argmax())], float(similarities.max()))
        else:
            kept.append(index)
    return duplicates


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="texts, one per line; six built-in ones if unset")
    parser.add_argument("--model", help="a folder or hub name; a small bundled model if unset")
    parser.add_argument("--threshold", type=float, default=0.75, help="similarity of duplicates (default: 0.75)")
    args = parser.parse_args(arguments)
    texts = Path(args.file).read_text().splitlines() if args.file else TEXTS
    with LLM(args.model) as llm:
        duplicates = find_duplicates(embed(llm, texts), args.threshold)
    for index, text in enumerate(texts):
        if index in duplicates:
            original, similarity = duplicates[index]
            print(f"drop  {text}  ({similarity:.2f}: {texts[original]})")
        else:
            print(f"keep  {text}")


if __name__ == "__main__":
    main()
