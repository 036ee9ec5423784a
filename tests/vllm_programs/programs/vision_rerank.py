"""Scores of a text and documents with images; the model's reranker settings and template come from the program."""

from argparse import Namespace
from dataclasses import asdict
from typing import NamedTuple

from vllm import LLM, EngineArgs
from vllm.entrypoints.chat_utils import load_chat_template
from vllm.entrypoints.pooling.score.utils import ScoreMultiModalParam
from vllm.multimodal.utils import encode_image_url, fetch_image
from vllm.utils.argparse_utils import FlexibleArgumentParser

MODEL = "Qwen/Qwen3-VL-Reranker-2B"
TEMPLATE = "qwen3_vl_reranker.jinja"
IMAGE_URL = "https://example.org/image.png"
QUERY = "a dog in the city"
DOCUMENT = "the dog is in the old city"


class RerankModelData(NamedTuple):
    engine_args: EngineArgs
    chat_template: str | None = None


def run_qwen3_vl_reranker() -> RerankModelData:
    engine_args = EngineArgs(
        model=MODEL,
        runner="pooling",
        max_model_len=500,
        hf_overrides={
            "architectures": ["Qwen3VLForSequenceClassification"],
            "classifier_from_token": ["no", "yes"],
            "is_original_qwen3_reranker": True,
        },
    )
    return RerankModelData(engine_args, load_chat_template(TEMPLATE))


MODELS = {"qwen3_vl_reranker": run_qwen3_vl_reranker}


def parse_args():
    parser = FlexibleArgumentParser(description="Score texts and images offline.")
    parser.add_argument("--model-name", "-m", type=str, default="qwen3_vl_reranker", choices=MODELS.keys())
    return parser.parse_args()


def main(args: Namespace):
    request = MODELS[args.model_name]()
    llm = LLM(**asdict(request.engine_args))
    text = {"type": "text", "text": DOCUMENT}
    image = {"type": "image_url", "image_url": {"url": IMAGE_URL}}
    encoded = {"type": "image_url", "image_url": {"url": encode_image_url(fetch_image(IMAGE_URL))}}
    documents: list[ScoreMultiModalParam] = [
        {"content": [text]},
        {"content": [image]},
        {"content": [encoded]},
        {"content": [text, image]},
    ]

    def score(data):
        return [output.outputs.score for output in llm.score(QUERY, data, chat_template=request.chat_template)]

    return [score(document)[0] for document in (DOCUMENT, *documents)], score([DOCUMENT, *documents])
