"""The matrix products of models, counted by hand and by the code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cenote.config.engine import EngineConfig
from cenote.explain.flops import AttentionShape, MatMul, ModelFlops, count_flops
from cenote.loading.load import load_model
from cenote.protocol.params import Task
from tests.tiny import save_tiny, tiny_bert, tiny_modernbert, tiny_qwen3, tiny_splade


def flops_of(folder: Path, task: Task = "embed") -> ModelFlops:
    return count_flops(load_model(EngineConfig.from_kwargs(str(folder), dtype="float32", device="cpu")), task)


def test_the_matmuls_of_a_bert_follow_from_its_sizes(tmp_path: Path) -> None:
    tiny_bert(tmp_path)  # 2 layers of 32, 4 heads of 8, 48 between

    found = flops_of(tmp_path)

    # query, key and value; out; up; down
    assert found.matmul_flops() == 2 * 2 * (32 * 96 + 32 * 32 + 32 * 48 + 48 * 32)
    # each of 10 tokens with 10 keys, and as many values: in 4 heads of 8
    assert found.flops_per_token(10) == found.matmul_flops() + 2 * (2 * 2 * 10 * 4 * 8)
    assert found.total_flops([10, 10]) == 20 * found.flops_per_token(10)
    assert found.num_weights() == found.matmul_flops() / 2
    assert found.is_complete


def test_fewer_kv_heads_need_smaller_matrices_but_as_many_attention_flops(tmp_path: Path) -> None:
    tiny_qwen3(tmp_path)  # 4 heads of 12, 2 for keys and values, gate and up

    found = flops_of(tmp_path)

    assert found.matmul_flops() == 2 * 2 * (32 * (4 + 2 + 2) * 12 + 48 * 32 + 32 * 2 * 48 + 48 * 32)
    assert found.attentions[0].flops(9) == 2 * 2 * 5 * 4 * 12  # of 9 tokens before and at a token, 5 on average


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 0, 2, 50])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_keys_are_as_many_as_a_mask_lets_through(causal: bool, window: int | None, length: int) -> None:
    mixing = AttentionShape(num_heads=1, num_kv_heads=1, head_dim=1, causal=causal, window=window)

    distance = torch.arange(length)[:, None] - torch.arange(length)
    seen = distance.abs() <= (length if window is None else window)
    seen &= (distance >= 0) if causal else True

    assert mixing.mean_num_keys(length) == pytest.approx(seen.sum().item() / length)


def test_local_layers_cost_less_on_long_texts(tmp_path: Path) -> None:
    tiny_modernbert(tmp_path)

    whole, local = (mixing for mixing in flops_of(tmp_path).attentions[:2])

    assert whole.window is None and local.window == 3
    assert local.flops(40) < whole.flops(40) / 4


def test_of_experts_only_those_used_are_counted_but_all_are_weights(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Qwen3MoeModel")  # 6 experts of 24, 2 for each token

    experts = [product for product in flops_of(tmp_path).matmuls if product.part == "experts"]

    assert experts[:2] == [MatMul(32, 48, 2, 6, "experts"), MatMul(24, 32, 2, 6, "experts")]
    assert experts[0].flops == 2 * 2 * 32 * 48 and experts[0].num_weights == 6 * 32 * 48


def test_a_head_over_the_vocabulary_counts_for_every_token(tmp_path: Path) -> None:
    tiny_splade(tmp_path)

    heads = [product for product in flops_of(tmp_path, "sparse_embed").matmuls if product.part == "head"]

    assert heads == [MatMul(32, 32, part="head"), MatMul(32, 160, part="head")]


def test_weights_are_read_once_for_all_tokens_of_a_batch() -> None:
    one = ModelFlops((MatMul(8, 4),), ())

    assert one.bytes_per_token(2, batch_tokens=1) == 2 * (8 + 4 + 32)
    assert one.bytes_per_token(2, batch_tokens=32) == 2 * (8 + 4 + 1)
