"""An embedding of every token, and late-interaction scores."""

from argparse import Namespace

from vllm import LLM, EngineArgs
from vllm.config import PoolerConfig
from vllm.utils.argparse_utils import FlexibleArgumentParser

PROMPTS = ["the cat is in the city", "a red bird"]
QUERY = "where is the dog?"
DOCUMENTS = ["the dog is in the city", "a red bird"]


def parse_args() -> Namespace:
    parser = FlexibleArgumentParser()
    parser = EngineArgs.add_cli_args(parser)
    parser.set_defaults(
        model="BAAI/bge-m3",
        pooler_config=PoolerConfig(task="token_embed"),
        runner="pooling",
        enforce_eager=True,
    )
    return parser.parse_args()


def main(args: Namespace):
    llm = LLM(**vars(args))
    outputs = llm.encode(PROMPTS, pooling_task="token_embed")
    for output in outputs:
        print(output.outputs.data.shape)
    scores = llm.score(QUERY, DOCUMENTS)
    return outputs, [output.outputs.score for output in scores]
