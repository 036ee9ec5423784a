"""Embeddings of fewer dimensions."""

from argparse import Namespace

from vllm import LLM, EngineArgs, PoolingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser

PROMPTS = ["follow the old cat", "a red bird"]


def parse_args() -> Namespace:
    parser = FlexibleArgumentParser()
    parser = EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="jinaai/jina-embeddings-v3", runner="pooling", trust_remote_code=True)
    return parser.parse_args()


def main(args: Namespace):
    llm = LLM(**vars(args))
    full = llm.embed(PROMPTS)
    cut = llm.embed(PROMPTS, pooling_params=PoolingParams(dimensions=16))
    return [output.outputs.embedding for output in full], [output.outputs.embedding for output in cut]
