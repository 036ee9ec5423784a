"""Named entities: the label of every token."""

from argparse import Namespace

from vllm import LLM, EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

PROMPTS = ["the people of berlin live in the city"]


def parse_args() -> Namespace:
    parser = FlexibleArgumentParser()
    parser = EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="boltuix/NeuroBERT-NER", runner="pooling", enforce_eager=True, trust_remote_code=True)
    return parser.parse_args()


def main(args: Namespace):
    llm = LLM(**vars(args))
    tokenizer = llm.get_tokenizer()
    label_map = llm.llm_engine.vllm_config.model_config.hf_config.id2label
    outputs = llm.encode(PROMPTS, pooling_task="token_classify")
    labelled = []
    for output in outputs:
        predictions = output.outputs.data.argmax(dim=-1)
        tokens = tokenizer.convert_ids_to_tokens(output.prompt_token_ids)
        labels = [label_map[prediction.item()] for prediction in predictions]
        for token, label in zip(tokens, labels, strict=True):
            if token not in tokenizer.all_special_tokens:
                labelled.append((token, label))
    return labelled
