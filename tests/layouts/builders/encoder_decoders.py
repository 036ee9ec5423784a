"""Layouts of encoder-decoder rerankers: KaLM-Reranker-V1 on T5Gemma 2, with a tokenizer like Gemma's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from transformers import T5Gemma2Config, T5Gemma2ForConditionalGeneration

from tests.layouts.builders.st_formats import write_json
from tests.layouts.registry import builder
from tests.layouts.tokenizers import write_tokenizer

# special tokens of turns and images, and the lines that Gemma has as one token each
SPECIAL_TOKENS = ("<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>")
LINE_TOKENS = tuple("\n" * count for count in range(1, 5))
ANSWERS = {"yes": (("y", "e"), ("ye", "s")), "no": (("n", "o"),)}
# both windows are shorter than the test's texts; that of the encoder is even
TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
TEXT |= {"query_pre_attn_scalar": 12, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6}
ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
LOCAL, FULL = "sliding_attention", "full_attention"
ENCODER_LAYERS = {"num_hidden_layers": 3, "layer_types": [LOCAL, FULL, LOCAL], "sliding_window": 6}
DECODER_LAYERS = {"num_hidden_layers": 4, "layer_types": [LOCAL, LOCAL, FULL, LOCAL], "sliding_window": 24}
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION |= {"image_size": 16, "patch_size": 4, "model_type": "siglip_vision_model"}


def save_gemma_tokenizer(folder: Path) -> int:
    """Save a tokenizer in which `yes` and `no` are words, and return the size of the vocabulary."""
    settings = {"add_eos_token": False, "model_max_length": 131072}
    write_tokenizer(folder, "gemma", settings)
    stored = json.loads((folder / "tokenizer.json").read_text())
    for merges in ANSWERS.values():
        for left, right in merges:
            stored["model"]["vocab"][left + right] = len(stored["model"]["vocab"])
            stored["model"]["merges"].append([left, right])
    template = stored["post_processor"]
    template["single"] = [part for part in template["single"] if "<eos>" not in str(part)]
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in LINE_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer.get_vocab_size()


def save_t5gemma2(folder: Path, *, chunk_size: int | None = 4, **changes: Any) -> T5Gemma2ForConditionalGeneration:
    """Save a tiny model with all its parts, also the vision tower; `changes` are of its decoder."""
    vocab_size = save_gemma_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    shared = {**TEXT, "vocab_size": vocab_size, "rope_parameters": ROPE}
    image_end = tokenizer.token_to_id("<end_of_image>")
    encoder = {"text_config": shared | ENCODER_LAYERS, "vision_config": VISION, "mm_tokens_per_image": 4}
    config = T5Gemma2Config(
        encoder=encoder | {"eoi_token_index": image_end},
        decoder=shared | DECODER_LAYERS | changes,
        image_token_index=tokenizer.token_to_id("<start_of_image>"),
    )
    model = T5Gemma2ForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
    model.save_pretrained(folder)
    write_json(folder / "kalm_cross_encoder_config.json", {"encoder_chunk_size": chunk_size})
    return model


@builder
def kalm_reranker_v1(folder: Path) -> None:
    save_t5gemma2(folder)
    module = {"idx": 0, "name": "0", "path": "", "type": "kalm_cross_encoder.KaLMCrossEncoderModule"}
    write_json(folder / "modules.json", [module])
    settings = {"model_type": "CrossEncoder", "prompts": {}, "default_prompt_name": None}
    write_json(folder / "config_sentence_transformers.json", settings)
    lengths = {"query_max_length": 512, "document_max_length": 1024, "encoder_chunk_size": 4}
    write_json(folder / "kalm_cross_encoder_config.json", lengths)
