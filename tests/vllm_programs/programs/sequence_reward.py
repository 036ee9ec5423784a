"""One reward per conversation, of a sequence classifier."""

from argparse import Namespace

from vllm import LLM, EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.print_utils import print_embeddings

MESSAGES = [{"role": "user", "content": "who live in the city?"}, {"role": "assistant", "content": "people"}]


def parse_args() -> Namespace:
    parser = FlexibleArgumentParser()
    parser = EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="Skywork/Skywork-Reward-V2-Qwen3-0.6B", runner="pooling", enforce_eager=True)
    return parser.parse_args()


def main(args: Namespace):
    llm = LLM(**vars(args))
    prompt = llm.get_tokenizer().apply_chat_template(MESSAGES, tokenize=False)
    (output,) = llm.encode([prompt], pooling_task="classify")
    print_embeddings(output.outputs.data.tolist(), prefix="Reward")
    return prompt, output
