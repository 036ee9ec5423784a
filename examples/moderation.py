"""Decide which messages may be published: a classifier scores them, and a threshold decides.

    python examples/moderation.py --model unitary/toxic-bert --label toxic
    python examples/moderation.py --model FOLDER --label spam --threshold 0.8 "Win a phone now!"

A model with sigmoid outputs scores each label on its own, one with softmax outputs all labels together.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from cenote import LLM

MESSAGES = ["Thank you, this was very helpful.", "You are an idiot, go away.", "See you at the station at nine."]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("messages", nargs="*", metavar="TEXT", help="three built-in messages if unset")
    parser.add_argument("--model", required=True, help="a sequence classification model: a folder or hub name")
    parser.add_argument("--label", dest="labels", action="append", help="label to refuse; may be repeated")
    parser.add_argument("--threshold", type=float, default=0.5, help="refuse from this score on (default: 0.5)")
    args = parser.parse_args(arguments)
    messages = args.messages or MESSAGES
    with LLM(args.model) as llm:
        names = llm.labels or []
        if unknown := set(args.labels or ()) - set(names):
            parser.error(f"unknown label {min(unknown)}; the model has: {', '.join(names)}")
        refused = [names.index(label) for label in args.labels or names[1:]]
        outputs = llm.classify(messages, use_tqdm=False)
    for message, output in zip(messages, outputs, strict=True):
        score, label = max((output.outputs.probs[index], names[index]) for index in refused)
        print(f"{'refuse ' if score >= args.threshold else 'publish'}  {score:.3f} {label}  {message}")


if __name__ == "__main__":
    main()
