"""Rank images of pages by relevance to a question, without OCR.

    python examples/visual_rerank.py
    python examples/visual_rerank.py --question "the yellow sun over the sea"
    python examples/visual_rerank.py --model TomoroAI/tomoro-colqwen3-embed-4b --question "the catch of April"
    python examples/visual_rerank.py --model TomoroAI/tomoro-colqwen3-embed-4b scan-1.png scan-2.png scan-3.jpg

The default model knows a few words only (tiny_colqwen3.py); the default pages are generated (pages.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pages import PAGES
from PIL import Image
from tiny_colqwen3 import write_checkpoint

from cenote import LLM


def rank_pages(llm: LLM, question: str, pages: dict[str, Image.Image]) -> list[tuple[float, str]]:
    """Return the score and name of every page, best first."""
    documents = [{"content": [{"type": "image_pil", "image_pil": page}]} for page in pages.values()]
    scores = [output.outputs.score for output in llm.score(question, documents, use_tqdm=False)]
    return sorted(zip(scores, pages, strict=True), reverse=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="images of pages (default: four generated pages)")
    parser.add_argument("--model", help="a folder or hub name, for example TomoroAI/tomoro-colqwen3-embed-4b")
    parser.add_argument("--question", default="Where is the red bar, and where is the text?")
    args = parser.parse_args(arguments)
    pages = {file: Image.open(file) for file in args.files} or {name: draw() for name, draw in PAGES.items()}
    dtype = "auto" if args.model else "float32"  # the default model's scores are then the same on every machine
    with TemporaryDirectory() as folder, LLM(args.model or str(write_checkpoint(Path(folder))), dtype=dtype) as llm:
        print(args.question)
        for rank, (score, name) in enumerate(rank_pages(llm, args.question, pages), start=1):
            print(f"{rank}.  {score:7.3f}  {name}")


if __name__ == "__main__":
    main()
