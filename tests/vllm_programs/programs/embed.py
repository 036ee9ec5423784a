"""One embedding per prompt; engine options on the command line."""

from argparse import Namespace

from vllm import LLM, EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

PROMPTS = ["the cat is in the city", "a", "a red bird, a blue fish"]


def parse_args() -> Namespace:
    parser = FlexibleArgumentParser()
    parser = EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="intfloat/e5-small", runner="pooling", enforce_eager=True)
    return parser.parse_args()


def main(args: Namespace):
    llm = LLM(**vars(args))
    outputs = llm.embed(PROMPTS)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        embeds = output.outputs.embedding
        print(f"Prompt: {prompt!r} \nEmbeddings: {embeds[:16]} (size={len(embeds)})")
    return [output.outputs.embedding for output in outputs]
