"""The matrix products of models, counted by hand and by the code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cenote.config.engine import EngineConfig
from cenote.explain.flops import Arithmetic, Mixing, Product, arithmetic
from cenote.loading.load import load
from cenote.protocol.requests import Task
from tests.tiny import save_tiny, tiny_bert, tiny_modernbert, tiny_qwen3, tiny_splade


def counted(folder: Path, task: Task = "embed") -> Arithmetic:
    return arithmetic(load(EngineConfig.of(str(folder), dtype="float32", device="cpu")), task)


def test_the_products_of_a_bert_are_those_of_its_sizes(tmp_path: Path) -> None:
    tiny_bert(tmp_path)  # 2 layers of 32, 4 heads of 8, 48 between

    found = counted(tmp_path)

    # query, key and value; out; up; down
    assert found.linear_flops() == 2 * 2 * (32 * 96 + 32 * 32 + 32 * 48 + 48 * 32)
    # each of 10 tokens with 10 keys, and as many values: in 4 heads of 8
    assert found.flops(10) == found.linear_flops() + 2 * (2 * 2 * 10 * 4 * 8)
    assert found.flops_of([10, 10]) == 20 * found.flops(10)
    assert found.weights() == found.linear_flops() / 2
    assert found.complete


def test_fewer_keys_heads_need_less_of_a_matrix_but_no_fewer_products_with_queries(tmp_path: Path) -> None:
    tiny_qwen3(tmp_path)  # 4 heads of 12, 2 for keys and values, gate and up

    found = counted(tmp_path)

    assert found.linear_flops() == 2 * 2 * (32 * (4 + 2 + 2) * 12 + 48 * 32 + 32 * 2 * 48 + 48 * 32)
    assert found.mixings[0].flops(9) == 2 * 2 * 5 * 4 * 12  # of 9 tokens before and at a token, 5 on average


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 0, 2, 50])
@pytest.mark.parametrize("length", [1, 2, 7])
def test_keys_are_as_many_as_a_mask_lets_through(causal: bool, window: int | None, length: int) -> None:
    mixing = Mixing(heads=1, kv_heads=1, head_dim=1, causal=causal, window=window)

    distance = torch.arange(length)[:, None] - torch.arange(length)
    seen = distance.abs() <= (length if window is None else window)
    seen &= (distance >= 0) if causal else True

    assert mixing.keys(length) == pytest.approx(seen.sum().item() / length)


def test_local_layers_cost_less_on_long_texts(tmp_path: Path) -> None:
    tiny_modernbert(tmp_path)

    whole, local = (mixing for mixing in counted(tmp_path).mixings[:2])

    assert whole.window is None and local.window == 3
    assert local.flops(40) < whole.flops(40) / 4


def test_of_experts_only_those_used_are_counted_but_all_are_weights(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Qwen3MoeModel")  # 6 experts of 24, 2 for each token

    experts = [product for product in counted(tmp_path).products if product.part == "experts"]

    assert experts[:2] == [Product(32, 48, 2, 6, "experts"), Product(24, 32, 2, 6, "experts")]
    assert experts[0].flops == 2 * 2 * 32 * 48 and experts[0].size == 6 * 32 * 48


def test_a_head_over_the_vocabulary_counts_for_every_token(tmp_path: Path) -> None:
    tiny_splade(tmp_path)

    heads = [product for product in counted(tmp_path, "sparse_embed").products if product.part == "head"]

    assert heads == [Product(32, 32, part="head"), Product(32, 160, part="head")]


def test_weights_are_read_once_for_all_tokens_of_a_batch() -> None:
    one = Arithmetic((Product(8, 4),), ())

    assert one.moved(2, batch_tokens=1) == 2 * (8 + 4 + 32)
    assert one.moved(2, batch_tokens=32) == 2 * (8 + 4 + 1)
