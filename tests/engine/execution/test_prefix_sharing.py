"""Beginnings that sequences have in common are computed once, and nobody can tell from the answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from cenote import LLM
from cenote.config.engine import EngineConfig
from cenote.engine.execution import prefix_sharing
from cenote.engine.execution.prefix_sharing import can_share, find, share
from cenote.loading.load import load
from cenote.packed_batch import pack
from tests.tiny import save_tiny

HEAD = list(range(40, 60))


def flat(sequences: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    ids = np.array([token for sequence in sequences for token in sequence], dtype=np.int32)
    return ids, np.cumsum([0, *map(len, sequences)])


def found(sequences: list[list[int]]) -> list[tuple[list[int], int]]:
    return sorted((sorted(group.members.tolist()), group.length) for group in find(*flat(sequences)))


def test_sequences_that_begin_alike_are_found_wherever_they_stand() -> None:
    other = list(range(80, 110))

    assert found([[*HEAD, 1, 2], [*other, 3], [*HEAD, 2], [5, 6], [*other, 4, 4]]) == [([0, 2], 20), ([1, 4], 30)]


def test_smaller_groups_are_made_where_they_have_more_in_common() -> None:
    """An instruction that all share, and two queries with their documents."""
    first, second = [*HEAD, *range(100, 130)], [*HEAD, *range(130, 160)]
    documents = [[token, token + 1] for token in (1, 3, 5)]

    both = [[*query, *document] for query in (first, second) for document in documents]

    assert found(both) == [([0, 1, 2], 50), ([3, 4, 5], 50)]
    assert found([[*first, 1], [*HEAD, 2], [*HEAD, 3], [*HEAD, 4]]) == [([0, 1, 2, 3], 20)]


def test_every_sequence_keeps_a_token_of_its_own() -> None:
    assert found([HEAD, HEAD]) == [([0, 1], 19)]
    assert found([HEAD, [*HEAD, 1]]) == [([0, 1], 19)]


def test_beginnings_within_beginnings_end_somewhere() -> None:
    nested = [HEAD[:1] * (20 + number) for number in range(1500)]

    assert sum(group.spared for group in find(*flat(nested))) > 1499 * 19


@pytest.mark.parametrize("shape", ["Qwen3Model", "Gemma2Model", "GPT2Model", "MixtralModel"])
def test_the_last_states_are_those_of_whole_sequences(shape: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, shape)
    backbone = load(EngineConfig(model=str(tmp_path), dtype="float32", device="cpu", convert="embed")).backbone
    sequences = [[*HEAD, 7], [9], [*HEAD, 8, 9, 10], [*HEAD, 8, 9, 11], [5] * 30, [*HEAD[:18], 3, 3, 3], [6] * 30]
    whole = pack(sequences)

    shared = share(whole, whole.token_ids.numpy())

    assert can_share(backbone)
    assert shared.num_tokens == whole.num_tokens - 3 * 18
    assert shared.size == whole.size
    with torch.inference_mode():
        ours, plain = backbone(shared), backbone(whole)
    assert_close(ours[shared.offsets[1:] - 1], plain[whole.offsets[1:] - 1], atol=1e-5, rtol=1e-5)


def test_what_spares_little_is_left_alone() -> None:
    batch = pack([[*HEAD, *range(200)], [*HEAD, *range(1, 200)]])

    assert share(batch, batch.token_ids.numpy()) is batch


@pytest.mark.parametrize("shape", ["BertModel", "Lfm2Model", "DeepseekV3Model"])
def test_models_that_look_ahead_or_mix_in_other_ways_share_nothing(shape: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, shape)

    assert not can_share(load(EngineConfig(model=str(tmp_path), device="cpu", convert="embed")).backbone)


def test_documents_of_a_query_are_read_after_one_reading_of_the_query(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "Qwen3-Reranker-tiny"
    folder.mkdir()
    save_tiny(folder, "Qwen3ForCausalLM", max_position_embeddings=1024)
    documents = ["the city of berlin is big", "a red fish", "no", "people live in the old city", "a red bird"] * 4
    query = "how big is berlin, and who live in it?"

    def scores() -> tuple[list[float], int, int]:
        with LLM(str(folder), dtype="float32", device="cpu") as llm:
            outputs = llm.score(query, [f"{number} {text}" for number, text in enumerate(documents)], use_tqdm=False)
            read = sum(len(output.prompt_token_ids) for output in outputs)
            return [output.outputs.score for output in outputs], read, llm.engine.loop.executor.stems.num_spared

    shared, num_read, num_spared = scores()
    monkeypatch.setattr(prefix_sharing, "MIN_SPARED", 2.0)
    alone, num_read_alone, nothing = scores()

    assert shared == pytest.approx(alone, abs=1e-5)
    assert num_spared > num_read / 2 and nothing == 0
    assert num_read == num_read_alone  # what a caller is told stays the same


def test_what_token_wise_answers_need_is_not_shared(tmp_path: Path) -> None:
    save_tiny(tmp_path, "Qwen3Model")
    begin = "the old city of berlin is big and not bad and people live in the new one"
    texts = [f"{begin} {number}" for number in range(8)]

    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        rows = llm.encode(texts, pooling_task="token_embed", use_tqdm=False)
        assert llm.engine.loop.executor.stems.num_spared == 0
        vectors = llm.embed(texts, use_tqdm=False)
        assert llm.engine.loop.executor.stems.num_spared > 0

    for row, vector in zip(rows, vectors, strict=True):
        assert_close(row.outputs.data[-1], torch.tensor(vector.outputs.embedding), atol=1e-5, rtol=1e-5)
