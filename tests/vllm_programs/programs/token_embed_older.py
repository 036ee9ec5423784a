"""As `token_embed_vision`, with the options of older releases: `encode` without a task returns a row per token."""

import torch
from vllm import LLM
from vllm.config import PoolerConfig
from vllm.inputs.data import TextPrompt
from vllm.multimodal.utils import fetch_image

MODEL = "jinaai/jina-embeddings-v4-vllm-retrieval"
IMAGE_URL = "https://example.org/image.png"


def main():
    model = LLM(
        model=MODEL,
        task="embed",
        override_pooler_config=PoolerConfig(pooling_type="ALL", normalize=False),
        dtype="float16",
    )
    query = TextPrompt(prompt="query: the cat is in the city")
    page = TextPrompt(
        prompt="<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>what is this?<|im_end|>\n",
        multi_modal_data={"image": fetch_image(IMAGE_URL)},
    )
    outputs = model.encode([query, page])
    tokenizer = model.get_tokenizer()
    start = outputs[1].prompt_token_ids.index(tokenizer.convert_tokens_to_ids("<|vision_start|>"))
    end = outputs[1].prompt_token_ids.index(tokenizer.convert_tokens_to_ids("<|vision_end|>"))
    rows = [outputs[0].outputs.data, outputs[1].outputs.data.detach().clone()[start : end + 1]]
    return [torch.nn.functional.normalize(row.mean(dim=0, dtype=torch.float32), dim=-1) for row in rows]
