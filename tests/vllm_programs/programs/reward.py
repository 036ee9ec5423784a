"""A reward for every token, by both methods."""

from argparse import Namespace

from vllm import LLM, EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.print_utils import print_embeddings

PROMPTS = ["the cat is in the city", "a red bird, a blue fish"]


def parse_args() -> Namespace:
    parser = FlexibleArgumentParser()
    parser = EngineArgs.add_cli_args(parser)
    parser.set_defaults(
        model="internlm/internlm2-1_8b-reward",
        runner="pooling",
        enforce_eager=True,
        max_model_len=64,
        trust_remote_code=True,
    )
    return parser.parse_args()


def main(args: Namespace):
    llm = LLM(**vars(args))
    outputs = llm.encode(PROMPTS, pooling_task="token_classify")
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        print(f"Prompt: {prompt!r}")
        print_embeddings(output.outputs.data.tolist(), prefix="Reward")
    rewards = llm.reward(PROMPTS)
    return outputs, rewards
