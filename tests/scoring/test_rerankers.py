"""Rerankers that are causal language models, tiny and random: prompts, scores and truncation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from sentence_transformers import CrossEncoder
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from cenote import LLM, InputTooLong, PoolingParams
from cenote.cli.model_settings import iter_settings
from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.inputs.pairs import render_pair
from cenote.loading.describe import describe_model
from cenote.loading.rerankers import load_builtin_template
from cenote.protocol.input_types import TextPair
from tests.api.app_client import add_chat_template, load_llm, make_client
from tests.factories import LLMFactory
from tests.layouts.builders.models_2026 import save_ctxl
from tests.real.conftest import shared_folder
from tests.scoring.rerankers import (
    DOCUMENTS,
    QUERY,
    RERANKER_KINDS,
    RerankerKind,
    count_limited_tokens,
    mxbai,
    qwen3,
    reference_scores,
    save_reranker,
)
from tests.tiny import change_config, save_tiny

TASK = "find the old book"
TAIL = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"


def ctxl(query: str, document: str, instruction: str | None = None) -> str:
    return (
        "Check whether a given document contains information helpful to answer the query.\n"
        f"<Document> {document}\n<Query> {query}{f' {instruction}' if instruction else ''} ??"
    )


def nemotron(query: str, document: str, instruction: str | None = None) -> str:
    return f"question:{query} \n \n passage:{document}"


def scores(llm: LLM, **options: Any) -> list[float]:
    return [output.outputs.score for output in llm.score(QUERY, DOCUMENTS, use_tqdm=False, **options)]


# prompts of known rerankers


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", RERANKER_KINDS)
def test_a_reranker_known_by_name_or_overrides_scores_as_the_language_model(
    name: str, tied: bool, tmp_path: Path
) -> None:
    kind, folder = RERANKER_KINDS[name], tmp_path / name
    reference = save_reranker(folder, kind.model, tie_word_embeddings=tied)
    expected = reference_scores(reference, folder, kind)

    with load_llm(folder) as llm:
        plain = scores(llm)
    with load_llm(folder.rename(tmp_path / "mine"), hf_overrides=kind.overrides) as llm:
        overridden = scores(llm)

    assert plain == pytest.approx(expected, abs=1e-4)
    assert overridden == pytest.approx(expected, abs=1e-4)
    assert max(expected) - min(expected) > 1e-3


def test_without_a_template_the_document_follows_the_query(tmp_path: Path) -> None:
    kind = RERANKER_KINDS["Qwen3-Reranker-0.6B"]
    reference = save_reranker(tmp_path, kind.model)
    bare = RerankerKind(kind.model, lambda query, document, instruction: query + document, kind.tokens, {})

    with load_llm(tmp_path, hf_overrides=kind.overrides, score_template="none") as llm:
        assert scores(llm) == pytest.approx(reference_scores(reference, tmp_path, bare), abs=1e-4)


@pytest.mark.parametrize(
    ("model", "name", "prompt"),
    [
        ("Qwen3ForSequenceClassification", "Qwen3-Reranker-0.6B-seq-cls", qwen3),
        ("Qwen2ForSequenceClassification", "mxbai-rerank-large-v2-seq", mxbai),
    ],
)
def test_a_converted_checkpoint_keeps_the_prompt(model: str, name: str, prompt: Any, tmp_path: Path) -> None:
    folder = tmp_path / name
    reference = save_reranker(folder, model, num_labels=1)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    expected = []
    for document in DOCUMENTS:
        inputs = tokenizer(prompt(QUERY, document), return_tensors="pt", return_token_type_ids=False)
        expected.append(reference(**inputs).logits[0, 0].sigmoid().item())

    with load_llm(folder) as llm:
        assert scores(llm) == pytest.approx(expected, abs=1e-4)


def test_nemotron_attends_bidirectionally_and_pools_the_mean(tmp_path: Path) -> None:
    reference = save_reranker(tmp_path, "LlamaForSequenceClassification", num_labels=1)
    change_config(
        tmp_path,
        architectures=["LlamaBidirectionalForSequenceClassification"],
        model_type="llama_bidirec",
        pooling="avg",
    )
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for layer in reference.model.layers:
        layer.self_attn.is_causal = False
    expected = []
    for document in DOCUMENTS:
        ids = tokenizer(nemotron(QUERY, document), return_tensors="pt").input_ids
        no_mask = torch.zeros(1, 1, ids.shape[1], ids.shape[1])  # added to the attention scores
        with torch.inference_mode():
            states = reference.model(input_ids=ids, attention_mask=no_mask).last_hidden_state
        head: Any = reference.score
        expected.append(head(states.mean(dim=1)).sigmoid().item())

    with load_llm(tmp_path) as llm:
        assert scores(llm) == pytest.approx(expected, abs=1e-4)


# the files of Sentence Transformers

PAIR_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}! {% endif %}{% endfor %}"
    "{% for m in messages %}{% if m.role == 'query' %}query: {{ m.content }}{% endif %}"
    "{% if m.role == 'document' %} passage: {{ m.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %} is it good?{% endif %}"
)


@pytest.mark.parametrize("false_token", [True, False])
@pytest.mark.parametrize("prompts", [{}, {"prompts": {"web": TASK}, "default_prompt_name": "web"}])
@pytest.mark.parametrize("activation", [nn.Sigmoid(), nn.Identity()])
def test_a_cross_encoder_of_a_language_model_scores_as_in_sentence_transformers(
    prompts: dict[str, Any], activation: nn.Module, false_token: bool, tmp_path: Path
) -> None:
    base, saved = tmp_path / "base", tmp_path / "saved"
    save_reranker(base, "Qwen3ForCausalLM")
    add_chat_template(base, PAIR_TEMPLATE)
    reference = CrossEncoder(str(base), device="cpu", activation_fn=activation, **prompts)
    reference[0].processing_kwargs = {"chat_template": {"add_generation_prompt": True}}
    if not false_token:
        reference[1].false_token_id = None
    reference.save(str(saved), create_model_card=False)
    pairs = [(QUERY, document) for document in DOCUMENTS]

    with load_llm(saved) as llm:
        assert scores(llm) == pytest.approx(reference.predict(pairs).tolist(), abs=1e-4)
        expected = reference.predict(pairs, prompt="search the river").tolist()
        assert scores(llm, instruction="search the river") == pytest.approx(expected, abs=1e-4)


def test_a_known_reranker_returns_probabilities_despite_an_identity_activation_in_its_files(tmp_path: Path) -> None:
    base, saved = tmp_path / "base", tmp_path / "Qwen3-Reranker-0.6B"
    save_reranker(base, "Qwen3ForCausalLM")
    add_chat_template(base, PAIR_TEMPLATE)
    reference = CrossEncoder(str(base), device="cpu", activation_fn=nn.Identity())
    reference.save(str(saved), create_model_card=False)
    logits = torch.tensor(reference.predict([(QUERY, document) for document in DOCUMENTS]))

    with load_llm(saved) as llm:
        assert scores(llm) == pytest.approx(logits.sigmoid().tolist(), abs=1e-4)
        raw = scores(llm, pooling_params=PoolingParams(use_activation=False))
        assert raw == pytest.approx(logits.tolist(), abs=1e-4)


def test_a_chat_template_that_drops_the_pair_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    base, saved = tmp_path / "base", tmp_path / "saved"
    reference = save_reranker(base, "Qwen3ForCausalLM")
    add_chat_template(base, PAIR_TEMPLATE)
    CrossEncoder(str(base), device="cpu").save(str(saved), create_model_card=False)
    (saved / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'user' %}{{ m }}{% endif %}{% endfor %}"
    )
    bare = RerankerKind("", lambda query, document, instruction: query + document, ["no", "yes"], {})

    with load_llm(saved) as llm:
        assert scores(llm) == pytest.approx(reference_scores(reference, base, bare), abs=1e-4)
    assert "to the chat template, which drops them" in caplog.text


# instructions


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hub") / "Qwen3-Reranker-0.6B"


@pytest.fixture(scope="module")
def reference(folder: Path) -> PreTrainedModel:
    return save_reranker(folder, "Qwen3ForCausalLM")


@pytest.fixture(scope="module")
def reranker(folder: Path, reference: PreTrainedModel, open_llm: LLMFactory) -> LLM:
    return open_llm(folder)


def test_an_instruction_changes_the_prompt(reranker: LLM, reference: PreTrainedModel, folder: Path) -> None:
    kind = RERANKER_KINDS["Qwen3-Reranker-0.6B"]
    expected = reference_scores(reference, folder, kind, TASK)

    assert scores(reranker, instruction=TASK) == pytest.approx(expected, abs=1e-4)
    for name in ("instruction", "instruct"):
        params = PoolingParams(extra_kwargs={"chat_template_kwargs": {name: TASK}})
        assert scores(reranker, pooling_params=params) == pytest.approx(expected, abs=1e-4)
    assert expected != pytest.approx(reference_scores(reference, folder, kind), abs=1e-3)


def test_the_instruction_of_mxbai_comes_before_the_query(tmp_path: Path) -> None:
    kind = RERANKER_KINDS["mxbai-rerank-base-v2"]
    folder = tmp_path / "mxbai-rerank-base-v2"
    reference = save_reranker(folder, kind.model)

    with load_llm(folder) as llm:
        assert scores(llm, instruction=TASK) == pytest.approx(reference_scores(reference, folder, kind, TASK), abs=1e-4)


def test_a_model_without_instruction_support_ignores_the_instruction(llm: LLM, tmp_path: Path) -> None:
    kind = RERANKER_KINDS["bge-reranker-v2-gemma"]
    folder = tmp_path / "bge-reranker-v2-gemma"
    save_reranker(folder, kind.model)

    with load_llm(folder) as gemma_llm:
        assert scores(gemma_llm, instruction=TASK) == scores(gemma_llm)
    assert scores(llm, instruction=TASK) == pytest.approx(scores(llm), abs=1e-6)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score"])
def test_every_route_takes_an_instruction(path: str, reranker: LLM, reference: PreTrainedModel, folder: Path) -> None:
    kind = RERANKER_KINDS["Qwen3-Reranker-0.6B"]
    client, body = make_client(reranker), {"query": QUERY, "documents": DOCUMENTS}
    if "score" in path:
        body = {"queries": QUERY, "documents": DOCUMENTS}

    def post(**fields: Any) -> list[float]:
        reply = client.post(path, json=body | fields)
        assert reply.status_code == 200, reply.text
        if "score" in path:
            return [item["score"] for item in reply.json()["data"]]
        ranked = sorted(reply.json()["results"], key=lambda item: item["index"])
        return [item["relevance_score"] for item in ranked]

    assert post() == pytest.approx(reference_scores(reference, folder, kind), abs=1e-4)
    expected = pytest.approx(reference_scores(reference, folder, kind, TASK), abs=1e-4)
    assert post(instruction=TASK) == expected
    assert post(chat_template_kwargs={"instruct": TASK}) == expected
    assert post(instruction="a song", chat_template_kwargs={"instruction": TASK}) == expected


# precedence of templates


def test_a_template_of_the_call_or_the_engine_overrides_the_models(
    reranker: LLM, reference: PreTrainedModel, folder: Path, tmp_path: Path
) -> None:
    text = "query: {{ messages[0].content }} passage: {{ messages[1].content }}!"
    own = RerankerKind(
        "", lambda query, document, instruction: f"query: {query} passage: {document}!", ["no", "yes"], {}
    )
    expected = pytest.approx(reference_scores(reference, folder, own), abs=1e-4)
    (tmp_path / "own.jinja").write_text(text)

    assert scores(reranker, chat_template=text) == expected
    for options in (
        {"chat_template": text},
        {"score_template": str(tmp_path / "own.jinja")},
        {"score_template": text, "chat_template": "{{ messages[0].content }}"},
        {
            "score_template": "none",
            "chat_template": text,
            "hf_overrides": RERANKER_KINDS["Qwen3-Reranker-0.6B"].overrides,
        },
    ):
        with load_llm(folder, **options) as llm:
            assert scores(llm) == expected


def test_a_renamed_reranker_can_be_selected_by_template_name(
    reference: PreTrainedModel, folder: Path, tmp_path: Path
) -> None:
    renamed = tmp_path / "mine"
    shutil.copytree(folder, renamed)

    with load_llm(renamed) as llm:
        assert llm.supported_tasks == ("embed", "token_embed")
    with load_llm(renamed, score_template="qwen3_reranker") as llm:
        expected = reference_scores(reference, folder, RERANKER_KINDS["Qwen3-Reranker-0.6B"])
        assert scores(llm) == pytest.approx(expected, abs=1e-4)
    with pytest.raises(LoadError, match=r"score_template 'qwen3' is neither .*built-in values: auto, none, qwen3_rer"):
        load_llm(renamed, score_template="qwen3")


# truncation


def encode(llm: LLM, text: str) -> list[int]:
    return llm.get_tokenizer().encode(text).ids


def test_the_document_is_truncated_and_the_template_is_kept(reranker: LLM) -> None:
    text = "the red cat and the old dog " * 40
    head, tail = encode(reranker, qwen3(QUERY, "")[: -len(TAIL)]), encode(reranker, TAIL)
    num_template = len(encode(reranker, qwen3(QUERY, "")))
    assert num_template == len(head) + len(tail)

    def score(document: str, **tokenization_kwargs: Any) -> Any:
        (output,) = reranker.score(QUERY, document, tokenization_kwargs=tokenization_kwargs, use_tqdm=False)
        return output

    full, truncated = score(text), score(text, truncate_prompt_tokens=num_template + 9)
    assert truncated.prompt_token_ids == encode(reranker, qwen3(QUERY, " ".join(text.split()[:9])))
    assert truncated.prompt_token_ids[: len(head)] == head and truncated.prompt_token_ids[-len(tail) :] == tail
    assert len(full.prompt_token_ids) == num_template + len(text.split())
    left = score(text, truncate_prompt_tokens=num_template + 9, truncation_side="left")
    assert left.prompt_token_ids == encode(reranker, qwen3(QUERY, " ".join(text.split()[-9:])))
    assert score("two", truncate_prompt_tokens=-1).prompt_token_ids == encode(reranker, qwen3(QUERY, "two"))


def test_the_query_is_truncated_after_the_document_and_the_template_never(reranker: LLM) -> None:
    text = "the red cat and the old dog " * 40
    num_template = len(encode(reranker, qwen3("", "")))

    (output,) = reranker.score(
        text, "two", tokenization_kwargs={"truncate_prompt_tokens": num_template + 5}, use_tqdm=False
    )
    assert output.prompt_token_ids == encode(reranker, qwen3(" ".join(text.split()[:5]), ""))
    with pytest.raises(InputTooLong, match=f"the score template without query and documents has {num_template} tokens"):
        reranker.score(text, "two", tokenization_kwargs={"truncate_prompt_tokens": num_template - 1}, use_tqdm=False)
    with pytest.raises(InputTooLong, match="maximum context length is 1024 tokens"):
        reranker.score(QUERY, text * 5, use_tqdm=False)


def test_a_reply_reports_truncation(reranker: LLM) -> None:
    text = "the red cat and the old dog " * 2000
    body = {"query": QUERY, "documents": [text, "two"], "return_token_counts": True}

    reply = make_client(reranker).post("/v2/rerank", json=body)

    counts = {item["index"]: item["token_counts"] for item in reply.json()["results"]}
    assert counts[0]["used"] == 1024 < counts[0]["given"]
    assert counts[1]["used"] == counts[1]["given"] == len(encode(reranker, qwen3(QUERY, "two")))
    assert reply.headers["x-truncated-inputs"] == "1"


def test_queries_and_documents_have_separate_limits_inside_the_template(reranker: LLM) -> None:
    limits = PoolingParams(extra_kwargs={"max_tokens_per_query": 2, "max_tokens_per_doc": 3})

    (output,) = reranker.score("the old city", "a red fish and a bird", pooling_params=limits, use_tqdm=False)

    assert output.prompt_token_ids == encode(reranker, qwen3("the old", "a red fish"))


def test_token_counts_are_those_of_vllm(tmp_path: Path) -> None:
    files = shared_folder("tokenizers", "qwen3")
    save_tiny(tmp_path, "Qwen3ForCausalLM", max_position_embeddings=1024, vocab_size=151936)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(files / file, tmp_path / file)

    with load_llm(tmp_path, score_template="qwen3_reranker") as llm:
        assert count_limited_tokens(llm) == [352, 223, 221, 92]


# inspect


def test_inspect_shows_the_recognised_reranker_and_its_source(folder: Path, reference: PreTrainedModel) -> None:
    settings = [setting.format_row() for setting in iter_settings(describe_model(EngineConfig(model=str(folder))))]
    rows = {name: (value, source) for name, value, source in settings}

    assert rows["used as"] == ("sequence", "the name Qwen3-Reranker-0.6B")
    assert rows["labels"] == ("1", "the name Qwen3-Reranker-0.6B")
    assert rows["score template"] == ("qwen3_reranker", "the name Qwen3-Reranker-0.6B")
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["Qwen3ForCausalLM"]


# ctxl-rerank-v2, whose score is the logit of vocabulary id 0 as it is


def ctxl_scores(reference: PreTrainedModel, folder: Path, instruction: str | None = None) -> list[float]:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    found = []
    for document in DOCUMENTS:
        inputs = tokenizer(ctxl(QUERY, document, instruction), return_tensors="pt", return_token_type_ids=False)
        with torch.inference_mode():
            logits: torch.Tensor = reference(**inputs).logits
        found.append((logits[0, -1, 0] if logits.dim() == 3 else logits[0, 0]).item())
    return found


def add_bos(folder: Path) -> None:
    """Have the tokenizer write a BOS, as that of Mistral does."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<s>"])
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", bos)])
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.mark.parametrize("instruction", [None, TASK])
def test_the_prompt_of_ctxl_is_that_of_its_authors_to_the_byte(instruction: str | None) -> None:
    variables = {} if instruction is None else {"instruction": instruction}

    written = render_pair(TextPair(" a\n?", "b \n", None, variables), {}, load_builtin_template("ctxl_rerank_v2"))

    assert written == ctxl(" a\n?", "b \n", instruction)


