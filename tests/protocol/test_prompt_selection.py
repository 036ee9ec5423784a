"""Selection of a model's prompts and adapters by name, input type, role and task, and the default prompt."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch import Tensor
from torch.testing import assert_close

from cenote import LLM, BadRequest, LoadError
from cenote.protocol.model_info import ModelInfo
from cenote.protocol.prompt_selection import PromptSelection, select_prompt
from cenote.protocol.requests import PoolRequest
from tests.models.adapters import QWEN_TARGETS, save_adapter
from tests.models.rotary_encoders import save_adapted
from tests.tiny import TEXTS, change_config, save_tiny, tiny_bert, tiny_qwen3, tiny_splade

INSTRUCTIONS = {
    "retrieval.query": "search query: ",
    "retrieval.passage": "passage: ",
    "separation": "",
    "classification": "",
    "text-matching": "",
}


def open_llm(folder: Path, **options: Any) -> LLM:
    return LLM(str(folder), dtype="float32", device="cpu", **options)


def embed_texts(llm: LLM, texts: Any = TEXTS, **kwargs: Any) -> Tensor:
    return torch.stack([output.outputs.data for output in llm.embed(texts, use_tqdm=False, **kwargs)])


def write_prompts(folder: Path, prompts: dict[str, str], default: str | None = None) -> None:
    settings = {"prompts": prompts, "default_prompt_name": default}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))


# parity with Sentence Transformers


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
def test_prompts_are_selected_as_in_sentence_transformers(
    tmp_path: Path, prompts: dict[str, str], default: str | None, include_prompt: bool
) -> None:
    save_tiny(tmp_path, "BertModel")
    modules = [Transformer(str(tmp_path)), Pooling(32, "mean", include_prompt=include_prompt)]
    theirs = SentenceTransformer(modules=modules, prompts=prompts, default_prompt_name=default, device="cpu")
    theirs.save(str(tmp_path / "model"), create_model_card=False)
    options: dict[str, Any] = {"convert_to_tensor": True, "show_progress_bar": False}

    with open_llm(tmp_path / "model") as llm:
        for ours, expected in (
            (embed_texts(llm), theirs.encode(TEXTS, **options)),
            (embed_texts(llm, prompt=""), theirs.encode(TEXTS, prompt="", **options)),
            (embed_texts(llm, prompt="the book "), theirs.encode(TEXTS, prompt="the book ", **options)),
            (
                embed_texts(llm, prompt="the book ", prompt_name="query"),
                theirs.encode(TEXTS, prompt="the book ", **options),
            ),
            (embed_texts(llm, prompt_name="query"), theirs.encode(TEXTS, prompt_name="query", **options)),
            (embed_texts(llm, input_type="query"), theirs.encode_query(TEXTS, **options)),
            (embed_texts(llm, input_type="document"), theirs.encode_document(TEXTS, **options)),
            (embed_texts(llm, input_type="query", prompt=""), theirs.encode_query(TEXTS, prompt="", **options)),
        ):
            assert_close(ours, expected, atol=1e-5, rtol=1e-5)
        rows = llm.encode(TEXTS, pooling_task="token_embed", use_tqdm=False)
        for output, expected in zip(
            rows, theirs.encode(TEXTS, output_value="token_embeddings", **options), strict=True
        ):
            assert_close(output.outputs.data, expected[: len(output.outputs.data)], atol=1e-5, rtol=1e-5)


def test_the_default_prompt_applies_to_embedded_texts_only(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    write_prompts(tmp_path, {"query": "search query: ", "document": "passage: "}, "document")

    with open_llm(tmp_path) as llm:
        (plain,) = llm.embed("the cat", prompt="", use_tqdm=False)
        (prompted,) = llm.embed("the cat", use_tqdm=False)
        (by_ids,) = llm.embed(list(plain.prompt_token_ids), use_tqdm=False)
        (score,) = llm.score("the cat", "a red bird", use_tqdm=False)
        (tokenwise,) = llm.score("the cat", "a red bird", score_type="late-interaction", use_tqdm=False)
        one, other = embed_texts(llm, ["the cat", "a red bird"], prompt="")
        (query,), (document,) = (
            llm.encode(text, pooling_task="token_embed", prompt="", use_tqdm=False)
            for text in ("the cat", "a red bird")
        )

    assert len(prompted.prompt_token_ids) == len(plain.prompt_token_ids) + 2
    assert by_ids.prompt_token_ids == plain.prompt_token_ids
    assert score.outputs.score == pytest.approx(float(torch.nn.functional.cosine_similarity(one, other, dim=0)))
    best = (query.outputs.data @ document.outputs.data.T).amax(dim=-1).sum()
    assert tokenwise.outputs.score == pytest.approx(float(best), abs=1e-4)


def test_sparse_embeddings_use_the_default_prompt_too(tmp_path: Path) -> None:
    tiny_splade(tmp_path)
    write_prompts(tmp_path, {"query": "search query: ", "document": "passage: "}, "query")

    with open_llm(tmp_path) as llm:
        (default,) = llm.sparse_embed("the cat", use_tqdm=False)
        (document,) = llm.sparse_embed("the cat", input_type="search_document", use_tqdm=False)
        (query,) = llm.sparse_embed("search query: the cat", prompt="", use_tqdm=False)
        (passage,) = llm.sparse_embed("passage: the cat", prompt="", use_tqdm=False)

    assert default.outputs.weights == query.outputs.weights != document.outputs.weights
    assert document.outputs.weights == passage.outputs.weights


def test_options_set_the_default_prompt(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    write_prompts(tmp_path, {"query": "search query: ", "document": "passage: "}, "document")
    with open_llm(tmp_path) as llm:
        plain, query = embed_texts(llm, prompt=""), embed_texts(llm, prompt_name="query")

    with open_llm(tmp_path, default_prompt_name="query") as llm:
        assert_close(embed_texts(llm), query)
    with open_llm(tmp_path, default_prompt="search query: ") as llm:
        assert_close(embed_texts(llm), query)
    with open_llm(tmp_path, default_prompt="") as llm:
        assert_close(embed_texts(llm), plain)
    with pytest.raises(LoadError, match="unknown default_prompt_name 'title'; available: document, query"):
        open_llm(tmp_path, default_prompt_name="title")
    write_prompts(tmp_path, {}, "title")
    with pytest.raises(LoadError, match="unknown default_prompt_name 'title'; available: none"):
        open_llm(tmp_path)
    change_config(tmp_path, task_instructions=["retrieval"])
    with pytest.raises(LoadError, match="task_instructions is .*; expected a mapping of names to strings"):
        open_llm(tmp_path)


# selection


@pytest.fixture(scope="module")
def model_info(llm: LLM) -> ModelInfo:
    """A model without prompts and adapters."""
    return llm.engine.model_info


def select_for(model_info: ModelInfo, **request_kwargs: Any) -> PromptSelection:
    return select_prompt(PoolRequest(task="embed", inputs=["a"], **request_kwargs), model_info)


@pytest.mark.parametrize(
    ("names", "word", "expected"),
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
@pytest.mark.parametrize("field", ["input_type", "embedding_task"])
def test_a_synonym_selects_the_matching_prompt(
    model_info: ModelInfo, names: tuple[str, ...], word: str, expected: str | None, field: str
) -> None:
    model = replace(model_info, prompts={name: f"{name}: " for name in names})

    if field == "embedding_task" and expected is None:
        with pytest.raises(BadRequest, match=f"unknown task '{word}'; available: document, query"):
            select_for(model, embedding_task=word)
    else:
        assert select_for(model, **{field: word}).prompt == (expected and f"{expected}: ")


@pytest.mark.parametrize("word", ["query", "document", "passage", "search_query", "search_document", "retrieval.query"])
def test_a_role_without_prompts_in_the_model_adds_no_prompt(model_info: ModelInfo, word: str) -> None:
    for field in ("input_type", "embedding_task"):
        assert select_for(model_info, **{field: word}).prompt == ""


@pytest.mark.parametrize(
    ("word", "role"),
    [
        ("text-matching", None),
        ("classification", None),
        ("separation", None),
        ("clustering", None),
        ("retrieval", None),
        *[
            (f"{task}.{word}", role)
            for task in ("code", "nl2code", "qa", "code2code", "code2nl", "code2completion")
            for word, role in (("query", "query"), ("passage", "document"))
        ],
    ],
)
def test_tasks_of_jina_are_ignored_by_models_without_adapters_and_prompts(
    model_info: ModelInfo, word: str, role: str | None
) -> None:
    assert select_for(model_info, embedding_task=word) == PromptSelection(None if role is None else "", None, role)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match=f"unknown task '{word}'; available: song"):
        select_for(replace(model_info, adapters=("song",)), embedding_task=word)


def test_tasks_of_jinas_code_models_select_their_prompts(model_info: ModelInfo) -> None:
    model = replace(model_info, prompts={"nl2code_query": "code for: ", "nl2code_document": "code: "})

    assert select_for(model, embedding_task="nl2code.query").prompt == "code for: "
    assert select_for(model, embedding_task="nl2code.passage").prompt == "code: "
    with pytest.raises(BadRequest, match="unknown task 'qa.passage'; available: nl2code_document, nl2code_query"):
        select_for(model, embedding_task="qa.passage")


def test_a_role_without_a_prompt_gets_none_and_other_input_types_keep_the_default(model_info: ModelInfo) -> None:
    model = replace(model_info, prompts={"query": "q: "}, default_prompt="q: ")

    assert select_for(model).prompt == "q: "
    assert select_for(model, input_type="document").prompt == ""
    assert select_for(model, input_type="classification").prompt == "q: "
    assert select_for(model, role="document").prompt == ""
    assert select_prompt(PoolRequest(task="classify", inputs=["a"]), model).prompt is None
    assert (
        select_prompt(PoolRequest(task="token_classify", inputs=["a"], extra_tasks=("embed",)), model).prompt == "q: "
    )


def test_a_model_with_role_formats_gets_no_selected_prompt(model_info: ModelInfo) -> None:
    model = replace(model_info, prompts={"query": "q: "}, default_prompt="q: ", has_role_formats=True)

    assert select_for(model, input_type="search_query") == PromptSelection(None, None, "query")
    assert select_for(model, input_type="passage") == PromptSelection(None, None, "document")
    assert select_for(model, role="query") == PromptSelection(None, None, "query")
    assert select_for(model) == PromptSelection()
    assert select_for(model, input_type="passage", prompt_name="query").prompt == "q: "
    with pytest.raises(BadRequest, match="Unsupported input_type 'song'"):
        select_for(model, input_type="song")


def test_the_more_specific_field_takes_precedence(model_info: ModelInfo) -> None:
    model = replace(model_info, prompts={"query": "q: ", "document": "d: ", "song": "s: "}, default_prompt="d: ")

    assert (
        select_for(model, prompt="p: ", prompt_name="song", embedding_task="query", input_type="document").prompt
        == "p: "
    )
    assert select_for(model, prompt_name="song", embedding_task="query", input_type="document").prompt == "s: "
    assert select_for(model, embedding_task="query", input_type="document").prompt == "q: "
    with pytest.raises(BadRequest, match="conflicting role='query' and input_type='document'"):
        select_for(model, role="query", input_type="document")


def test_unknown_names_are_refused_with_the_known_names(model_info: ModelInfo) -> None:
    model = replace(
        model_info, prompts={"song": "s: "}, adapters=("rhyme", "added"), external_adapters={"added": "/there"}
    )

    for kwargs, message in (
        ({"input_type": "rhymes"}, r"Unsupported input_type 'rhymes'\. Supported values: song"),
        ({"embedding_task": "rhymes"}, "unknown task 'rhymes'; available: added, rhyme, song"),
        ({"prompt_name": "rhymes"}, "unknown prompt_name 'rhymes'; available: song"),
    ):
        with pytest.raises(BadRequest, match=message):
            select_for(model, **kwargs)
    with pytest.raises(BadRequest, match="unknown task 'rhymes'; available: none"):
        select_for(model_info, embedding_task="rhymes")


def test_an_external_adapter_is_selected_only_by_its_exact_name(model_info: ModelInfo) -> None:
    model = replace(model_info, adapters=("separation", "query"), external_adapters={"query": "/there"})

    assert select_for(model, input_type="clustering").adapter == "separation"
    assert select_for(model, input_type="query").adapter is None
    assert select_for(model, embedding_task="query").adapter == "query"


# models with an adapter for each task


def write_modules(folder: Path, *, has_pooling: bool) -> None:
    """Write modules.json as Jina publishes it: a custom Transformer module, whose adapter is selected by the task."""
    modules = [{"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer", "kwargs": ["task"]}]
    if has_pooling:
        for index, name in enumerate(("Pooling", "Normalize"), start=1):
            path = f"{index}_{name}"
            modules.append({"idx": index, "name": name, "path": path, "type": f"sentence_transformers.models.{name}"})
            (folder / path).mkdir()
        pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize("file", ["config.json", "config_sentence_transformers.json", "both"])
def test_a_task_of_jina_v3_has_its_adapter_and_its_instruction(tmp_path: Path, file: str) -> None:
    save_adapted(tmp_path)
    write_modules(tmp_path, has_pooling=True)
    if file != "config_sentence_transformers.json":
        change_config(tmp_path, task_instructions=INSTRUCTIONS)
    if file != "config.json":
        write_prompts(tmp_path, INSTRUCTIONS)

    with open_llm(tmp_path) as llm:
        for task, prompt in INSTRUCTIONS.items():
            expected = embed_texts(llm, [prompt + text for text in TEXTS], lora_request=task, prompt="")
            assert_close(embed_texts(llm, task=task), expected)
        for word, task in (("query", "retrieval.query"), ("search_document", "retrieval.passage")):
            assert_close(embed_texts(llm, input_type=word), embed_texts(llm, task=task))
        assert_close(embed_texts(llm, input_type="clustering"), embed_texts(llm, task="separation"))
        assert_close(embed_texts(llm), embed_texts(llm, task="text-matching"))
        assert_close(embed_texts(llm, task="classification", prompt_name="retrieval.query"),
                     embed_texts(llm, lora_request="classification", prompt="search query: "))  # fmt: skip
        assert_close(embed_texts(llm, task="retrieval.query", lora_request="separation"),
                     embed_texts(llm, lora_request="separation", prompt="search query: "))  # fmt: skip
        assert (embed_texts(llm, task="separation") - embed_texts(llm, task="classification")).abs().max() > 0.01
        known = ", ".join(sorted(INSTRUCTIONS))
        with pytest.raises(BadRequest, match=f"unknown task 'code'; available: {known}"):
            embed_texts(llm, task="code")
        score = llm.score(TEXTS[0], TEXTS[2], score_type="late-interaction", use_tqdm=False)[0].outputs.score
        rows = [llm.encode(TEXTS[index], pooling_task="token_embed", use_tqdm=False) for index in (0, 2)]
        query, document = (outputs[0].outputs.data for outputs in rows)
    assert score == pytest.approx(float((query @ document.T).amax(dim=-1).sum()), abs=1e-4)

    with open_llm(tmp_path, hf_overrides={"jina_task": "separation"}) as llm:
        assert_close(embed_texts(llm), embed_texts(llm, task="separation"))
    with open_llm(tmp_path, default_adapter="classification") as llm:
        assert_close(embed_texts(llm), embed_texts(llm, task="classification"))
    with pytest.raises(LoadError, match="has no adapter 'song'; available: retrieval.query"):
        open_llm(tmp_path, default_adapter="song")


def test_a_task_of_jina_v5_has_query_and_document_prompts_and_defaults_to_documents(tmp_path: Path) -> None:
    plain = tiny_qwen3(tmp_path)
    change_config(tmp_path, architectures=["JinaEmbeddingsV5Model"])
    for seed, task in enumerate(("retrieval", "text-matching", "classification", "clustering")):
        save_adapter(tmp_path / "adapters" / task, plain, QWEN_TARGETS, seed=seed)
    write_modules(tmp_path, has_pooling=False)
    write_prompts(tmp_path, {"query": "search query: ", "document": "passage: "}, "document")

    with open_llm(tmp_path) as llm:
        for kwargs, adapter, prompt in (
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
            expected = embed_texts(llm, [prompt + text for text in TEXTS], lora_request=adapter, prompt="")
            assert_close(embed_texts(llm, **kwargs), expected)


def test_a_model_without_adapters_has_none_by_default(tmp_path: Path) -> None:
    tiny_bert(tmp_path)

    with pytest.raises(LoadError, match="default_adapter 'tuned': .* has no adapters"):
        open_llm(tmp_path, default_adapter="tuned")


def test_an_ignored_input_type_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny_bert(tmp_path)

    with caplog.at_level(logging.INFO, "cenote"), open_llm(tmp_path) as llm:
        plain = embed_texts(llm)
        assert "is ignored" not in caplog.text
        assert_close(embed_texts(llm, task="retrieval.query"), plain)
        assert_close(embed_texts(llm, input_type="search_query"), plain)
        assert caplog.text.count("input type query is ignored") == 1


def test_an_input_type_without_a_prompt_is_not_logged_where_the_model_has_prompts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny_bert(tmp_path)
    write_prompts(tmp_path, {"query": "search query: "})

    with caplog.at_level(logging.INFO, "cenote"), open_llm(tmp_path) as llm:
        embed_texts(llm, task="document")
        assert "is ignored" not in caplog.text
