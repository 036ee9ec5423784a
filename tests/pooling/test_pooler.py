"""The pooler: any mix of tasks and options in a batch gives the same results as single sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from cenote import LLM, PoolerConfig, PoolingParams
from cenote.config.engine import EngineConfig
from cenote.config.options import Sourced
from cenote.errors import BadRequest
from cenote.loading.load import load_model
from cenote.packed_batch import pack_sequences
from cenote.pooling.heads import Heads
from cenote.pooling.plan import resolve_plan
from cenote.pooling.pooler import Pooler, PoolingSpec
from cenote.pooling.torch_ops import TorchOps
from cenote.protocol.matryoshka import Matryoshka
from cenote.protocol.params import PoolingOptions
from tests.cpu import needs_bfloat16
from tests.tiny import (
    SEQUENCES,
    compute_hidden_states,
    tiny_bert,
    tiny_bert_classifier,
    tiny_qwen3,
)

MIXED_SPECS = [
    PoolingSpec("embed", PoolingOptions()),
    PoolingSpec("token_embed", PoolingOptions()),
    PoolingSpec("embed", PoolingOptions(dimensions=5)),
    PoolingSpec("embed", PoolingOptions(use_activation=False)),
    PoolingSpec("embed", PoolingOptions()),
    PoolingSpec("token_embed", PoolingOptions(use_activation=False, dimensions=3)),
    PoolingSpec("embed", PoolingOptions(use_activation=False, dimensions=5)),
    PoolingSpec("token_embed", PoolingOptions()),
]


def pool_each(pooler: Pooler, hidden: Tensor, sequences: list[list[int]], specs: list[PoolingSpec]) -> list[Tensor]:
    """Return the result of every sequence, in batch order."""
    results: dict[int, Tensor] = {}
    for group in pooler(hidden, pack_sequences(sequences), [(spec,) for spec in specs]):
        rows = group.rows if group.row_counts is None else group.rows.split(group.row_counts)
        results |= dict(zip(group.seq_indices, rows, strict=True))
    return [results[index] for index in range(len(sequences))]


def make_pooler(**config: Any) -> Pooler:
    """Return a pooler without heads: pooled states go directly into the activation."""
    plan = resolve_plan(
        model="tiny",
        pooler_config=PoolerConfig(**config),
        file_settings=None,
        method=Sourced("MEAN", "test"),
        activation=Sourced("auto", "test"),
        tasks=("embed", "token_embed"),
        matryoshka=Matryoshka(is_supported=True, sizes=(), full_size=6),
    )
    return Pooler(plan, Heads(), TorchOps(), "float32")


def test_a_mixed_batch_gives_the_same_results_as_single_sequences(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    model = load_model(EngineConfig.from_kwargs(str(tmp_path), dtype="float32", device="cpu", runtime="torch"))

    with torch.inference_mode():
        mixed = pool_each(model.pooler, model.backbone(pack_sequences(SEQUENCES)), SEQUENCES, MIXED_SPECS)
        alone = [
            pool_each(model.pooler, model.backbone(pack_sequences([ids])), [ids], [spec])[0]
            for ids, spec in zip(SEQUENCES, MIXED_SPECS, strict=True)
        ]

    for one, other in zip(mixed, alone, strict=True):
        assert_close(one, other, atol=1e-5, rtol=0)


def test_a_mixed_batch_of_a_classifier_gives_the_same_results_as_single_sequences(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path)
    model = load_model(EngineConfig.from_kwargs(str(tmp_path), dtype="float32", device="cpu", runtime="torch"))
    specs = [
        PoolingSpec("classify", PoolingOptions()),
        PoolingSpec("token_classify", PoolingOptions(False)),
        PoolingSpec("classify", PoolingOptions(False)),
    ]
    sequences = SEQUENCES[:3]

    with torch.inference_mode():
        mixed = pool_each(model.pooler, model.backbone(pack_sequences(sequences)), sequences, specs)
        alone = [
            pool_each(model.pooler, model.backbone(pack_sequences([ids])), [ids], [spec])[0]
            for ids, spec in zip(sequences, specs, strict=True)
        ]

    for one, other in zip(mixed, alone, strict=True):
        assert_close(one, other, atol=1e-5, rtol=0)


def test_every_prompt_of_a_call_may_have_its_own_parameters(tmp_path: Path) -> None:
    reference = tiny_bert(tmp_path)
    params = [
        PoolingParams(dimensions=number or None, use_activation=number % 2 == 0) for number in range(len(SEQUENCES))
    ]

    with LLM(str(tmp_path), dtype="float32", device="cpu", hf_overrides={"is_matryoshka": True}) as llm:
        outputs = llm.embed(SEQUENCES, pooling_params=params, use_tqdm=False)

    for number, (output, rows) in enumerate(zip(outputs, compute_hidden_states(reference), strict=True)):
        expected = rows[0][: number or None]  # truncated first, then normalised
        if number % 2 == 0:
            expected = F.normalize(expected, dim=-1)
        assert_close(output.outputs.data, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["CLS", "LAST", "MEAN", "MAX", "WEIGHTEDMEAN", "MEAN_SQRT_LEN"])
def test_a_user_may_choose_any_method(kind: str, tmp_path: Path) -> None:
    reference = tiny_qwen3(tmp_path)

    with LLM(str(tmp_path), dtype="float32", device="cpu", pooler_config={"pooling_type": kind}) as llm:
        outputs = llm.embed(SEQUENCES, pooling_params=PoolingParams(use_activation=False), use_tqdm=False)

    for output, rows in zip(outputs, compute_hidden_states(reference), strict=True):
        weights = torch.arange(1, len(rows) + 1)[:, None]
        expected = {
            "CLS": rows[0],
            "LAST": rows[-1],
            "MEAN": rows.mean(0),
            "MAX": rows.amax(0),
            "WEIGHTEDMEAN": (rows * weights).sum(0) / weights.sum(),
            "MEAN_SQRT_LEN": rows.sum(0) / len(rows) ** 0.5,
        }[kind]
        assert_close(output.outputs.data, expected, atol=1e-4, rtol=0)


def test_all_returns_a_row_for_every_token(tmp_path: Path) -> None:
    reference = tiny_bert(tmp_path)

    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        outputs = llm.encode(SEQUENCES, pooling_task="token_embed", use_tqdm=False)

    for output, rows in zip(outputs, compute_hidden_states(reference), strict=True):
        assert_close(output.outputs.data, F.normalize(rows, dim=-1), atol=1e-5, rtol=0)


def test_step_selects_columns_of_a_plain_backbone_too(tmp_path: Path) -> None:
    reference = tiny_qwen3(tmp_path)
    config = PoolerConfig(pooling_type="STEP", step_tag_id=9, returned_token_ids=[7, 2], use_activation=False)

    with LLM(str(tmp_path), dtype="float32", device="cpu", pooler_config=config) as llm:
        outputs = llm.encode(SEQUENCES, pooling_task="token_embed", use_tqdm=False)

    for ids, output, rows in zip(SEQUENCES, outputs, compute_hidden_states(reference), strict=True):
        assert_close(output.outputs.data, rows[torch.tensor(ids) == 9][:, [7, 2]], atol=1e-4, rtol=0)


def test_step_without_a_tag_keeps_every_row() -> None:
    hidden = torch.randn(4, 6)

    rows = pool_each(make_pooler(), hidden, [[1, 2, 3], [4]], [PoolingSpec("token_embed", PoolingOptions(False))] * 2)

    assert_close(torch.cat(rows), hidden)


def test_a_column_the_model_does_not_have_is_refused() -> None:
    pooler = make_pooler(pooling_type="STEP")
    spec = PoolingSpec("token_embed", PoolingOptions(returned_token_ids=(1, 6)))

    with pytest.raises(BadRequest, match=r"returned_token_ids \[6\] out of range; the model has 6 columns \(0 to 5\)"):
        pooler(torch.randn(2, 6), pack_sequences([[1, 2]]), [(spec,)])


@needs_bfloat16
def test_heads_run_in_float32_unless_head_dtype_is_model(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path)
    default = load_model(EngineConfig.from_kwargs(str(tmp_path), dtype="bfloat16", device="cpu"))
    overridden = load_model(
        EngineConfig.from_kwargs(str(tmp_path), dtype="bfloat16", device="cpu", hf_overrides={"head_dtype": "model"})
    )
    spec = PoolingSpec("classify", PoolingOptions())

    for model, expected in ((default, torch.float32), (overridden, torch.bfloat16)):
        with torch.inference_mode():
            hidden = model.backbone(pack_sequences([[7, 8]]))
            assert hidden.dtype == torch.bfloat16
            assert pool_each(model.pooler, hidden, [[7, 8]], [spec])[0].dtype == expected
