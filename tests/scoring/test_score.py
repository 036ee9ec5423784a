"""Scores of a bi-encoder and a tiny cross-encoder in real engines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import PreTrainedModel

from cenote import LLM, BadRequest, InputTooLong, LoadError, PoolingParams, Unsupported
from cenote.errors import PoolingError
from cenote.protocol.params import LoRARequest
from cenote.protocol.requests import ScoreRequest
from cenote.protocol.results import ScoreResult
from tests.tiny import tiny_bert, tiny_bert_classifier

QUERY = "What is the capital of France?"
DOCUMENTS = ["Paris is the capital of France.", "The mitochondrion is part of a cell.", "Lyon is a city in France."]


class CrossEncoder:
    """A tiny cross-encoder in Cenote and in Transformers."""

    def __init__(self, folder: Path) -> None:
        self.reference: PreTrainedModel = tiny_bert_classifier(folder, num_labels=1)
        self.llm = LLM(str(folder), dtype="float32", device="cpu")

    def logit(self, query: str, document: str, *, joined: bool = False) -> float:
        """Return the logit of Transformers for a pair, or for both texts joined to one."""
        raw = self.llm.get_tokenizer()
        encoding = raw.encode(query + document) if joined else raw.encode(query, document)
        return self.logit_of(encoding.ids, encoding.type_ids)

    def logit_of(self, ids: list[int], types: list[int]) -> float:
        with torch.inference_mode():
            output = self.reference(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types]))
        return output.logits.item()


@pytest.fixture(scope="module")
def cross(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrossEncoder]:
    cross = CrossEncoder(tmp_path_factory.mktemp("cross"))
    yield cross
    cross.llm.close()


def scores(outputs: list[Any]) -> list[float]:
    return [output.outputs.score for output in outputs]


def make_params(**extra: Any) -> PoolingParams:
    return PoolingParams(extra_kwargs=extra)


# bi-encoder


def test_an_embedder_scores_by_the_cosine_of_its_embeddings(llm: LLM) -> None:
    query, *documents = (torch.tensor(o.outputs.embedding) for o in llm.embed([QUERY, *DOCUMENTS]))

    outputs = llm.score(QUERY, DOCUMENTS)

    assert scores(outputs) == pytest.approx([F.cosine_similarity(query, d, dim=0).item() for d in documents], abs=1e-5)
    assert scores(outputs)[0] == max(scores(outputs))


def test_one_to_one_one_to_many_and_many_to_many_agree(llm: LLM) -> None:
    one_by_one = [score for document in DOCUMENTS for score in scores(llm.score(QUERY, document))]

    assert scores(llm.score(QUERY, DOCUMENTS)) == pytest.approx(one_by_one, abs=1e-5)
    assert scores(llm.score([QUERY] * 3, DOCUMENTS)) == pytest.approx(one_by_one, abs=1e-5)
    assert scores(llm.score([QUERY], DOCUMENTS[:1])) == pytest.approx(one_by_one[:1], abs=1e-5)


def test_the_tokens_of_a_score_are_both_texts_with_padding_between(llm: LLM) -> None:
    (output,) = llm.score("a", "b c")

    assert output.prompt_token_ids == [101, 1037, 102, 0, 101, 1038, 1039, 102]


def test_separately_encoded_texts_give_a_combined_request_id(llm: LLM, cross: CrossEncoder) -> None:
    first, second = (output.request_id.split("_") for output in llm.score("a", ["b", "c"]))
    third, fourth = (output.request_id.split("_") for output in llm.score(["a", "b"], ["c", "d"]))
    joint = [output.request_id for output in cross.llm.score("a", ["b", "c"])]

    assert first[0] == second[0]
    assert [int(second[1]) - int(first[1]), int(first[1]) - int(first[0])] == [1, 1]
    assert int(second[1]) < int(third[0]) < int(fourth[0]) < int(third[1]) < int(fourth[1])
    assert int(joint[1]) == int(joint[0]) + 1


# cross-encoder


def test_a_cross_encoder_scores_by_its_logit(cross: CrossEncoder) -> None:
    documents = ["the cat", "a red bird, a blue fish", "two"]
    logits = [cross.logit("where is it", document) for document in documents]

    raw = scores(cross.llm.score("where is it", documents, pooling_params=PoolingParams(use_activation=False)))
    activated = scores(cross.llm.score("where is it", documents))

    assert raw == pytest.approx(logits, abs=1e-4)
    assert activated == pytest.approx(torch.tensor(logits).sigmoid().tolist(), abs=1e-5)


def test_the_tokens_of_a_cross_encoder_score_are_those_of_the_pair(cross: CrossEncoder) -> None:
    (output,) = cross.llm.score("the cat", "a dog")

    assert output.prompt_token_ids == cross.llm.get_tokenizer().encode("the cat", "a dog").ids


def test_a_template_joins_the_texts_into_one(cross: CrossEncoder) -> None:
    template = "{{ messages[0].content }} {{ word }} {{ messages[1].content }}"
    params = PoolingParams(use_activation=False, extra_kwargs={"chat_template_kwargs": {"word": "not"}})

    (output,) = cross.llm.score("cat", "dog", chat_template=template, pooling_params=params)

    assert output.outputs.score == pytest.approx(cross.logit("cat not ", "dog", joined=True), abs=1e-4)


def test_a_template_of_the_engine_is_used_where_the_call_has_none(cross: CrossEncoder, tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text("{{ messages[0].content }} two {{ messages[1].content }}")
    expected = cross.logit("cat two ", "dog", joined=True)
    folder = str(cross.llm.engine.model.description.checkpoint.folder)
    raw = PoolingParams(use_activation=False)

    for given in (file, str(file), file.read_text()):
        with LLM(folder, dtype="float32", chat_template=given) as llm:
            assert scores(llm.score("cat", "dog", pooling_params=raw)) == pytest.approx([expected], abs=1e-4)
    with pytest.raises(LoadError, match="neither Jinja text nor a file"):
        LLM(folder, chat_template=str(tmp_path / "missing.jinja"))


def test_without_a_separator_the_document_follows_the_query(cross: CrossEncoder) -> None:
    folder = str(cross.llm.engine.model.description.checkpoint.folder)

    with LLM(folder, dtype="float32", hf_overrides={"use_sep_token": False}) as llm:
        (output,) = llm.score("cat", "dog", pooling_params=PoolingParams(use_activation=False))

    assert output.outputs.score == pytest.approx(cross.logit("cat", "dog", joined=True), abs=1e-4)


def test_a_pair_too_long_is_truncated_longest_first(cross: CrossEncoder) -> None:
    raw = cross.llm.get_tokenizer()
    query, document = "the cat is", "a red bird and a blue fish " * 20
    raw.enable_truncation(20)
    truncated = raw.encode(query, document)
    raw.no_truncation()

    (output,) = cross.llm.score(
        query,
        document,
        tokenization_kwargs={"truncate_prompt_tokens": 20},
        pooling_params=PoolingParams(use_activation=False),
    )

    assert output.prompt_token_ids == truncated.ids
    assert output.outputs.score == pytest.approx(cross.logit_of(truncated.ids, truncated.type_ids), abs=1e-4)
    with pytest.raises(BadRequest, match="maximum context length is 66 tokens"):
        cross.llm.score(query, document)


# limits per query and document


def test_queries_and_documents_have_separate_token_limits(llm: LLM, cross: CrossEncoder) -> None:
    text = "the cat is in the old city"
    limits = make_params(max_tokens_per_query=2, max_tokens_per_doc=3)

    (separate,) = llm.score(text, text, pooling_params=limits)
    (joint,) = cross.llm.score(text, text, pooling_params=limits)

    raw = llm.get_tokenizer()
    assert separate.prompt_token_ids == [*raw.encode("the cat").ids, 0, *raw.encode("the cat is").ids]
    assert joint.prompt_token_ids == cross.llm.get_tokenizer().encode("the cat", "the cat is").ids


def test_a_limit_of_zero_or_none_is_no_limit(llm: LLM) -> None:
    for limits in (make_params(max_tokens_per_query=0, max_tokens_per_doc=0), make_params(max_tokens_per_doc=None)):
        assert scores(llm.score("a b c", "a b c", pooling_params=limits)) == pytest.approx([1.0], abs=1e-5)


@pytest.mark.parametrize("name", ["max_tokens_per_query", "max_tokens_per_doc"])
def test_limits_out_of_range_are_refused(llm: LLM, name: str) -> None:
    with pytest.raises(BadRequest, match=f"{name} must be a non-negative integer"):
        llm.score("a", "b", pooling_params=make_params(**{name: -1}))
    with pytest.raises(BadRequest, match=rf"{name} \(256\) must be less than max_model_len \(256\)."):
        llm.score("a", "b", pooling_params=make_params(**{name: 256}))
    assert len(llm.score("a", "b", pooling_params=make_params(**{name: 255}))) == 1


def test_objects_with_text_content_are_scored_as_texts(llm: LLM) -> None:
    parts = [{"type": "text", "text": "the cat"}, {"type": "text", "text": "is old"}]
    given = [{"content": parts}, {"content": "two"}, {"text": "two"}, "two"]

    ours = [output.outputs.score for output in llm.score({"content": "a cat"}, given)]

    assert ours == [output.outputs.score for output in llm.score("a cat", ["the cat\nis old", "two", "two", "two"])]


# errors


def test_after_refused_requests_the_model_still_scores(llm: LLM, cross: CrossEncoder) -> None:
    content: Any = {"content": [{"type": "image_url", "image_url": {"url": "http://localhost/cat.png"}}]}
    reserved = make_params(chat_template_kwargs={"tools": []})
    for model, queries, documents, kwargs, message in (
        (llm, ["a", "b"], ["c"], {}, "Input lengths must be either 1:1, 1:N or N:N"),
        (llm, [], ["c"], {}, "At least one text element must be given"),
        (llm, "a", [], {}, "At least one text_pair element must be given"),
        (llm, content, "b", {}, "MultiModalParam is not supported for BertModel"),
        (llm, "a", [content], {}, "MultiModalParam is not supported for BertModel"),
        (llm, "a", [5], {}, "score compares texts, got int"),
        (llm, "a", "b", {"score_type": "cross-encoder"}, "mini does not support score_type 'cross-encoder'"),
        (llm, "a", "b", {"lora_request": LoRARequest("x")}, "Got lora_request x but LoRA is not enabled!"),
        (llm, "a", "\ud800", {}, "not valid Unicode"),
        (cross.llm, "a", "b", {"chat_template": "{{ 1 / 0 }}"}, "the score template failed: division by zero"),
        (cross.llm, "a", "b", {"chat_template": "{% for"}, "the score template is not valid Jinja"),
        (cross.llm, "a", "b", {"pooling_params": reserved}, r"contains reserved keys that conflict .*\['tools'\]"),
        (cross.llm, "a", "b", {"score_type": "bi-encoder"}, "does not support score_type 'bi-encoder'"),
    ):
        with pytest.raises(BadRequest, match=message):
            model.score(queries, documents, **kwargs)
        assert len(model.score("a", "b")) == 1


def test_multi_label_and_token_classifiers_do_not_score(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path, num_labels=3)
    messages = {
        None: "Scoring API is only enabled for num_labels == 1.",
        "token_classify": "does not support the Scoring",
    }

    for task, message in messages.items():
        llm = LLM(str(tmp_path), pooler_config={"task": task})
        with llm, pytest.raises(Unsupported, match=message):
            llm.score("a", "b")


# the engine's score


def test_scores_can_be_awaited_with_return_exceptions(llm: LLM) -> None:
    request = ScoreRequest(queries=["a"], documents=["a", "\ud800", "b"], return_exceptions=True, max_tokens_per_doc=5)

    first, second, third = asyncio.run(llm.engine.score(request))

    assert isinstance(first, ScoreResult)
    assert first.score == pytest.approx(1.0, abs=1e-5)
    assert isinstance(second, PoolingError)
    assert isinstance(third, ScoreResult)


def test_tokens_removed_by_a_limit_are_counted(llm: LLM) -> None:
    request = ScoreRequest(queries=["one two"], documents=["one two three four", "one"], max_tokens_per_doc=2)
    unlimited = ScoreRequest(queries=["one two"], documents=["one two three four", "one"])

    truncated, full = llm.engine.score_sync(request), llm.engine.score_sync(unlimited)
    assert [item.num_tokens for item in truncated] == [full[0].num_tokens - 2, full[1].num_tokens]
    assert [item.num_input_tokens for item in truncated] == [item.num_input_tokens for item in full]


def test_an_error_has_the_index_of_the_document(llm: LLM) -> None:
    request = ScoreRequest(queries=["one"], documents=["two", "word " * 1000], score_type="bi-encoder")
    with pytest.raises(InputTooLong) as caught:
        llm.engine.score_sync(request)

    assert caught.value.index == 1


# invalid and ignored parameters


@pytest.mark.parametrize("limit", ["3", 1.5, True, [3]])
def test_a_limit_that_is_not_an_integer_is_refused(llm: LLM, limit: Any) -> None:
    with pytest.raises(BadRequest, match="max_tokens_per_doc must be a non-negative integer") as caught:
        llm.score(QUERY, DOCUMENTS, pooling_params=make_params(max_tokens_per_doc=limit))
    assert caught.value.param == "max_tokens_per_doc"


def test_template_kwargs_that_are_not_a_mapping_are_refused(llm: LLM) -> None:
    with pytest.raises(BadRequest, match="chat_template_kwargs must be a mapping"):
        llm.score(QUERY, DOCUMENTS, pooling_params=make_params(chat_template_kwargs="word"))


def test_an_unknown_extra_kwarg_is_logged_with_the_known_ones(llm: LLM, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cenote"):
        llm.score(QUERY, DOCUMENTS, pooling_params=make_params(max_tokens_per_document=3))
    assert "score ignores 'max_tokens_per_document'" in caplog.text
    assert "max_tokens_per_query, max_tokens_per_doc" in caplog.text


def test_an_instruction_ignored_by_an_embedding_model_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_bert(tmp_path)

    with caplog.at_level(logging.WARNING, "cenote"), LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        plain = scores(llm.score(QUERY, DOCUMENTS))
        assert "are ignored" not in caplog.text
        assert scores(llm.score(QUERY, DOCUMENTS, instruction="find cells")) == plain
        assert scores(llm.score(QUERY, DOCUMENTS, chat_template="{{ messages }}")) == plain
        assert caplog.text.count("are ignored for score type bi-encoder") == 1
        llm.score(QUERY, DOCUMENTS, instruction="find cells", score_type="late-interaction")
        assert caplog.text.count("are ignored for score type late-interaction") == 1


def test_an_instruction_to_a_cross_encoder_logs_no_warning(
    cross: CrossEncoder, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "cenote"):
        cross.llm.score(QUERY, DOCUMENTS, instruction="find cells")
    assert "are ignored" not in caplog.text
