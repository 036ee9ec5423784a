"""gme-Qwen2-VL at tiny size in its published layout, and its embeddings by Transformers' Qwen2-VL."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import Qwen2VLModel
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from tests.models.col_models import QWEN_COL_TOKENS
from tests.models.qwen_vl import IMAGE_TOKEN, PATCHES, PLACEHOLDER, TEXT, VISION
from tests.tiny import randomize, save_tokenizer

INSTRUCTION = "You are a helpful assistant."
TOKEN_SIDE = 8  # pixels per image token
MIN_IMAGE_TOKENS, MAX_IMAGE_TOKENS = 6, 40
END_TOKENS = {"end of message": "<|im_end|>", "end of text": "<|endoftext|>"}


@dataclass(frozen=True)
class Gme:
    """The model of Transformers, without positions for images: the published code passes none."""

    model: Any
    folder: Path

    def embed(self, text: str = "", image: Image.Image | None = None, instruction: str = INSTRUCTION) -> Tensor:
        content = text if image is None else PLACEHOLDER + text
        prompt = f"<|im_start|>system\n{instruction}<|im_end|>\n<|im_start|>user\n{content}<|im_end|>\n"
        return self.embed_prompt(prompt + "<|im_start|>assistant\n<|endoftext|>", image)

    def embed_prompt(self, prompt: str, image: Image.Image | None = None) -> Tensor:
        features = None
        if image is not None:
            limits = {"min_pixels": MIN_IMAGE_TOKENS * TOKEN_SIDE**2, "max_pixels": MAX_IMAGE_TOKENS * TOKEN_SIDE**2}
            pixels = Qwen2VLImageProcessorPil(**PATCHES | limits)(_round_sides(image), return_tensors="pt")
            with torch.inference_mode():
                features = self.model.visual(pixels["pixel_values"], grid_thw=pixels["image_grid_thw"]).pooler_output
            assert MIN_IMAGE_TOKENS <= len(features) <= MAX_IMAGE_TOKENS
            prompt = prompt.replace(IMAGE_TOKEN, IMAGE_TOKEN * len(features))
        tokenizer = Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        ids = torch.tensor([tokenizer.encode(prompt).ids])
        with torch.inference_mode():
            embeddings = self.model.language_model.embed_tokens(ids).clone()
            if features is not None:
                embeddings[ids == tokenizer.token_to_id(IMAGE_TOKEN)] = features
            states = self.model.language_model(inputs_embeds=embeddings).last_hidden_state[0]
        return nn.functional.normalize(states[-1], dim=-1)


def save_gme(folder: Path) -> Gme:
    """Write config.json, modules.json, weights with the names of Qwen2VLForConditionalGeneration, and tokenizer."""
    tokenizer = save_tokenizer(folder, QWEN_COL_TOKENS | END_TOKENS, max_length=512, two_types=False)
    ids = {"image_token_id": tokenizer.token_to_id(IMAGE_TOKEN)}
    vision = VISION | {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2}
    model = Qwen2VLModel(Qwen2VLModel.config_class(text_config=dict(TEXT), vision_config=dict(vision), **ids))
    randomize(model, std=0.2)
    model.eval().requires_grad_(False)
    config = {
        **{name: value for name, value in TEXT.items() if name != "rope_parameters"},
        **ids,
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "model_type": "qwen2_vl",
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]},
        "rms_norm_eps": 1e-5,
        "vision_config": vision,
        "tie_word_embeddings": False,
        # the published defaults are 256 and 1280
        "min_image_tokens": MIN_IMAGE_TOKENS,
        "max_image_tokens": MAX_IMAGE_TOKENS,
    }
    names = {"language_model.": "model.", "visual.": "visual."}
    tensors = {"lm_head.weight": torch.zeros(config["vocab_size"], config["hidden_size"])}
    for name, tensor in model.state_dict().items():
        start = next(start for start in names if name.startswith(start))
        tensors[names[start] + name.removeprefix(start)] = tensor.contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "custom_st.MultiModalTransformer"},
        {"idx": 1, "name": "1", "path": "1_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    files = {"config.json": config, "modules.json": modules, "preprocessor_config.json": PATCHES}
    files["chat_template.json"] = {"chat_template": "{{ 'never rendered' }}"}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return Gme(model, folder)


def _round_sides(image: Image.Image) -> Image.Image:
    """The published code first resizes an image to multiples of the size of a token, from 4 to 16384 tokens."""
    limits = {"min_pixels": 4 * TOKEN_SIDE**2, "max_pixels": 16384 * TOKEN_SIDE**2}
    height, width = smart_resize(image.height, image.width, TOKEN_SIDE, **limits)
    return image.resize((width, height), Image.Resampling.BICUBIC)
