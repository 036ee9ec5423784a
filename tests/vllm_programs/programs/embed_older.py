"""As `embed`, with the names of older releases: `vllm.utils` and `task`."""

from argparse import Namespace

from vllm import LLM, EngineArgs
from vllm.utils import FlexibleArgumentParser

PROMPTS = ["the cat is in the city", "a", "a red bird, a blue fish"]


def parse_args() -> Namespace:
    parser = FlexibleArgumentParser()
    parser = EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="intfloat/e5-mistral-7b-instruct", task="embed", enforce_eager=True)
    return parser.parse_args()


def main(args: Namespace):
    model = LLM(**vars(args))
    return [output.outputs.embedding for output in model.embed(PROMPTS)]
