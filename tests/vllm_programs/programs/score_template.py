"""Rerank with a template and config overrides of the program."""

from argparse import Namespace
from pathlib import Path

from vllm import LLM, EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

TEMPLATE = Path("qwen3_reranker.jinja")
QUERY = "how big is berlin?"
DOCUMENTS = ["the city of berlin is big", "a red fish", "no", "people live in the old city, and in the new one"]
HF_OVERRIDES = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "classifier_from_token": ["no", "yes"],
    "is_original_qwen3_reranker": True,
}


def parse_args() -> Namespace:
    parser = FlexibleArgumentParser()
    parser = EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="Qwen/Qwen3-Reranker-0.6B", runner="pooling", trust_remote_code=True)
    return parser.parse_args()


def main(args: Namespace):
    args.hf_overrides = HF_OVERRIDES
    llm = LLM(**vars(args))
    outputs = llm.score(QUERY, DOCUMENTS, chat_template=TEMPLATE.read_text())
    return [output.outputs.score for output in outputs]
