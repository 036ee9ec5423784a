"""Prompts of a model's own files: by name, by what texts are, by task, and the one that comes by default."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor
from torch.testing import assert_close

from cenote import LLM, BadRequest, LoadError
from cenote.protocol.prompt_selection import Meaning, meaning
from cenote.protocol.requests import About, PoolRequest
from tests.models.test_lora import QWEN_TARGETS, save_adapter
from tests.models.test_rotary_encoders import save_adapted
from tests.tiny import TEXTS, change_config, save_tiny, tiny_bert, tiny_qwen3, tiny_splade

INSTRUCTIONS = {
    "retrieval.query": "search query: ",
    "retrieval.passage": "passage: ",
    "separation": "",
    "classification": "",
    "text-matching": "",
}


def opened(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), dtype="float32", device="cpu", **options)


def embedded(llm: LLM, texts: Any = TEXTS, **how: Any) -> Tensor:
    return torch.stack([output.outputs.data for output in llm.embed(texts, use_tqdm=False, **how)])


def write_prompts(folder: Path, prompts: dict[str, str], default: str | None = None) -> None:
    settings = {"prompts": prompts, "default_prompt_name": default}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))


# as Sentence Transformers does it


@pytest.mark.parametrize("include_prompt", [True, False])
@pytest.mark.parametrize(
    ("prompts", "default"),
    [
        ({"query": "search query: ", "document": "passage: "}, "document"),
        ({"query": "search query: "}, "query"),
        ({"query": "search query: ", "song": "song of "}, "song"),
        ({"query": "search query: "}, "document"),
        ({"document": "passage: "}, None),
        ({}, None),
    ],
)
def test_prompts_are_chosen_as_sentence_transformers_chooses_them(
    tmp_path: Path, prompts: dict[str, str], default: str | None, include_prompt: bool
) -> None:
    save_tiny(tmp_path, "BertModel")
    modules = [Transformer(str(tmp_path)), Pooling(32, "mean", include_prompt=include_prompt)]
    theirs = SentenceTransformer(modules=modules, prompts=prompts, default_prompt_name=default, device="cpu")
    theirs.save(str(tmp_path / "whole"), create_model_card=False)
    how: dict[str, Any] = {"convert_to_tensor": True, "show_progress_bar": False}

    with opened(tmp_path / "whole") as llm:
        for ours, expected in (
            (embedded(llm), theirs.encode(TEXTS, **how)),
            (embedded(llm, prompt=""), theirs.encode(TEXTS, prompt="", **how)),
            (embedded(llm, prompt="the book "), theirs.encode(TEXTS, prompt="the book ", **how)),
            (embedded(llm, prompt="the book ", prompt_name="query"), theirs.encode(TEXTS, prompt="the book ", **how)),
            (embedded(llm, prompt_name="query"), theirs.encode(TEXTS, prompt_name="query", **how)),
            (embedded(llm, input_type="query"), theirs.encode_query(TEXTS, **how)),
            (embedded(llm, input_type="document"), theirs.encode_document(TEXTS, **how)),
            (embedded(llm, input_type="query", prompt=""), theirs.encode_query(TEXTS, prompt="", **how)),
        ):
            assert_close(ours, expected, atol=1e-5, rtol=1e-5)
        rows = llm.encode(TEXTS, pooling_task="token_embed", use_tqdm=False)
        for output, expected in zip(rows, theirs.encode(TEXTS, output_value="token_embeddings", **how), strict=True):
            assert_close(output.outputs.data, expected[: len(output.outputs.data)], atol=1e-5, rtol=1e-5)


def test_a_default_prompt_is_for_texts_that_are_embedded_and_for_nothing_else(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    write_prompts(tmp_path, {"query": "search query: ", "document": "passage: "}, "document")

    with opened(tmp_path) as llm:
        (plain,) = llm.embed("the cat", prompt="", use_tqdm=False)
        (prompted,) = llm.embed("the cat", use_tqdm=False)
        (by_ids,) = llm.embed(list(plain.prompt_token_ids), use_tqdm=False)
        (score,) = llm.score("the cat", "a red bird", use_tqdm=False)
        (tokenwise,) = llm.score("the cat", "a red bird", score_type="late-interaction", use_tqdm=False)
        one, other = embedded(llm, ["the cat", "a red bird"], prompt="")
        (query,), (document,) = (
            llm.encode(text, pooling_task="token_embed", prompt="", use_tqdm=False)
            for text in ("the cat", "a red bird")
        )

    assert len(prompted.prompt_token_ids) == len(plain.prompt_token_ids) + 2
    assert by_ids.prompt_token_ids == plain.prompt_token_ids
    assert score.outputs.score == pytest.approx(float(torch.nn.functional.cosine_similarity(one, other, dim=0)))
    best = (query.outputs.data @ document.outputs.data.T).amax(dim=-1).sum()
    assert tokenwise.outputs.score == pytest.approx(float(best), abs=1e-4)


def test_words_that_matter_are_found_with_the_default_prompt_too(tmp_path: Path) -> None:
    tiny_splade(tmp_path)
    write_prompts(tmp_path, {"query": "search query: ", "document": "passage: "}, "query")

    with opened(tmp_path) as llm:
        (default,) = llm.sparse_embed("the cat", use_tqdm=False)
        (document,) = llm.sparse_embed("the cat", input_type="search_document", use_tqdm=False)
        (query,) = llm.sparse_embed("search query: the cat", prompt="", use_tqdm=False)
        (passage,) = llm.sparse_embed("passage: the cat", prompt="", use_tqdm=False)

    assert default.outputs.weights == query.outputs.weights != document.outputs.weights
    assert document.outputs.weights == passage.outputs.weights


def test_options_say_what_comes_by_default(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    write_prompts(tmp_path, {"query": "search query: ", "document": "passage: "}, "document")
    with opened(tmp_path) as llm:
        plain, query = embedded(llm, prompt=""), embedded(llm, prompt_name="query")

    with opened(tmp_path, default_prompt_name="query") as llm:
        assert_close(embedded(llm), query)
    with opened(tmp_path, default_prompt="search query: ") as llm:
        assert_close(embedded(llm), query)
    with opened(tmp_path, default_prompt="") as llm:
        assert_close(embedded(llm), plain)
    with pytest.raises(LoadError, match="default_prompt_name 'title' is no prompt; there are: document, query"):
        opened(tmp_path, default_prompt_name="title")
    write_prompts(tmp_path, {}, "title")
    with pytest.raises(LoadError, match="default_prompt_name 'title' is no prompt; there are: none"):
        opened(tmp_path)
    change_config(tmp_path, task_instructions=["retrieval"])
    with pytest.raises(LoadError, match="task_instructions is .*, not texts by name"):
        opened(tmp_path)


# which prompt is meant


@pytest.fixture(scope="module")
def about(llm: LLM) -> About:
    """A model without a prompt or an adapter."""
    return llm.engine.about


def asked(about: About, **words: Any) -> Meaning:
    return meaning(PoolRequest(task="embed", inputs=["a"], **words), about)


@pytest.mark.parametrize(
    ("names", "word", "chosen"),
    [
        (("query", "document"), "search_query", "query"),
        (("query", "document"), "search_document", "document"),
        (("query", "document"), "passage", "document"),
        (("search_query", "search_document"), "query", "search_query"),
        (("search_query", "search_document"), "document", "search_document"),
        (("query", "passage"), "document", "passage"),
        (("s2p_query", "s2s_query"), "query", "s2p_query"),
        (("s2p_query", "s2s_query"), "s2s_query", "s2s_query"),
        (("web_search_query", "sts_query"), "query", "web_search_query"),
        (("Retrieval-query", "Retrieval-document"), "query", "Retrieval-query"),
        (("query", "Retrieval-query", "STS"), "Retrieval-query", "Retrieval-query"),
        (("query", "Retrieval-query", "STS"), "RETRIEVAL_QUERY", "Retrieval-query"),
        (("query", "Clustering", "STS"), "clustering", "Clustering"),
        (("query", "Clustering", "STS"), "SEMANTIC_SIMILARITY", "STS"),
        (("query", "Clustering", "STS"), "text-matching", "STS"),
        (("nl2code_query", "nl2code_document"), "nl2code.query", "nl2code_query"),
        (("query", "document"), "clustering", None),
        (("query", "document"), "image", None),
    ],
)
@pytest.mark.parametrize("field", ["input_type", "purpose"])
def test_a_word_finds_the_prompt_that_means_the_same(
    about: About, names: tuple[str, ...], word: str, chosen: str | None, field: str
) -> None:
    model = replace(about, prompts={name: f"{name}: " for name in names})

    if field == "purpose" and chosen is None:
        with pytest.raises(BadRequest, match=f"no task is called '{word}'; this model has: document, query"):
            asked(model, purpose=word)
    else:
        assert asked(model, **{field: word}).prompt == (chosen and f"{chosen}: ")


@pytest.mark.parametrize("word", ["query", "document", "passage", "search_query", "search_document", "retrieval.query"])
def test_a_role_of_which_the_model_says_nothing_changes_nothing(about: About, word: str) -> None:
    for field in ("input_type", "purpose"):
        assert asked(about, **{field: word}).prompt == ""


def test_a_role_without_a_prompt_has_none_and_other_words_leave_the_default(about: About) -> None:
    model = replace(about, prompts={"query": "q: "}, default_prompt="q: ")

    assert asked(model).prompt == "q: "
    assert asked(model, input_type="document").prompt == ""
    assert asked(model, input_type="classification").prompt == "q: "
    assert asked(model, role="document").prompt == ""
    assert meaning(PoolRequest(task="classify", inputs=["a"]), model).prompt is None
    assert meaning(PoolRequest(task="token_classify", inputs=["a"], also=("embed",)), model).prompt == "q: "


def test_a_model_that_marks_roles_puts_its_prompts_there_itself(about: About) -> None:
    model = replace(about, prompts={"query": "q: "}, default_prompt="q: ", marks_roles=True)

    assert asked(model, input_type="search_query") == Meaning(None, None, "query")
    assert asked(model, input_type="passage") == Meaning(None, None, "document")
    assert asked(model, role="query") == Meaning(None, None, "query")
    assert asked(model) == Meaning()
    assert asked(model, input_type="passage", prompt_name="query").prompt == "q: "
    with pytest.raises(BadRequest, match="Unsupported input_type 'song'"):
        asked(model, input_type="song")


def test_the_more_exact_word_wins(about: About) -> None:
    model = replace(about, prompts={"query": "q: ", "document": "d: ", "song": "s: "}, default_prompt="d: ")

    assert asked(model, prompt="p: ", prompt_name="song", purpose="query", input_type="document").prompt == "p: "
    assert asked(model, prompt_name="song", purpose="query", input_type="document").prompt == "s: "
    assert asked(model, purpose="query", input_type="document").prompt == "q: "
    with pytest.raises(BadRequest, match="got role='query' and input_type='document'; give one"):
        asked(model, role="query", input_type="document")


def test_unknown_words_are_refused_with_those_there_are(about: About) -> None:
    model = replace(about, prompts={"song": "s: "}, adapters=("rhyme", "added"), added_adapters={"added": "/there"})

    for words, message in (
        ({"input_type": "rhymes"}, r"Unsupported input_type 'rhymes'\. Supported values: song"),
        ({"purpose": "rhymes"}, "no task is called 'rhymes'; this model has: added, rhyme, song"),
        ({"prompt_name": "rhymes"}, "no prompt is called 'rhymes'; this model has: song"),
    ):
        with pytest.raises(BadRequest, match=message):
            asked(model, **words)
    with pytest.raises(BadRequest, match="no task is called 'rhymes'; this model has none; leave it out"):
        asked(about, purpose="rhymes")


def test_an_adapter_that_was_added_is_chosen_by_its_own_name_only(about: About) -> None:
    model = replace(about, adapters=("separation", "query"), added_adapters={"query": "/there"})

    assert asked(model, input_type="clustering").adapter == "separation"
    assert asked(model, input_type="query").adapter is None
    assert asked(model, purpose="query").adapter == "query"


# models with an adapter for each task


def name_modules(folder: Path, *, pooled: bool) -> None:
    """modules.json as Jina publishes it: a Transformer of its own, whose adapter is chosen by the task."""
    modules = [{"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer", "kwargs": ["task"]}]
    if pooled:
        for place, kind in enumerate(("Pooling", "Normalize"), start=1):
            path = f"{place}_{kind}"
            modules.append({"idx": place, "name": kind, "path": path, "type": f"sentence_transformers.models.{kind}"})
            (folder / path).mkdir()
        pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize("place", ["config.json", "config_sentence_transformers.json", "both"])
def test_a_task_of_jina_v3_has_its_adapter_and_its_instruction(tmp_path: Path, place: str) -> None:
    save_adapted(tmp_path)
    name_modules(tmp_path, pooled=True)
    if place != "config_sentence_transformers.json":
        change_config(tmp_path, task_instructions=INSTRUCTIONS)
    if place != "config.json":
        write_prompts(tmp_path, INSTRUCTIONS)

    with opened(tmp_path) as llm:
        for task, prompt in INSTRUCTIONS.items():
            expected = embedded(llm, [prompt + text for text in TEXTS], lora_request=task, prompt="")
            assert_close(embedded(llm, task=task), expected)
        for word, task in (("query", "retrieval.query"), ("search_document", "retrieval.passage")):
            assert_close(embedded(llm, input_type=word), embedded(llm, task=task))
        assert_close(embedded(llm, input_type="clustering"), embedded(llm, task="separation"))
        assert_close(embedded(llm), embedded(llm, task="text-matching"))
        assert_close(embedded(llm, task="classification", prompt_name="retrieval.query"),
                     embedded(llm, lora_request="classification", prompt="search query: "))  # fmt: skip
        assert_close(embedded(llm, task="retrieval.query", lora_request="separation"),
                     embedded(llm, lora_request="separation", prompt="search query: "))  # fmt: skip
        assert (embedded(llm, task="separation") - embedded(llm, task="classification")).abs().max() > 0.01
        known = ", ".join(sorted(INSTRUCTIONS))
        with pytest.raises(BadRequest, match=f"no task is called 'code'; this model has: {known}"):
            embedded(llm, task="code")
        apart = llm.score(TEXTS[0], TEXTS[2], score_type="late-interaction", use_tqdm=False)[0].outputs.score
        rows = [llm.encode(TEXTS[place], pooling_task="token_embed", use_tqdm=False) for place in (0, 2)]
        query, document = (outputs[0].outputs.data for outputs in rows)
    assert apart == pytest.approx(float((query @ document.T).amax(dim=-1).sum()), abs=1e-4)

    with opened(tmp_path, hf_overrides={"jina_task": "separation"}) as llm:
        assert_close(embedded(llm), embedded(llm, task="separation"))
    with opened(tmp_path, default_adapter="classification") as llm:
        assert_close(embedded(llm), embedded(llm, task="classification"))
    with pytest.raises(LoadError, match="has no adapter 'song'; there are: retrieval.query"):
        opened(tmp_path, default_adapter="song")


def test_a_task_of_jina_v5_has_two_sides_and_documents_by_default(tmp_path: Path) -> None:
    plain = tiny_qwen3(tmp_path)
    change_config(tmp_path, architectures=["JinaEmbeddingsV5Model"])
    for seed, task in enumerate(("retrieval", "text-matching", "classification", "clustering")):
        save_adapter(tmp_path / "adapters" / task, plain, QWEN_TARGETS, seed=seed)
    name_modules(tmp_path, pooled=False)
    write_prompts(tmp_path, {"query": "search query: ", "document": "passage: "}, "document")

    with opened(tmp_path) as llm:
        for how, adapter, prompt in (
            ({}, "retrieval", "passage: "),
            ({"task": "retrieval"}, "retrieval", "passage: "),
            ({"task": "retrieval.query"}, "retrieval", "search query: "),
            ({"task": "retrieval.passage"}, "retrieval", "passage: "),
            ({"task": "retrieval", "input_type": "query"}, "retrieval", "search query: "),
            ({"task": "retrieval", "prompt_name": "query"}, "retrieval", "search query: "),
            ({"input_type": "query"}, "retrieval", "search query: "),
            ({"task": "classification"}, "classification", "passage: "),
            ({"input_type": "clustering"}, "clustering", "passage: "),
            ({"task": "text-matching", "prompt": ""}, "text-matching", ""),
        ):
            expected = embedded(llm, [prompt + text for text in TEXTS], lora_request=adapter, prompt="")
            assert_close(embedded(llm, **how), expected)


def test_a_model_without_adapters_has_none_by_default(tmp_path: Path) -> None:
    tiny_bert(tmp_path)

    with pytest.raises(LoadError, match="default_adapter 'tuned': .* has no adapters"):
        opened(tmp_path, default_adapter="tuned")


def test_a_word_that_changes_nothing_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_bert(tmp_path)

    with caplog.at_level(logging.INFO, "cenote"), opened(tmp_path) as llm:
        plain = embedded(llm)
        assert "changes nothing" not in caplog.text
        assert_close(embedded(llm, task="retrieval.query"), plain)
        assert_close(embedded(llm, input_type="search_query"), plain)
        assert caplog.text.count("what texts are for (query) changes nothing") == 1


def test_a_word_for_which_the_model_has_nothing_among_what_it_has_is_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_bert(tmp_path)
    write_prompts(tmp_path, {"query": "search query: "})

    with caplog.at_level(logging.INFO, "cenote"), opened(tmp_path) as llm:
        embedded(llm, task="document")
        assert "changes nothing" not in caplog.text
