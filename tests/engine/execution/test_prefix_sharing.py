"""Prefix sharing: common prefixes are computed once, with the same results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from cenote import LLM
from cenote.config.engine import EngineConfig
from cenote.engine.execution import prefix_sharing
from cenote.engine.execution.prefix_sharing import (
    PrefixSharing,
    find_shared_prefixes,
    fold_prefixes,
    supports_prefix_sharing,
)
from cenote.layers.backbone import Backbone
from cenote.loading.load import load_model
from cenote.packed_batch import pack_sequences
from tests.tiny import save_tiny

PREFIX = list(range(40, 60))


def flatten(sequences: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    ids = np.array([token for sequence in sequences for token in sequence], dtype=np.int32)
    return ids, np.cumsum([0, *map(len, sequences)])


def find_groups(sequences: list[list[int]]) -> list[tuple[list[int], int]]:
    return sorted(
        (sorted(group.seq_indices.tolist()), group.prefix_len) for group in find_shared_prefixes(*flatten(sequences))
    )


def test_common_prefixes_are_found_at_any_position_in_the_batch() -> None:
    other = list(range(80, 110))

    assert find_groups([[*PREFIX, 1, 2], [*other, 3], [*PREFIX, 2], [5, 6], [*other, 4, 4]]) == [
        ([0, 2], 20),
        ([1, 4], 30),
    ]


def test_smaller_groups_are_chosen_where_they_save_more_tokens() -> None:
    """An instruction shared by all, and two queries with their documents."""
    first, second = [*PREFIX, *range(100, 130)], [*PREFIX, *range(130, 160)]
    documents = [[token, token + 1] for token in (1, 3, 5)]

    both = [[*query, *document] for query in (first, second) for document in documents]

    assert find_groups(both) == [([0, 1, 2], 50), ([3, 4, 5], 50)]
    assert find_groups([[*first, 1], [*PREFIX, 2], [*PREFIX, 3], [*PREFIX, 4]]) == [([0, 1, 2, 3], 20)]


def test_every_sequence_keeps_a_token_of_its_own() -> None:
    assert find_groups([PREFIX, PREFIX]) == [([0, 1], 19)]
    assert find_groups([PREFIX, [*PREFIX, 1]]) == [([0, 1], 19)]


def test_nested_prefixes_are_split_to_a_limited_depth() -> None:
    nested = [PREFIX[:1] * (20 + number) for number in range(1500)]

    assert sum(group.num_saved for group in find_shared_prefixes(*flatten(nested))) > 1499 * 19


@pytest.mark.parametrize("shape", ["Qwen3Model", "Gemma2Model", "GPT2Model", "MixtralModel"])
def test_the_last_hidden_states_equal_those_without_prefix_sharing(shape: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, shape)
    backbone = load_model(EngineConfig(model=str(tmp_path), dtype="float32", device="cpu", convert="embed")).backbone
    sequences = [
        [*PREFIX, 7],
        [9],
        [*PREFIX, 8, 9, 10],
        [*PREFIX, 8, 9, 11],
        [5] * 30,
        [*PREFIX[:18], 3, 3, 3],
        [6] * 30,
    ]
    batch = pack_sequences(sequences)

    folded = fold_prefixes(batch, batch.token_ids.numpy())

    assert supports_prefix_sharing(backbone)
    assert folded.num_tokens == batch.num_tokens - 3 * 18
    assert folded.num_seqs == batch.num_seqs
    with torch.inference_mode():
        states, expected = backbone(folded), backbone(batch)
    assert_close(states[folded.cu_seqlens[1:] - 1], expected[batch.cu_seqlens[1:] - 1], atol=1e-5, rtol=1e-5)


def test_a_batch_with_few_savings_is_unchanged() -> None:
    batch = pack_sequences([[*PREFIX, *range(200)], [*PREFIX, *range(1, 200)]])

    assert fold_prefixes(batch, batch.token_ids.numpy()) is batch


def test_savings_that_do_not_outweigh_the_call_of_all_layers_leave_a_batch_unchanged() -> None:
    rows = [[*PREFIX, *range(start, start + 2 * len(PREFIX))] for start in range(5)]
    batch = pack_sequences(rows)  # 4 of 15 parts are saved

    assert fold_prefixes(batch, batch.token_ids.numpy(), 0.25) is not batch
    assert fold_prefixes(batch, batch.token_ids.numpy(), 0.28) is batch


@pytest.mark.parametrize("is_fused", [True, False])
def test_layers_in_one_call_need_larger_savings(is_fused: bool, tmp_path: Path) -> None:
    save_tiny(tmp_path, "Qwen3Model")
    model = load_model(EngineConfig(model=str(tmp_path), dtype="float32", device="cpu", convert="embed"))
    assert isinstance(model.backbone, Backbone)
    model.backbone.fused_encoder = (lambda batch: None) if is_fused else None  # type: ignore[assignment]

    sharing = PrefixSharing(model.backbone, model.pooler)

    assert sharing.min_saved_fraction == (0.25 if is_fused else 0.1)


@pytest.mark.parametrize("shape", ["BertModel", "Lfm2Model", "DeepseekV3Model"])
def test_bidirectional_and_non_attention_models_do_not_support_prefix_sharing(shape: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, shape)

    assert not supports_prefix_sharing(
        load_model(EngineConfig(model=str(tmp_path), device="cpu", convert="embed")).backbone
    )


def test_the_query_prefix_of_many_documents_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "Qwen3-Reranker-tiny"
    folder.mkdir()
    save_tiny(folder, "Qwen3ForCausalLM", max_position_embeddings=1024)
    documents = ["the city of berlin is big", "a red fish", "no", "people live in the old city", "a red bird"] * 4
    query = "how big is berlin, and who live in it?"

    def scores() -> tuple[list[float], int, int]:
        with LLM(str(folder), dtype="float32", device="cpu") as llm:
            outputs = llm.score(query, [f"{number} {text}" for number, text in enumerate(documents)], use_tqdm=False)
            num_tokens = sum(len(output.prompt_token_ids) for output in outputs)
            num_saved = llm.engine.core.loop.executor.prefix_sharing.num_saved_tokens
            return [output.outputs.score for output in outputs], num_tokens, num_saved

    shared, num_tokens, num_saved = scores()
    for name in ("MIN_SAVED_FRACTION", "MIN_SAVED_FRACTION_OF_FUSED_LAYERS"):
        monkeypatch.setattr(prefix_sharing, name, 2.0)
    unshared, num_tokens_unshared, num_saved_unshared = scores()

    assert shared == pytest.approx(unshared, abs=1e-5)
    assert num_saved > num_tokens / 2 and num_saved_unshared == 0
    assert num_tokens == num_tokens_unshared  # the reported usage is the same


def test_token_tasks_do_not_use_prefix_sharing(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Qwen3Model")
    prefix = "the old city of berlin is big and not bad and people live in the new one"
    texts = [f"{prefix} {number}" for number in range(8)]

    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        rows = llm.encode(texts, pooling_task="token_embed", use_tqdm=False)
        assert llm.engine.core.loop.executor.prefix_sharing.num_saved_tokens == 0
        vectors = llm.embed(texts, use_tqdm=False)
        assert llm.engine.core.loop.executor.prefix_sharing.num_saved_tokens > 0

    for row, vector in zip(rows, vectors, strict=True):
        assert_close(row.outputs.data[-1], torch.tensor(vector.outputs.embedding), atol=1e-5, rtol=1e-5)
