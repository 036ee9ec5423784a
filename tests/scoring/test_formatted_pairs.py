"""Texts that a program has put into the reranker's format itself, as vLLM's qwen3_reranker examples do.

The reference is Transformers on the whole prompt, with Qwen3's own tokenizer.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from cenote import LLM, BadRequest, PoolingParams
from cenote.inputs.formatted_pairs import log_formatted
from cenote.inputs.pairs import render_pair
from cenote.loading.rerankers import load_builtin_template
from cenote.protocol.input_types import TextPair
from tests.api.app_client import assert_refused, load_llm, make_client
from tests.factories import LLMFactory
from tests.real.conftest import shared_folder
from tests.scoring.rerankers import mxbai, qwen3, save_reranker
from tests.tiny import save_tiny

TASK = "Given a web search query, retrieve relevant passages that answer the query"
OTHER_TASK = "Find the passage that contradicts the query"
QUERIES = ["What is the capital of China?", "Explain gravity"]
DOCUMENTS = ["The capital of China is Beijing.", "Gravity is a force that attracts two bodies towards each other."]
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
OVERRIDES = {
    "architectures": ["Qwen3ForSequenceClassification"],
    "classifier_from_token": ["no", "yes"],
    "is_original_qwen3_reranker": True,
}


def format_query(query: str, instruction: str = TASK) -> str:
    prompt = qwen3(query, "", instruction)
    return prompt[: prompt.index("<Document>: ")]


def format_document(document: str) -> str:
    return f"<Document>: {document}{SUFFIX}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("qwen3-reranker")


@pytest.fixture(scope="module")
def reference(folder: Path) -> PreTrainedModel:
    files = shared_folder("tokenizers", "qwen3")
    model = save_tiny(folder, "Qwen3ForCausalLM", max_position_embeddings=512, vocab_size=151936)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(files / file, folder / file)
    return model


@pytest.fixture(scope="module")
def llm(folder: Path, reference: PreTrainedModel, open_llm: LLMFactory) -> LLM:
    return open_llm(folder, task="score", hf_overrides=OVERRIDES)


@pytest.fixture(scope="module")
def expected_score(folder: Path, reference: PreTrainedModel) -> Callable[[str], float]:
    """Transformers' probability of "yes" after a prompt."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    answers = tokenizer.convert_tokens_to_ids(["no", "yes"])

    def score(prompt: str) -> float:
        with torch.inference_mode():
            logits = reference(**tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)).logits
        return logits[0, -1, answers].softmax(-1)[1].item()

    return score


def score_output(llm: LLM, query: str, document: str, **options: Any) -> Any:
    (output,) = llm.score(query, document, use_tqdm=False, **options)
    return output


def score(llm: LLM, queries: Any, documents: Any, **options: Any) -> list[float]:
    return [output.outputs.score for output in llm.score(queries, documents, use_tqdm=False, **options)]


SHAPES = {
    "1:1": (QUERIES[:1], DOCUMENTS[:1]),
    "1:N": (QUERIES[:1], DOCUMENTS),
    "N:N": (QUERIES, DOCUMENTS),
}


