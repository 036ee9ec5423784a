"""Families describe models and rearrange weights without torch, and say which models only torch runs."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from cenote.models.architecture import Architecture, HFConfig
from cenote.models.querit import half_margin
from cenote.models.registry import find_architecture
from cenote.models.weight_table import conv3d_to_linear, conv_to_linear, swap_gate_first, transpose
from cenote.utils.arrays import Array

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
}
MIXTRAL: dict[str, Any] = SIZES | {"num_key_value_heads": 2}
GPT2: dict[str, Any] = {"vocab_size": 64, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
T5: dict[str, Any] = {"vocab_size": 64, "d_model": 16, "d_ff": 32, "num_layers": 2, "num_heads": 2}
TELECHAT: dict[str, Any] = {"vocab_size": 64, "hidden_size": 16, "n_layer": 2, "n_head": 2, "ffn_hidden_size": 32}
RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
BLOCKED = """
import pkgutil, sys
from importlib import import_module
from importlib.abc import MetaPathFinder


class NoTorch(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "torch":
            raise ImportError(f"{name} is imported")


sys.meta_path.insert(0, NoTorch())
"""


def run_without_torch(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", BLOCKED + code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def described(name: str, config: dict[str, Any]) -> Architecture:
    return find_architecture([name]).family(HFConfig(config))


def bfloat16(*shape: int) -> Array:
    return np.random.default_rng(0).normal(size=shape).astype(ml_dtypes.bfloat16)


def test_no_module_of_the_families_imports_torch() -> None:
    code = """
import cenote.models
names = [f"cenote.models.{module.name}" for module in pkgutil.iter_modules(cenote.models.__path__)]
for name in names:
    import_module(name)
print(len(names) > 60, "torch" in sys.modules)
"""

    assert run_without_torch(code) == "True False"


def test_models_of_all_kinds_are_described_without_torch() -> None:
    models = {
        "BertModel": SIZES,
        "Qwen3Model": SIZES,
        "MixtralModel": MIXTRAL,
        "JambaModel": SIZES,
        "Qwen2VLModel": SIZES | {"vision_config": {}, "num_attention_heads": 2, "head_dim": 128},
        "SiglipModel": {"text_config": {}, "vision_config": {}},
    }
    code = f"""
from cenote.models.architecture import HFConfig
from cenote.models.registry import find_architecture
for name, config in {models}.items():
    find_architecture([name]).family(HFConfig(config))
print("torch" in sys.modules)
"""

    assert run_without_torch(code) == "False"


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("BertModel", SIZES),
        ("XLMRobertaModel", SIZES),
        ("ModernBertModel", SIZES),
        ("GteModel", SIZES),
        ("JinaBertModel", SIZES | {"feed_forward_type": "geglu", "position_embedding_type": "alibi"}),
        ("NomicBertModel", SIZES),
        ("DebertaV2Model", SIZES),
        ("T5EncoderModel", T5),
        ("GPT2Model", GPT2 | {"scale_attn_by_inverse_layer_idx": True}),
        ("LlamaModel", SIZES),
        ("Qwen3Model", SIZES),
        ("Gemma3TextModel", SIZES | {"head_dim": 8, "num_key_value_heads": 1}),
        ("OlmoModel", SIZES),
        ("TeleChat2ForCausalLM", TELECHAT),
    ],
)
def test_a_plain_transformer_needs_no_torch(name: str, config: dict[str, Any]) -> None:
    architecture = described(name, config)

    assert architecture.needs_torch is None
    assert architecture.make_embedding is architecture.make_mixer is architecture.make_mlp is None


@pytest.mark.parametrize(
    ("name", "config", "reason"),
    [
        ("MixtralModel", MIXTRAL, "mixture of experts"),
        ("NomicBertModel", SIZES | {"moe_every_n_layers": 2, "num_experts": 4, "moe_top_k": 2}, "mixture of experts"),
        ("JambaModel", SIZES, "state-space layers, mixture of experts"),
        ("JambaModel", SIZES | {"num_experts": 1}, "state-space layers"),
        ("Lfm2Model", SIZES, "short convolutions"),
        ("OlmoModel", SIZES | {"clip_qkv": 8.0}, "clipped attention"),
        ("DebertaV2Model", SIZES | RELATIVE, "disentangled attention"),
        ("NVEmbedModel", SIZES, "attention to latent vectors"),
        ("SiglipModel", {"text_config": {}, "vision_config": {}}, "vision tower"),
    ],
)
def test_what_only_torch_runs_is_named(name: str, config: dict[str, Any], reason: str) -> None:
    assert described(name, config).needs_torch == reason


def test_the_decoder_of_a_t5_needs_torch_and_its_encoder_does_not() -> None:
    encoder = described("T5EncoderModel", T5)

    assert encoder.needs_torch is None
    assert encoder.language_model is not None
    assert encoder.language_model.needs_torch == "decoder beside the encoder"


def test_a_model_whose_queries_grow_beyond_its_trained_length_is_plain_up_to_it() -> None:
    rope = {"rope_theta": 1e4, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16}
    model = described("Ministral3Model", MIXTRAL | {"rope_parameters": rope})

    assert model.with_max_positions(16).needs_torch is None
    assert model.with_max_positions(17).needs_torch == "queries scaled by position"


def test_rearranged_weights_keep_their_dtype() -> None:
    stored = bfloat16(4, 6)

    assert np.array_equal(transpose(stored), stored.T)
    assert np.array_equal(swap_gate_first(stored), stored[[2, 3, 0, 1]])
    assert conv_to_linear(bfloat16(4, 3, 2, 2)).shape == (4, 12)
    assert {made.dtype for made in (transpose(stored), swap_gate_first(stored))} == {stored.dtype}


def test_the_bias_of_a_transposed_layer_and_of_a_patch_convolution_is_returned_as_it_is() -> None:
    bias = bfloat16(4)

    assert all(convert(bias) is bias for convert in (transpose, conv_to_linear, conv3d_to_linear))


def test_frames_of_a_convolution_are_summed_in_float32() -> None:
    stored = bfloat16(4, 3, 2, 2, 2)

    made = conv3d_to_linear(stored)

    assert made.dtype == np.float32
    assert np.allclose(made, torch.tensor(stored.astype(np.float32)).sum(2).flatten(1), atol=1e-6)


def test_a_difference_of_bfloat16_rows_has_the_bits_of_torch() -> None:
    stored = bfloat16(2, 64)
    tensor = torch.from_numpy(stored.view(np.int16)).view(torch.bfloat16)

    made = half_margin(stored)

    expected = (tensor[1:] - tensor[:1]) / 2
    assert made.dtype == stored.dtype
    assert np.array_equal(made.view(np.int16), expected.view(torch.int16).numpy())
