"""Find names of persons, places and organisations in texts.

    python examples/ner.py --model dslim/bert-base-NER
    python examples/ner.py --model urchade/gliner_medium-v2.1 --label person --label city "Ada moved to Turin."

On files: cenote entities --model dslim/bert-base-NER --input texts.jsonl --output entities.parquet
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cenote import LLM

TEXTS = ["Angela Merkel grew up in Templin and lives in Berlin.", "Marie Curie worked at the Sorbonne in Paris."]


def mark(text: str, spans: Sequence[tuple[int, int, str]]) -> str:
    """Return the text with its entities as [text](label); spans are in the order of the text."""
    parts, end = [], 0
    for start, stop, label in spans:
        parts += [text[end:start], f"[{text[start:stop]}]({label})"]
        end = stop
    return "".join([*parts, text[end:]])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="two built-in texts if unset")
    parser.add_argument("--model", required=True, help="a token classification or GLiNER model: a folder or hub name")
    parser.add_argument("--label", dest="labels", action="append", help="label to look for, with GLiNER")
    args = parser.parse_args(arguments)
    texts = args.texts or TEXTS
    with LLM(args.model) as llm:
        outputs = llm.entities(texts, labels=args.labels, use_tqdm=False)
    for text, output in zip(texts, outputs, strict=True):
        entities = output.outputs.entities
        print(mark(text, [(entity.start, entity.end, entity.label) for entity in entities]))
        for entity in entities:
            print(f"  {entity.label:<8} {entity.score:.3f}  {entity.text}")


if __name__ == "__main__":
    main()