@pytest.mark.parametrize("instruction", [TASK, OTHER_TASK])
@pytest.mark.parametrize(("queries", "documents"), SHAPES.values(), ids=SHAPES)
def test_formatted_qwen3_reranker_texts_score_as_plain_ones(
    queries: list[str],
    documents: list[str],
    instruction: str,
    llm: LLM,
    expected_score: Callable[[str], float],
) -> None:
    pairs = zip(queries * (len(documents) // len(queries)), documents, strict=True)
    expected = pytest.approx([expected_score(qwen3(*pair, instruction)) for pair in pairs], abs=1e-4)
    formatted = [format_query(query, instruction) for query in queries], list(map(format_document, documents))

    assert score(llm, *formatted) == expected
    assert score(llm, queries, documents, instruction=instruction) == expected


@pytest.mark.parametrize(
    "limits",
    [
        {"max_tokens_per_doc": 3},
        {"max_tokens_per_query": 2},
        {"max_tokens_per_query": 2, "max_tokens_per_doc": 3},
        {"truncate_prompt_tokens": 80},
        {"truncate_prompt_tokens": 73},
    ],
    ids=str,
)
def test_token_limits_count_the_texts_and_keep_the_template(limits: dict[str, int], llm: LLM) -> None:
    client = make_client(llm)

    def post(query: str, documents: list[str]) -> Any:
        reply = client.post("/score", json={"queries": query, "documents": documents, **limits})
        assert reply.status_code == 200, reply.text
        return [item["score"] for item in reply.json()["data"]], reply.json()["usage"]["prompt_tokens"]

    plain, num_tokens = post(QUERIES[0], DOCUMENTS)

    scores, num_formatted_tokens = post(format_query(QUERIES[0]), list(map(format_document, DOCUMENTS)))

    assert scores == pytest.approx(plain, abs=1e-6)
    assert num_formatted_tokens == num_tokens
    assert plain != pytest.approx(score(llm, QUERIES[0], DOCUMENTS), abs=1e-4)  # something was truncated


def test_offline_limits_truncate_the_text_inside_the_format(llm: LLM) -> None:
    params = PoolingParams(extra_kwargs={"max_tokens_per_query": 2, "max_tokens_per_doc": 3})

    plain = score_output(llm, QUERIES[0], DOCUMENTS[0], pooling_params=params)
    formatted = score_output(llm, format_query(QUERIES[0]), format_document(DOCUMENTS[0]), pooling_params=params)

    assert formatted.prompt_token_ids == plain.prompt_token_ids
    assert len(plain.prompt_token_ids) < len(score_output(llm, QUERIES[0], DOCUMENTS[0]).prompt_token_ids)


def test_a_formatted_text_too_long_for_the_model_is_refused_like_a_plain_one(llm: LLM) -> None:
    for query, document in (
        (QUERIES[0], "gravity " * 600),
        (format_query(QUERIES[0]), format_document("gravity " * 600)),
    ):
        with pytest.raises(BadRequest, match="maximum context length is 512"):
            llm.score(query, document, use_tqdm=False)


def test_the_template_that_is_not_applied_is_logged_once(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    log_formatted.cache_clear()

    with caplog.at_level(logging.INFO, "cenote"):
        score(llm, QUERIES, DOCUMENTS)
        assert "already contain" not in caplog.text
        for _ in range(2):
            score(llm, format_query(QUERIES[0]), list(map(format_document, DOCUMENTS)))

    assert caplog.text.count("already contain the score template qwen3_reranker") == 1


def test_a_formatted_query_with_a_plain_document_is_refused_alone(llm: LLM) -> None:
    documents = [format_document(DOCUMENTS[0]), DOCUMENTS[1], f"<Document>: {DOCUMENTS[1]}"]
    words = "contains the score template qwen3_reranker, but its document does not start with '<Document>: '"

    for document in documents[1:]:
        with pytest.raises(BadRequest, match=words):
            score(llm, format_query(QUERIES[0]), document)
    assert_refused(
        make_client(llm).post("/rerank", json={"query": format_query(QUERIES[0]), "documents": documents}),
        words,
        None,
    )


@pytest.mark.parametrize(
    "extra",
    [
        {"instruction": OTHER_TASK},
        {"chat_template_kwargs": {"instruction": OTHER_TASK}},
        {"chat_template_kwargs": {"instruct": OTHER_TASK}},
    ],
    ids=str,
)
def test_an_instruction_beside_formatted_texts_is_refused_on_every_route(extra: dict[str, Any], llm: LLM) -> None:
    words = "already contain the score template qwen3_reranker, where the instruction belongs"
    query, document = format_query(QUERIES[0]), format_document(DOCUMENTS[0])

    with pytest.raises(BadRequest, match=words):
        score(llm, query, document, pooling_params=PoolingParams(extra_kwargs=extra))
    for path, names in {"/score": ("text_1", "text_2"), "/rerank": ("query", "documents")}.items():
        body = dict(zip(names, (query, [document]), strict=True))
        assert_refused(make_client(llm).post(path, json={**body, **extra}), words, "instruction")


def test_an_empty_instruction_beside_formatted_texts_changes_nothing(llm: LLM) -> None:
    formatted = format_query(QUERIES[0]), format_document(DOCUMENTS[0])

    assert score(llm, *formatted, instruction="") == score(llm, *formatted)


def test_the_order_of_documents_that_split_a_query_differently_does_not_matter(llm: LLM) -> None:
    params = PoolingParams(extra_kwargs={"max_tokens_per_query": 2})
    query = format_query(QUERIES[0])
    documents = [format_document(DOCUMENTS[0]), f"\n{format_document(DOCUMENTS[1])}"]

    alone = [score_output(llm, query, document, pooling_params=params).prompt_token_ids for document in documents]
    for order in (documents, documents[::-1]):
        outputs = llm.score(query, order, pooling_params=params, use_tqdm=False)
        assert [output.prompt_token_ids for output in outputs] == (alone if order is documents else alone[::-1])


def test_a_formatted_document_of_a_plain_query_is_a_text_like_any_other(
    llm: LLM, expected_score: Callable[[str], float]
) -> None:
    documents = [format_document(DOCUMENTS[0]), f"{DOCUMENTS[1]}{SUFFIX}"]

    expected = [expected_score(qwen3(QUERIES[0], document)) for document in documents]

    assert score(llm, QUERIES[0], documents) == pytest.approx(expected, abs=1e-4)


def test_markers_in_the_middle_of_texts_change_nothing(llm: LLM, expected_score: Callable[[str], float]) -> None:
    query = f"why does my prompt {format_query('a')} not work?"
    document = f"write {format_document('b')}, then press return"

    assert score(llm, query, document) == pytest.approx([expected_score(qwen3(query, document))], abs=1e-4)
    formatted = format_query(query), format_document(document)
    assert score(llm, *formatted) == pytest.approx([expected_score(qwen3(query, document))], abs=1e-4)


def test_a_given_template_is_applied_to_formatted_texts(
    folder: Path, llm: LLM, expected_score: Callable[[str], float]
) -> None:
    template = load_builtin_template("qwen3_reranker").text
    formatted = format_query(QUERIES[0]), format_document(DOCUMENTS[0])
    expected = pytest.approx([expected_score(qwen3(*formatted))], abs=1e-4)

    assert score(llm, *formatted, chat_template=template) == expected
    for options in ({"chat_template": template}, {"score_template": template}):
        with load_llm(folder, hf_overrides=OVERRIDES, **options) as given:
            assert score(given, *formatted) == expected


def test_mxbai_texts_are_recognised_with_and_without_an_instruction(tmp_path: Path) -> None:
    folder = tmp_path / "mxbai-rerank-base-v2"
    save_reranker(folder, "Qwen2ForCausalLM")

    def split(instruction: str | None) -> tuple[str, str]:
        prompt = mxbai("the old city", "a red fish", instruction)
        at = prompt.index("document: ")
        return prompt[:at], prompt[at:]

    with load_llm(folder) as llm:
        for instruction in (None, "find the old book"):
            plain = score_output(llm, "the old city", "a red fish", instruction=instruction)
            formatted = score_output(llm, *split(instruction))
            assert formatted.prompt_token_ids == plain.prompt_token_ids


def test_ordinary_texts_that_begin_like_a_short_template_are_plain(tmp_path: Path) -> None:
    folder = tmp_path / "bge-reranker-v2-gemma"
    save_reranker(folder, "GemmaForCausalLM")
    template = load_builtin_template("bge_reranker_v2_gemma")

    with load_llm(folder) as llm:
        tokenizer = llm.get_tokenizer()
        for query, document in (("A: the old city", "a red fish"), ("A: the old city\n", "B: a red fish")):
            output = score_output(llm, query, document)
            prompt = render_pair(TextPair(query, document), {}, template)
            assert output.prompt_token_ids == tokenizer.encode(prompt).ids
