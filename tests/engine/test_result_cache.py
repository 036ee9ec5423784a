"""Answers that are kept: given again bit by bit, to whom they belong, for exactly what was asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cenote import LLM, LoadError, PoolingParams
from cenote.protocol.requests import Pooled
from tests.api.app_client import load, serve
from tests.engine.conftest import MakeEngine, asking, echoed
from tests.tiny import TEXTS, tiny_bert, tiny_bert_classifier, tiny_bert_tagger

MIB = 1024**2


def vectors(llm: LLM, texts: list[str] = TEXTS, **options: Any) -> list[torch.Tensor]:
    return [output.outputs.data for output in llm.encode(texts, pooling_task="embed", use_tqdm=False, **options)]


def counts(llm: LLM) -> tuple[int, int]:
    assert llm.engine.cache is not None
    return llm.engine.cache.num_hits, llm.engine.cache.num_misses


def same_bits(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


def test_an_input_that_comes_again_is_not_computed_and_its_answer_is_the_same(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    with load(tmp_path, result_cache_bytes="1M") as llm:
        first = llm.embed(TEXTS, use_tqdm=False)
        again = llm.embed([*reversed(TEXTS), "green"], use_tqdm=False)

        assert counts(llm) == (len(TEXTS), len(TEXTS) + 1)
    for one, other in zip(reversed(first), again, strict=False):
        assert one.outputs.embedding == other.outputs.embedding
        assert one.prompt_token_ids == other.prompt_token_ids


def test_kept_answers_survive_a_restart_and_belong_to_their_model(tmp_path: Path) -> None:
    model, other, folder = tmp_path / "model", tmp_path / "other", tmp_path / "answers"
    tiny_bert(model)
    tiny_bert(other, seed=1)
    options = {"result_cache_dir": str(folder), "result_cache_disk_bytes": "1M"}
    with load(model, **options) as llm:
        first = vectors(llm)
    with load(other, **options) as llm:
        theirs = vectors(llm)
        assert counts(llm) == (0, len(TEXTS))
    with load(model, **options) as llm:
        again = vectors(llm)
        assert counts(llm) == (len(TEXTS), 0)

    assert same_bits(first, again) and not same_bits(first, theirs)
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("model", "task"), [(tiny_bert_classifier, "classify"), (tiny_bert_tagger, "token_classify")])
def test_every_kind_of_answer_is_kept(model: Any, task: str, tmp_path: Path) -> None:
    model(tmp_path)
    with load(tmp_path, result_cache_bytes=MIB) as llm:
        first, again = (
            [output.outputs.data for output in llm.encode(TEXTS, pooling_task=task, use_tqdm=False)] for _ in range(2)
        )

        assert counts(llm) == (len(TEXTS), len(TEXTS))
    assert same_bits(first, again)
    assert [answer.shape for answer in first] == [answer.shape for answer in again]


def test_what_is_asked_in_another_way_is_computed(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    with load(tmp_path, result_cache_bytes=MIB) as llm:
        plain = vectors(llm)
        raw = vectors(llm, pooling_params=PoolingParams(use_activation=False))
        cut = vectors(llm, tokenization_kwargs={"truncate_prompt_tokens": 3})

        assert not same_bits(plain, raw) and not same_bits(plain, cut)
        assert same_bits(raw, vectors(llm, pooling_params=PoolingParams(use_activation=False)))
        assert same_bits(plain, vectors(llm))


def test_pairs_of_equal_tokens_and_other_types_are_not_alike(tmp_path: Path) -> None:
    """The boundary between the two texts is told by token types alone where no separator shows it."""
    tiny_bert_classifier(tmp_path, num_labels=1)
    with load(tmp_path, result_cache_bytes=MIB) as llm:
        first, second = (llm.score("the cat", "is red", use_tqdm=False)[0].outputs.score for _ in range(2))
        alone = llm.classify("the cat[SEP]is red", use_tqdm=False)[0].outputs.probs[0]

        assert first == second != alone
        assert counts(llm) == (1, 2)


def test_an_answer_that_was_kept_counts_its_tokens(make_engine: MakeEngine) -> None:
    engine = make_engine(result_cache_bytes=MIB)

    for _ in range(2):
        pending = engine.submit(asking([[5, 6, 7], [8]]))
        assert echoed(pending.wait()) == [[5, 6, 7], [8]]
        assert pending.num_tokens == 4

    families = {family.name: family.series[0].value for family in engine.records.metrics.snapshot() if family.series}
    assert families["cenote_cache_hits_total"] == families["cenote_cache_misses_total"] == 2
    assert families["cenote_cache_memory_bytes"] > 0


def test_an_input_that_failed_is_tried_again(make_engine: MakeEngine) -> None:
    broken = True

    def fault(batch: Any) -> None:
        if broken:
            raise RuntimeError("for now")

    engine = make_engine(fault=fault, result_cache_bytes=MIB)
    engine.pool_sync(asking([[5]], keep_going=True))
    broken = False

    (answer,) = engine.pool_sync(asking([[5]]))
    assert isinstance(answer, Pooled)


def test_each_api_key_has_its_own_answers(tmp_path: Path) -> None:
    tiny_bert(tmp_path)

    def ask(client: Any, key: str) -> Any:
        return client.post("/v1/embeddings", json={"input": "the cat"}, headers={"Authorization": f"Bearer {key}"})

    for shared, hits in ((False, [0, 1, 1, 2]), (True, [0, 1, 2, 3])):
        with load(tmp_path, result_cache_bytes=MIB, result_cache_shared=shared) as llm:
            client, seen = serve(llm, api_key=("one", "two")), []
            for key in ("one", "one", "two", "two"):
                reply = ask(client, key)
                assert reply.status_code == 200 and reply.json()["usage"]["total_tokens"] == 4
                seen.append(counts(llm)[0])

            assert seen == hits


def test_a_folder_that_cannot_be_used_ends_the_start(tmp_path: Path) -> None:
    tiny_bert(tmp_path)

    with pytest.raises(LoadError, match="result_cache_dir .*config.json"):
        load(tmp_path, result_cache_dir=str(tmp_path / "config.json"))
