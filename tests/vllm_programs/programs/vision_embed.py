"""Embeddings of a text, an image, and both; engine options as a dataclass."""

import argparse
from dataclasses import asdict

from vllm import LLM, EngineArgs
from vllm.multimodal.utils import fetch_image

MODEL = "Qwen/Qwen3-VL-Embedding-2B"
IMAGE_URL = "https://example.org/image.png"
TEXT = "the dog is in the city"
PLACEHOLDER = "<|vision_start|><|image_pad|><|vision_end|>"


def run_qwen3_vl(seed: int):
    engine_args = EngineArgs(model=MODEL, runner="pooling", max_model_len=128, limit_mm_per_prompt={"image": 1})
    # no other modalities, to save memory
    default_limits = {"image": 0, "video": 0, "audio": 0}
    engine_args.limit_mm_per_prompt = default_limits | dict(engine_args.limit_mm_per_prompt or {})
    llm = LLM(**asdict(engine_args) | {"seed": seed})
    data = {"image": fetch_image(IMAGE_URL)}
    prompts = [
        TEXT,
        {"prompt": PLACEHOLDER, "multi_modal_data": data},
        {"prompt": f"{PLACEHOLDER}\n{TEXT}", "multi_modal_data": data},
    ]
    return [llm.embed(prompt, use_tqdm=False)[0].outputs.embedding for prompt in prompts]


MODELS = {"qwen3_vl": run_qwen3_vl}


def parse_args():
    parser = argparse.ArgumentParser("Run a vision-language model offline.")
    parser.add_argument("--model", type=str, choices=MODELS.keys(), required=True)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main(args):
    return MODELS[args.model](args.seed)
