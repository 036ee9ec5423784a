"""The probability of every class."""

from argparse import Namespace

from vllm import LLM, EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

PROMPTS = ["the cat is in the city", "a", "a red bird, a blue fish"]


def parse_args() -> Namespace:
    parser = FlexibleArgumentParser()
    parser = EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="jason9693/Qwen2.5-1.5B-apeach", runner="pooling", enforce_eager=True)
    return parser.parse_args()


def main(args: Namespace):
    llm = LLM(**vars(args))
    outputs = llm.classify(PROMPTS)
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        probs = output.outputs.probs
        print(f"Prompt: {prompt!r} \nClass Probabilities: {probs} (size={len(probs)})")
    return [output.outputs.probs for output in outputs]