@pytest.mark.parametrize("instruction", [None, TASK])
@pytest.mark.parametrize(
    ("size", "model", "options"),
    [
        ("1b", "Qwen3ForCausalLM", {"tie_word_embeddings": True}),
        ("2b", "Qwen3ForCausalLM", {}),
        ("6b", "MistralForCausalLM", {}),
        ("1b-seq-cls", "Qwen3ForSequenceClassification", {"num_labels": 1}),
    ],
)
def test_ctxl_scores_are_logits(
    size: str, model: str, options: dict[str, Any], instruction: str | None, tmp_path: Path
) -> None:
    folder = tmp_path / f"ctxl-rerank-v2-instruct-multilingual-{size}"
    reference = save_reranker(folder, model, **options)
    if size == "6b":
        add_bos(folder)

    with load_llm(folder) as llm:
        found = scores(llm, instruction=instruction)

    expected = ctxl_scores(reference, folder, instruction)
    assert found == pytest.approx(expected, abs=1e-4)
    assert min(expected) < 0 or max(expected) > 1  # a sigmoid would show


@pytest.mark.parametrize("name", ["ctxl-rerank-v2-instruct-multilingual-1b", "mine"])
def test_ctxl_with_its_modules_scores_as_in_sentence_transformers(name: str, tmp_path: Path) -> None:
    reference = save_ctxl(tmp_path / name)
    pairs = [(QUERY, document) for document in DOCUMENTS]

    with load_llm(tmp_path / name) as llm:
        assert scores(llm) == pytest.approx(reference.predict(pairs).tolist(), abs=1e-4)
        assert scores(llm, instruction=TASK) == pytest.approx(reference.predict(pairs, prompt=TASK).tolist(), abs=1e-4)


def test_ctxl_with_modules_but_without_a_chat_template_has_its_own_prompt(tmp_path: Path) -> None:
    folder = tmp_path / "ctxl-rerank-v2-instruct-multilingual-1b"
    reference = save_ctxl(folder, template=None)

    with load_llm(folder) as llm:
        assert scores(llm) == pytest.approx(ctxl_scores(reference[0].model, folder), abs=1e-4)


@pytest.mark.parametrize("option", [{"score_template": "ctxl_rerank_v2"}, {}])
def test_a_copy_of_ctxl_under_another_name_is_known_by_its_card_or_an_option(
    option: dict[str, Any], tmp_path: Path
) -> None:
    reference = save_reranker(tmp_path, "Qwen3ForCausalLM")
    if not option:
        base = "ContextualAI/ctxl-rerank-v2-instruct-multilingual-1b"
        (tmp_path / "README.md").write_text(f"---\nbase_model: {base}\npipeline_tag: text-ranking\n---\n")

    with load_llm(tmp_path, **option) as llm:
        assert scores(llm) == pytest.approx(ctxl_scores(reference, tmp_path), abs=1e-4)
