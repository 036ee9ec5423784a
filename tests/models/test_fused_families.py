"""On a CPU with kernels of ours, all layers of these families run in one call and equal Transformers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from cenote.config.engine import EngineConfig
from cenote.layers.backbone import Backbone
from cenote.layers.fused_encoder import FusedEncoder
from cenote.layers.packed_linear import PackedLinearModule
from cenote.loading.load import load_model
from cenote.packed_batch import pack_sequences
from cenote.pooling.heads import SpladeHead
from cenote.pooling.pooler import Pooler
from cenote.pooling.torch_layers import HeadLinear
from tests.kernels.levels import LEVELS, needs_level, use_level
from tests.models.parity import TOLERANCE, loaded, run
from tests.tiny import compute_hidden_states, save_tiny, tiny_bert_classifier, tiny_splade

pytestmark = [needs_level, pytest.mark.usefixtures("highest_level")]

FAMILIES = [
    "BertModel",
    "MPNetModel",
    "AlbertModel",
    "T5EncoderModel",
    "ModernBertModel",
    "EuroBertModel",
    "LlamaModel",
    "Qwen2Model",
    "Qwen3Model",
    "MistralModel",
    "GlmModel",
    "GPT2Model",
    "GraniteModel",
    "GemmaModel",
    "Gemma2Model",
    "Gemma3TextModel",
    "Olmo2Model",
]


@pytest.fixture
def highest_level(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPUs with AMX use all products of a level only if the instruction sets are limited."""
    with use_level(LEVELS[-1], monkeypatch):
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_runs_in_one_call_and_equals_transformers(family: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, family)
    backbone = loaded(tmp_path).backbone

    assert isinstance(backbone, Backbone) and isinstance(backbone.fused_encoder, FusedEncoder)
    assert_close(run(backbone), torch.cat(compute_hidden_states(reference)), atol=TOLERANCE, rtol=0)


def load_pooler(folder: Path, **options: Any) -> Pooler:
    return load_model(EngineConfig.from_kwargs(str(folder), device="cpu", runtime="torch", **options)).pooler


def test_the_layers_of_a_cross_encoder_head_are_packed(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path, num_labels=1)

    pooler = load_pooler(tmp_path, dtype="float32")

    layers = [layer for layer in pooler.heads.linears() if isinstance(layer, HeadLinear)]
    assert len(layers) == 2 and all(isinstance(layer.packed, PackedLinearModule) for layer in layers)
    states = torch.randn(5, 32)
    for layer in layers:
        packed, layer.packed = layer.packed, None
        expected = layer(states)
        layer.packed = packed
        assert_close(layer(states), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "auto"])
def test_the_vocabulary_of_splade_is_packed(dtype: str, tmp_path: Path) -> None:
    tiny_splade(tmp_path)
    head = load_pooler(tmp_path, dtype=dtype).heads.splade
    assert isinstance(head, SpladeHead) and isinstance(head.vocabulary, HeadLinear)
    assert isinstance(head.vocabulary.packed, PackedLinearModule)
    batch = pack_sequences([[5, 6, 7], [8]])
    states = torch.randn(4, 32).to(head.vocabulary.weight.dtype)

    found = head(states, batch, [0, 1])

    head.vocabulary.packed = None
    tolerance = 2e-2 if states.dtype is torch.bfloat16 else 1e-5 if dtype == "float32" else 5e-3
    assert_close(found, head(states, batch, [0, 1]), atol=tolerance, rtol=0)
