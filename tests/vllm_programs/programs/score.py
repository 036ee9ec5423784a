"""The scores of pairs."""

from argparse import Namespace

from vllm import LLM, EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

TEXT = "where is the dog?"
TEXTS = ["the dog is in the city", "a red bird"]


def parse_args() -> Namespace:
    parser = FlexibleArgumentParser()
    parser = EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="BAAI/bge-reranker-v2-m3", runner="pooling", enforce_eager=True)
    return parser.parse_args()


def main(args: Namespace):
    llm = LLM(**vars(args))
    outputs = llm.score(TEXT, TEXTS)
    for text, output in zip(TEXTS, outputs, strict=True):
        print(f"Pair: {[TEXT, text]!r} \nScore: {output.outputs.score}")
    return [output.outputs.score for output in outputs]
