"""Token embeddings of texts and images, pooled by the program (jina-embeddings-v4)."""

import torch
from vllm import LLM
from vllm.config.pooler import PoolerConfig
from vllm.inputs import TextPrompt, TokensPrompt
from vllm.multimodal.utils import fetch_image

MODEL = "jinaai/jina-embeddings-v4-vllm-text-matching"
IMAGE_URL = "https://example.org/image.png"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"


def main():
    model = LLM(
        model=MODEL,
        pooler_config=PoolerConfig(task="token_embed"),
        runner="pooling",
        max_model_len=256,
        gpu_memory_utilization=0.8,
    )
    tokenizer = model.get_tokenizer()
    text_prompt = TextPrompt(prompt="query: the cat is in the city")
    token_prompt = TokensPrompt(prompt_token_ids=tokenizer.encode("query: a red bird"))
    image_prompt = TextPrompt(
        prompt=f"<|im_start|>user\n{VISION_START}<|image_pad|>{VISION_END}what is this?<|im_end|>\n",
        multi_modal_data={"image": fetch_image(IMAGE_URL)},
    )
    outputs = model.encode([text_prompt, token_prompt, image_prompt], pooling_task="token_embed")
    start_id, end_id = tokenizer.convert_tokens_to_ids([VISION_START, VISION_END])
    embeddings = []
    for output in outputs:
        rows = output.outputs.data.detach().clone()
        if start_id in output.prompt_token_ids:
            ids = torch.tensor(output.prompt_token_ids)
            rows = rows[torch.where(ids == start_id)[0][0] : torch.where(ids == end_id)[0][0] + 1]
        pooled = rows.sum(dim=0, dtype=torch.float32) / rows.shape[0]
        embeddings.append(torch.nn.functional.normalize(pooled, dim=-1))
    return embeddings
