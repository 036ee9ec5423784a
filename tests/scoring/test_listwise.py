"""A tiny listwise reranker: one prompt for all documents, compared with Transformers and a projector."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from starlette.testclient import TestClient
from torch.nn import functional as F
from torch.testing import assert_close

from cenote import LLM, BadRequest, InputTooLong, PoolingParams, Unsupported
from cenote.engine.self_check_store import get_path, read_results
from cenote.errors import PoolingError
from cenote.inputs.limits import Limits
from cenote.inputs.listwise_prompt import strip_special_tokens
from cenote.inputs.tokenized_inputs import TokenizedInput
from cenote.protocol.input_types import ListwiseInput
from cenote.protocol.params import TokenizationParams
from cenote.protocol.requests import ScoreRequest
from cenote.protocol.results import ScoreResult
from tests.api.app_client import assert_refused, load_llm, make_client
from tests.real.conftest import shared_folder
from tests.scoring.listwise import DOCUMENTS, QUERY, SPECIAL_TOKENS, JinaReranker, prompt
from tests.scoring.rerankers import count_limited_tokens
from tests.tiny import change_config


@pytest.fixture
def client(jina: JinaReranker) -> TestClient:
    return make_client(jina.llm)


def scores(llm: LLM, queries: Any, documents: Any, **options: Any) -> list[float]:
    return [output.outputs.score for output in llm.score(queries, documents, use_tqdm=False, **options)]


# scores


def test_all_documents_of_a_query_are_encoded_in_one_prompt(jina: JinaReranker) -> None:
    outputs = jina.llm.score(QUERY, DOCUMENTS, use_tqdm=False)

    assert [output.outputs.score for output in outputs] == pytest.approx(jina.scores(QUERY, DOCUMENTS), abs=1e-4)
    prompt_ids = jina.llm.get_tokenizer().encode(prompt(QUERY, DOCUMENTS)).ids
    assert all(output.prompt_token_ids == prompt_ids for output in outputs)
    assert len({output.request_id for output in outputs}) == 1


def test_the_self_check_compares_scores(jina: JinaReranker) -> None:
    results = read_results(get_path(jina.llm.engine.model_info.fingerprint, torch.device("cpu")))

    assert results is not None
    assert {task: values.values.shape for task, values in results.by_task.items()} == {"score": (2,)}


def test_a_score_depends_on_the_other_documents(jina: JinaReranker) -> None:
    alone = [score for document in DOCUMENTS for score in jina.scores(QUERY, [document])]

    assert scores(jina.llm, [QUERY] * 4, DOCUMENTS) == pytest.approx(alone, abs=1e-4)
    assert scores(jina.llm, QUERY, DOCUMENTS) != pytest.approx(alone, abs=1e-3)


def test_late_interaction_is_accepted_as_a_name_of_listwise(jina: JinaReranker) -> None:
    expected = pytest.approx(jina.scores(QUERY, DOCUMENTS), abs=1e-4)

    assert jina.llm.engine.model_info.score_types == ("listwise",)
    assert scores(jina.llm, QUERY, DOCUMENTS, score_type="late-interaction") == expected
    assert scores(jina.llm, QUERY, DOCUMENTS, score_type="listwise") == expected
    with pytest.raises(Unsupported, match="does not support score_type 'bi-encoder'; available: listwise"):
        scores(jina.llm, QUERY, DOCUMENTS, score_type="bi-encoder")


def test_an_instruction_comes_before_the_documents(jina: JinaReranker, client: TestClient) -> None:
    expected = pytest.approx(jina.scores(QUERY, DOCUMENTS, "find the old book"), abs=1e-4)

    assert scores(jina.llm, QUERY, DOCUMENTS, instruction="find the old book") == expected
    params = PoolingParams(extra_kwargs={"chat_template_kwargs": {"instruction": "find the old book"}})
    assert scores(jina.llm, QUERY, DOCUMENTS, pooling_params=params) == expected
    body = {"query": QUERY, "documents": DOCUMENTS, "instruction": "find the old book"}
    results = sorted(client.post("/rerank", json=body).json()["results"], key=lambda item: item["index"])
    assert [item["relevance_score"] for item in results] == expected


def test_queries_and_documents_have_separate_token_limits(jina: JinaReranker) -> None:
    limits = PoolingParams(extra_kwargs={"max_tokens_per_query": 2, "max_tokens_per_doc": 3})
    truncated = ["the city of", "a red fish", "no", "people live in"]

    assert scores(jina.llm, QUERY, DOCUMENTS, pooling_params=limits) == pytest.approx(
        jina.scores("how big", truncated), abs=1e-4
    )


@pytest.mark.parametrize(
    "text",
    [
        "a <|embed_token|>red<|rerank_token|> fish",
        "a red<|embed_<|embed_token|>token|> fish",
        "a red<|rerank_<|embed_token|>token|> fish",
    ],
)
def test_special_tokens_in_a_text_are_removed(text: str, jina: JinaReranker) -> None:
    assert strip_special_tokens(text) == "a red fish"
    expected = jina.scores("a red fish", ["a red fish", "no"])
    assert scores(jina.llm, text, [text, "no"]) == pytest.approx(expected, abs=1e-4)


# several prompts


def score_in_blocks(jina: JinaReranker, query: str, *blocks: list[str]) -> list[float]:
    """Score as the model's authors do: with the mean of the query's rows, weighted by the best score of each block."""
    block_rows = [jina.rows(query, block) for block in blocks]
    weights = torch.stack([(1 + F.cosine_similarity(rows[:-1], rows[-1:])).max() / 2 for rows in block_rows])
    mean = sum(weight * rows[-1] for weight, rows in zip(weights, block_rows, strict=True)) / weights.sum()
    return [score for rows in block_rows for score in F.cosine_similarity(rows[:-1], mean[None]).tolist()]


def test_documents_that_do_not_fit_one_prompt_are_encoded_in_blocks(jina: JinaReranker) -> None:
    long = ["the red cat and the old dog " * 30, "a blue bird and a green fish " * 20, "berlin is big " * 50, "no"]
    max_tokens = jina.llm.model_config.max_model_len
    assert jina.length(QUERY, long[:1]) < max_tokens < jina.length(QUERY, long)
    num_first = max(count for count in range(1, 5) if jina.length(QUERY, long[:count]) <= max_tokens)

    ours = jina.llm.score(QUERY, long, use_tqdm=False)

    expected = score_in_blocks(jina, QUERY, long[:num_first], long[num_first:])
    assert [output.outputs.score for output in ours] == pytest.approx(expected, abs=1e-4)
    lengths = {len(output.prompt_token_ids) for output in ours}
    assert lengths == {jina.length(QUERY, long[:num_first]), jina.length(QUERY, long[num_first:])}


def test_a_smaller_prompt_makes_more_blocks(jina: JinaReranker) -> None:
    max_tokens = jina.length(QUERY, DOCUMENTS) - 10
    ours = scores(jina.llm, QUERY, DOCUMENTS, tokenization_kwargs={"truncate_prompt_tokens": max_tokens})

    num_first = max(count for count in range(1, 5) if jina.length(QUERY, DOCUMENTS[:count]) + count <= max_tokens)
    assert ours == pytest.approx(score_in_blocks(jina, QUERY, DOCUMENTS[:num_first], DOCUMENTS[num_first:]), abs=1e-4)


def test_a_document_longer_than_the_model_is_refused_or_truncated(jina: JinaReranker) -> None:
    text = "the red cat and the old dog " * 200

    with pytest.raises(InputTooLong, match="maximum context length is 900 tokens") as caught:
        jina.llm.score(QUERY, ["no", text, "yes"], use_tqdm=False)
    assert caught.value.index == 1
    outputs = jina.llm.score(QUERY, ["no", text], tokenization_kwargs={"truncate_prompt_tokens": -1}, use_tqdm=False)
    num_words = 900 - jina.length(QUERY, [""])
    truncated = " ".join(text.split()[:num_words])
    assert outputs[1].prompt_token_ids == jina.llm.get_tokenizer().encode(prompt(QUERY, [truncated])).ids
    assert [output.outputs.score for output in outputs] == pytest.approx(
        score_in_blocks(jina, QUERY, ["no"], [truncated]), abs=1e-4
    )


def test_a_failing_prompt_fails_only_its_own_documents(jina: JinaReranker) -> None:
    request = ScoreRequest(queries=[QUERY], documents=["no", "the cat " * 600, "yes"], return_exceptions=True)

    results = jina.llm.engine.score_sync(request)

    assert [isinstance(result, ScoreResult) for result in results] == [True, False, True]
    assert isinstance(results[1], PoolingError)


def test_many_documents_are_truncated_evenly(jina: JinaReranker) -> None:
    listwise_input = ListwiseInput(QUERY, ["the cat " * 20, "the dog " * 5, "the bird " * 20])
    (rendered,) = jina.llm.engine.renderer.render(
        [listwise_input],
        TokenizationParams(truncate_prompt_tokens=-1),
        limits=Limits(jina.length(QUERY, [""] * 3) + 40),
    )
    expected = prompt(QUERY, ["the cat " * 7 + "the", "the dog " * 5, "the bird " * 7 + "the"])

    assert isinstance(rendered, TokenizedInput) and rendered.row_mask is not None
    assert rendered.token_ids.tolist() == jina.llm.get_tokenizer().encode(expected).ids
    assert int(rendered.row_mask.sum()) == 4


# token embeddings


def test_a_list_of_texts_is_documents_and_a_query(jina: JinaReranker, client: TestClient) -> None:
    (output,) = jina.llm.encode([*DOCUMENTS, QUERY], pooling_task="token_embed", use_tqdm=False)
    reply = client.post("/pooling", json={"input": [*DOCUMENTS, QUERY]})

    rows = jina.rows(QUERY, DOCUMENTS)
    assert rows.shape == (5, 12)
    assert_close(output.outputs.data, rows, atol=1e-4, rtol=0)
    (item,) = reply.json()["data"]
    assert_close(torch.tensor(item["data"]), rows, atol=1e-4, rtol=0)


def test_inputs_other_than_lists_of_texts_are_refused(jina: JinaReranker, client: TestClient) -> None:
    too_few = "The JinaForRanking model requires at least 2 inputs."
    with pytest.raises(BadRequest, match=too_few):
        jina.llm.encode("alone", pooling_task="token_embed", use_tqdm=False)
    with pytest.raises(Unsupported, match="The JinaForRanking model only supports text as input."):
        jina.llm.encode([[1, 2], [3, 4]], pooling_task="token_embed", use_tqdm=False)
    assert_refused(client.post("/pooling", json={"input": "alone"}), too_few, "input")
    messages = [{"role": "user", "content": "a"}]
    message = "The JinaForRanking does not support chat Request."
    assert_refused(client.post("/pooling", json={"messages": messages}), message, "messages")


# compared with vLLM


def test_token_counts_are_those_of_vllm(jina: JinaReranker, tmp_path: Path) -> None:
    files = shared_folder("tokenizers", "qwen3")
    shutil.copytree(jina.folder, tmp_path, dirs_exist_ok=True)
    shutil.copy(files / "tokenizer_config.json", tmp_path / "tokenizer_config.json")
    tokenizer = tokenizers.Tokenizer.from_file(str(files / "tokenizer.json"))
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.weight"] = torch.randn(151936, 32)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    change_config(tmp_path, vocab_size=151936)

    with load_llm(tmp_path) as llm:
        assert count_limited_tokens(llm) == [567, 308, 436, 177]
