"""The result cache in an engine: equal results, separated by model, parameters and API key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cenote import LLM, PoolingParams
from cenote.protocol.results import PoolResult
from tests.api.app_client import load_llm, make_client
from tests.engine.conftest import MakeEngine, echoed_token_ids, make_request
from tests.tiny import TEXTS, tiny_bert, tiny_bert_classifier, tiny_bert_token_classifier

MIB = 1024**2


def embed_texts(llm: LLM, texts: list[str] = TEXTS, **options: Any) -> list[torch.Tensor]:
    return [output.outputs.data for output in llm.encode(texts, pooling_task="embed", use_tqdm=False, **options)]


def cache_counts(llm: LLM) -> tuple[int, int]:
    assert llm.engine.core.result_cache is not None
    return llm.engine.core.result_cache.num_hits, llm.engine.core.result_cache.num_misses


def are_bit_equal(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> bool:
    return all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


def test_a_repeated_input_is_served_from_the_cache_with_the_same_result(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    with load_llm(tmp_path, result_cache_bytes="1M") as llm:
        first = llm.embed(TEXTS, use_tqdm=False)
        again = llm.embed([*reversed(TEXTS), "green"], use_tqdm=False)

        assert cache_counts(llm) == (len(TEXTS), len(TEXTS) + 1)
    for one, other in zip(reversed(first), again, strict=False):
        assert one.outputs.embedding == other.outputs.embedding
        assert one.prompt_token_ids == other.prompt_token_ids


def test_cached_results_survive_a_restart_and_belong_to_one_model(tmp_path: Path) -> None:
    model, other, folder = tmp_path / "model", tmp_path / "other", tmp_path / "cache"
    tiny_bert(model)
    tiny_bert(other, seed=1)
    options = {"result_cache_dir": str(folder), "result_cache_disk_bytes": "1M"}
    with load_llm(model, **options) as llm:
        first = embed_texts(llm)
    with load_llm(other, **options) as llm:
        theirs = embed_texts(llm)
        assert cache_counts(llm) == (0, len(TEXTS))
    with load_llm(model, **options) as llm:
        again = embed_texts(llm)
        assert cache_counts(llm) == (len(TEXTS), 0)

    assert are_bit_equal(first, again) and not are_bit_equal(first, theirs)
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("model", "task"), [(tiny_bert_classifier, "classify"), (tiny_bert_token_classifier, "token_classify")]
)
def test_results_of_every_task_are_cached(model: Any, task: str, tmp_path: Path) -> None:
    model(tmp_path)
    with load_llm(tmp_path, result_cache_bytes=MIB) as llm:
        first, again = (
            [output.outputs.data for output in llm.encode(TEXTS, pooling_task=task, use_tqdm=False)] for _ in range(2)
        )

        assert cache_counts(llm) == (len(TEXTS), len(TEXTS))
    assert are_bit_equal(first, again)
    assert [result.shape for result in first] == [result.shape for result in again]


def test_other_pooling_params_miss_the_cache(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    with load_llm(tmp_path, result_cache_bytes=MIB) as llm:
        plain = embed_texts(llm)
        raw = embed_texts(llm, pooling_params=PoolingParams(use_activation=False))
        cut = embed_texts(llm, tokenization_kwargs={"truncate_prompt_tokens": 3})

        assert not are_bit_equal(plain, raw) and not are_bit_equal(plain, cut)
        assert are_bit_equal(raw, embed_texts(llm, pooling_params=PoolingParams(use_activation=False)))
        assert are_bit_equal(plain, embed_texts(llm))


def test_pairs_with_equal_tokens_and_other_token_types_have_other_keys(tmp_path: Path) -> None:
    """Token types mark the boundary between two texts, which token ids alone do not."""
    tiny_bert_classifier(tmp_path, num_labels=1)
    with load_llm(tmp_path, result_cache_bytes=MIB) as llm:
        first, second = (llm.score("the cat", "is red", use_tqdm=False)[0].outputs.score for _ in range(2))
        alone = llm.classify("the cat[SEP]is red", use_tqdm=False)[0].outputs.probs[0]

        assert first == second != alone
        assert cache_counts(llm) == (1, 2)


def test_a_cached_result_counts_its_tokens(make_engine: MakeEngine) -> None:
    engine = make_engine(result_cache_bytes=MIB)

    for _ in range(2):
        state = engine.submit(make_request([[5, 6, 7], [8]]))
        assert echoed_token_ids(state.wait()) == [[5, 6, 7], [8]]
        assert state.num_tokens == 4

    families = {family.name: family.series[0].value for family in engine.metrics.registry.snapshot() if family.series}
    assert families["cenote_cache_hits_total"] == families["cenote_cache_misses_total"] == 2
    assert families["cenote_cache_memory_bytes"] > 0


def test_a_failed_input_is_not_cached(make_engine: MakeEngine) -> None:
    broken = True

    def fault(batch: Any) -> None:
        if broken:
            raise RuntimeError("temporary failure")

    engine = make_engine(fault=fault, result_cache_bytes=MIB)
    engine.pool_sync(make_request([[5]], return_exceptions=True))
    broken = False

    (result,) = engine.pool_sync(make_request([[5]]))
    assert isinstance(result, PoolResult)


def test_each_api_key_has_its_own_cached_results(tmp_path: Path) -> None:
    tiny_bert(tmp_path)

    def post(client: Any, key: str) -> Any:
        return client.post("/v1/embeddings", json={"input": "the cat"}, headers={"Authorization": f"Bearer {key}"})

    for shared, hits in ((False, [0, 1, 1, 2]), (True, [0, 1, 2, 3])):
        with load_llm(tmp_path, result_cache_bytes=MIB, result_cache_shared=shared) as llm:
            client, num_hits = make_client(llm, api_key=("one", "two")), []
            for key in ("one", "one", "two", "two"):
                reply = post(client, key)
                assert reply.status_code == 200 and reply.json()["usage"]["total_tokens"] == 4
                num_hits.append(cache_counts(llm)[0])

            assert num_hits == hits


@pytest.mark.parametrize("shared", [False, True])
def test_results_are_shared_only_between_requests_of_the_same_salt(shared: bool, tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    with load_llm(tmp_path, result_cache_bytes=MIB, result_cache_shared=shared) as llm:
        client, num_hits = make_client(llm), []
        for salt in (None, "a", "b", "a", None, "b" * 128):
            body = {"input": "the cat"} | ({} if salt is None else {"cache_salt": salt})
            assert client.post("/v1/embeddings", json=body).status_code == 200
            num_hits.append(cache_counts(llm)[0])

        assert num_hits == [0, 0, 0, 1, 2, 2]


def test_salts_of_prompts_in_python_separate_calls(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    with load_llm(tmp_path, result_cache_bytes=MIB) as llm:
        num_hits = []
        for salts in (["a"], ["b"], ["a"], ["a", "b"], ["b", "a"]):
            llm.embed([{"prompt": "the cat", "cache_salt": salt} for salt in salts], use_tqdm=False)
            num_hits.append(cache_counts(llm)[0])

        assert num_hits == [0, 0, 1, 1, 3]


@pytest.mark.parametrize("folder", ["config.json", "~nosuchuser/cache"])
def test_an_unusable_cache_folder_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture, folder: str) -> None:
    tiny_bert(tmp_path)
    folder = folder if folder.startswith("~") else str(tmp_path / folder)

    with load_llm(tmp_path, result_cache_dir=folder, result_cache_bytes=MIB) as llm:
        assert len(llm.embed(["the cat"] * 2, use_tqdm=False)) == 2
    assert "result" in caplog.text and folder in caplog.text
