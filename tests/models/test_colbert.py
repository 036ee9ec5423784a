"""ColBERT models, recognised by their files, return the embeddings and scores of PyLate and Stanford ColBERT.

What they must give is computed here in the plain way: Transformers on one padded text, with its attention mask.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from sentence_transformers import MultiVectorEncoder
from torch import Tensor
from torch.nn import functional as F

from cenote import LLM
from cenote.api.app_state import AppState
from cenote.api.banner import make_banner_rows
from cenote.cli.main import main
from cenote.config.server import ServerConfig
from cenote.errors import BadRequest, LoadError, Unsupported
from cenote.explain.resolved_settings import iter_settings, resolve_settings
from tests.api.app_client import make_client
from tests.factories import LLMFactory
from tests.layouts.builders import load_builders
from tests.layouts.registry import BUILDERS
from tests.models.colbert import Colbert, Rules, noise, save_pylate, save_stanford, write, write_dense, write_modules
from tests.models.parity import assert_same, opened
from tests.tiny import change_config

QUERIES = [
    "who live in berlin?",
    "a",
    "  the cat, the dog and the bird in the old city of paris  ",
    "how big is the old river in berlin and who live in it? is it not big, is it old or new, red or blue?",
]
DOCUMENTS = [
    "the cat is in the city.",
    "a",
    "how big is the old river in berlin and who live in it? " * 3,
    "two, three; (red) fish! ~ @ #",  # the last three are not tokens
]


def encoded(llm: LLM, texts: Any, **options: Any) -> list[Tensor]:
    outputs = llm.encode(texts, pooling_task="token_embed", use_tqdm=False, **options)
    return [output.outputs.data for output in outputs]


def assert_gives(colbert: Colbert, llm: LLM) -> None:
    assert llm.supported_tasks == ("token_embed",)
    assert_same(encoded(llm, QUERIES, role="query"), [colbert.query(text) for text in QUERIES])
    assert_same(encoded(llm, DOCUMENTS), [colbert.document(text) for text in DOCUMENTS])
    scores = [output.outputs.score for output in llm.score(QUERIES, DOCUMENTS, use_tqdm=False)]
    expected = [colbert.score(query, document) for query, document in zip(QUERIES, DOCUMENTS, strict=True)]
    assert scores == pytest.approx(expected, abs=1e-4)


# PyLate

WAYS = {
    "expanded": Rules(),
    "expanded, and attended to": Rules(attends=True),
    "not expanded": Rules(expands=False),
    "no words are skipped": Rules(skiplist=[]),
    "words of its own are skipped": Rules(skiplist=["the", ",", "no token"]),
    "short texts without markers": Rules(query_marker="", document_marker="", query_length=12, document_length=10),
    "queries far longer than a window": Rules(query_length=60),
}


@pytest.mark.parametrize("rules", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("encoder", ["BertModel", "ModernBertModel", "Lfm2Model"])
def test_a_model_of_pylate_is_read_as_pylate_reads_it(encoder: str, rules: Rules, tmp_path: Path) -> None:
    colbert = save_pylate(tmp_path, encoder, rules)

    with opened(tmp_path) as llm:
        assert_gives(colbert, llm)


def test_what_pylate_leaves_unsaid_is_its_default(tmp_path: Path) -> None:
    colbert = save_pylate(tmp_path, "BertModel")
    write(tmp_path, "config_sentence_transformers.json", {"model_type": "ColBERT"})

    with opened(tmp_path) as llm:
        # the document length of PyLate is 180 tokens, the limit of this model 66
        assert_gives(replace(colbert, rules=Rules(document_length=66)), llm)


def test_several_projections_with_what_went_in_added(tmp_path: Path) -> None:
    colbert = save_pylate(tmp_path, "BertModel")
    first, square, last = noise(12, 32), noise(12, 12), {"linear.weight": noise(8, 12), "residual.weight": noise(8, 12)}
    bias = noise(12)
    write_dense(tmp_path, "1_Dense", {"linear.weight": first})
    write_dense(tmp_path, "2_Dense", {"linear.weight": square, "linear.bias": bias}, use_residual=True)
    gelu = "torch.nn.modules.activation.GELU"
    write_dense(tmp_path, "3_Dense", last, use_residual=True, activation_function=gelu)
    write_modules(tmp_path, *((f"{n}_Dense", "pylate.models.Dense.Dense") for n in (1, 2, 3)))

    def project(x: Tensor) -> Tensor:
        x = x @ first.T
        x = x @ square.T + bias + x
        return F.gelu(x @ last["linear.weight"].T) + x @ last["residual.weight"].T

    with opened(tmp_path) as llm:
        assert_gives(replace(colbert, project=project), llm)  # type: ignore[arg-type]


def test_the_prompt_that_a_role_has_goes_before_its_texts(tmp_path: Path) -> None:
    colbert = save_pylate(tmp_path, "BertModel", prompts={"query": "search query: ", "document": "search passage: "})

    with opened(tmp_path) as llm:
        assert_same(encoded(llm, "red fish", role="query"), [colbert.query("search query: red fish")])
        assert_same(encoded(llm, "red fish", role="document"), [colbert.document("search passage: red fish")])


def test_the_name_that_others_give_the_architecture_changes_nothing(tmp_path: Path) -> None:
    colbert = save_pylate(tmp_path, "ModernBertModel")

    with opened(tmp_path, hf_overrides={"architectures": ["ColBERTModernBertModel"]}) as llm:
        assert_gives(colbert, llm)


# Stanford's ColBERT

STANFORD = {
    "query_token_id": "[unused0]",
    "doc_token_id": "[unused1]",
    "query_token": "[Q]",
    "doc_token": "[D]",
    "query_maxlen": 20,
    "doc_maxlen": 30,
    "dim": 12,
    "mask_punctuation": True,
    "attend_to_mask_tokens": False,
    "similarity": "cosine",
}
UNUSED = Rules(query_marker="[unused0]", document_marker="[unused1]", query_length=20, document_length=30)


@pytest.mark.parametrize("encoder", ["BertModel", "RobertaModel", "ElectraModel"])
def test_a_model_of_stanfords_program_is_read_by_its_metadata(encoder: str, tmp_path: Path) -> None:
    colbert = save_stanford(tmp_path, encoder, UNUSED, STANFORD)

    with opened(tmp_path) as llm:
        assert_gives(colbert, llm)
        assert llm.model_config.embedding_size == 12


def test_metadata_may_keep_punctuation_and_let_queries_see_their_expansion(tmp_path: Path) -> None:
    changes = {"mask_punctuation": False, "attend_to_mask_tokens": True}
    colbert = save_stanford(tmp_path, "BertModel", replace(UNUSED, attends=True, skiplist=[]), STANFORD | changes)

    with opened(tmp_path) as llm:
        assert_gives(colbert, llm)


PLAIN = Rules(query_marker="", document_marker="", expands=False, skiplist=[], query_length=66, document_length=66)


def test_without_metadata_texts_are_plain_and_the_log_says_how_to_change_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    colbert = save_stanford(tmp_path, "BertModel", UNUSED, None)

    with caplog.at_level(logging.INFO, "cenote"), opened(tmp_path) as llm:
        texts = ["who live in berlin?", "two, three; (red) fish!"]
        plain = replace(colbert, rules=PLAIN)
        assert_same(encoded(llm, texts, role="query"), [plain.query(text) for text in texts])
        assert_same(encoded(llm, texts), [plain.document(text) for text in texts])
        (output,) = llm.score(*texts, use_tqdm=False)
        assert output.outputs.score == pytest.approx(plain.score(*texts), abs=1e-4)
        with pytest.raises(BadRequest, match="maximum context length is 66"):  # no length limits, so no truncation
            encoded(llm, "fish " * 80)

    (line,) = [record.getMessage() for record in caplog.records if "late interaction" in record.getMessage()]
    assert "plain MaxSim" in line and "no artifact.metadata" in line
    assert "hf_overrides" in line and "plain_late_interaction=False (--no-plain-late-interaction)" in line


@pytest.mark.parametrize(
    "options", [{"plain_late_interaction": False}, {"hf_overrides": {"plain_late_interaction": False}}]
)
def test_without_metadata_stanfords_defaults_apply_on_demand(options: dict[str, Any], tmp_path: Path) -> None:
    colbert = save_stanford(tmp_path, "BertModel", replace(UNUSED, query_length=32, document_length=66), None)

    with opened(tmp_path, **options) as llm:
        assert_gives(colbert, llm)


def test_overrides_are_settings_too(tmp_path: Path) -> None:
    colbert = save_stanford(tmp_path, "BertModel", replace(UNUSED, document_length=66), None)

    with opened(tmp_path, hf_overrides={"query_length": 20}) as llm:
        assert_gives(colbert, llm)


@pytest.mark.parametrize("options", [{}, {"plain_late_interaction": False}, {"plain_late_interaction": True}])
def test_metadata_applies_unless_texts_are_to_be_plain(options: dict[str, Any], tmp_path: Path) -> None:
    colbert = save_stanford(tmp_path, "BertModel", UNUSED, STANFORD)
    rules = PLAIN if options.get("plain_late_interaction") else UNUSED

    with opened(tmp_path, **options) as llm:
        texts = ["who live in berlin?", "two, three; (red) fish!"]
        expected = replace(colbert, rules=rules)
        assert_same(encoded(llm, texts, role="query"), [expected.query(text) for text in texts])
        assert_same(encoded(llm, texts), [expected.document(text) for text in texts])


INSPECTED = {
    "metadata": (STANFORD, [], "MaxSim with markers, query expansion, skiplist, length limits", "artifact.metadata"),
    "no metadata": (None, [], "plain MaxSim", "a checkpoint without settings: no artifact.metadata, PyLate or"),
    "metadata, plain": (STANFORD, ["--plain-late-interaction"], "plain MaxSim", "plain_late_interaction"),
    "defaults": (
        None,
        ["--no-plain-late-interaction"],
        "MaxSim with markers",
        "ColBERT defaults, no artifact.metadata",
    ),
}


@pytest.mark.parametrize(("metadata", "flags", "value", "source"), INSPECTED.values(), ids=INSPECTED)
def test_inspect_says_which_late_interaction_is_on_and_why(
    metadata: Mapping[str, Any] | None,
    flags: list[str],
    value: str,
    source: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_stanford(tmp_path, "BertModel", UNUSED, metadata)

    assert main(["inspect", str(tmp_path), *flags]) == 0

    (row,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("late interaction")]
    assert f"  {value}" in row and f"  from {source}" in row


def test_the_banner_and_explain_say_which_late_interaction_is_on(tmp_path: Path) -> None:
    save_stanford(tmp_path, "BertModel", UNUSED, STANFORD)

    with opened(tmp_path) as llm:
        app_state = AppState(ServerConfig())
        app_state.set_engine(llm.engine)
        banner = make_banner_rows(app_state, "an address", llm.engine.model_info)
        settings = {setting.name: setting for setting in iter_settings(llm.engine, resolve_settings(llm.engine))}

    expected = "MaxSim with markers, query expansion, skiplist, length limits"
    assert banner["late interaction"] == f"{expected} (from artifact.metadata)"
    assert settings["late interaction"].value == expected
    assert settings["late interaction"].reason == "from artifact.metadata"


def test_the_error_for_an_unknown_marker_says_that_metadata_is_missing(tmp_path: Path) -> None:
    save_stanford(tmp_path, "BertModel", replace(UNUSED, query_marker="[other]"), None)

    with pytest.raises(LoadError, match=r"ColBERT defaults, no artifact\.metadata: .*'\[unused0\]'"):
        LLM(str(tmp_path), dtype="float32", device="cpu", plain_late_interaction=False)


def test_metadata_with_another_size_than_the_weights_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_stanford(tmp_path, "BertModel", UNUSED, STANFORD | {"dim": 128})

    with caplog.at_level(logging.WARNING, "cenote"), opened(tmp_path) as llm:
        assert llm.model_config.embedding_size == 12
    assert "artifact.metadata: dim is 128, but the projection in the checkpoint has size 12" in caplog.text


@pytest.mark.parametrize("override", [{}, {"architectures": ["ColBERTJinaRobertaModel"]}])
def test_jinas_second_colbert_is_known_by_its_positions(override: dict[str, Any], tmp_path: Path) -> None:
    rules = Rules(query_marker="[QueryMarker]", document_marker="[DocumentMarker]", attends=True, document_length=66)
    colbert = save_stanford(tmp_path, "JinaEmbeddingsV3Model", rules, None)
    config = json.loads((tmp_path / "config.json").read_text())
    theta = config["rope_parameters"]["rope_theta"]
    published = {"model_type": "xlm-roberta", "position_embedding_type": "rotary", "rotary_emb_base": theta}
    change_config(tmp_path, drop=("rope_parameters",), **published)
    names = load_file(tmp_path / "model.safetensors")
    assert "roberta.encoder.layers.0.mixer.Wqkv.weight" in names  # FlashAttention's names, as published

    with opened(tmp_path, hf_overrides=override) as llm:
        assert_gives(colbert, llm)


# Sentence Transformers


def encoder_says(folder: Path) -> tuple[list[Tensor], list[Tensor]]:
    encoder = MultiVectorEncoder(str(folder), device="cpu")
    # skiplist words outside the vocabulary are ignored here, but the unknown token in PyLate: skip the last document
    return encoder.encode_query(QUERIES), encoder.encode_document(DOCUMENTS[:3])


@pytest.mark.parametrize("encoder", ["BertModel", "ModernBertModel"])
def test_sentence_transformers_agrees_on_a_model_of_pylate(encoder: str, tmp_path: Path) -> None:
    save_pylate(tmp_path, encoder)
    queries, documents = encoder_says(tmp_path)

    with opened(tmp_path) as llm:
        assert_same(encoded(llm, QUERIES, role="query"), queries)
        assert_same(encoded(llm, DOCUMENTS[:3]), documents)


def test_sentence_transformers_agrees_on_the_three_projections_of_mlateon(tmp_path: Path) -> None:
    load_builders()
    BUILDERS["mlateon"](tmp_path)
    queries, documents = encoder_says(tmp_path)

    with opened(tmp_path) as llm:
        assert_same(encoded(llm, QUERIES, role="query"), queries)
        assert_same(encoded(llm, DOCUMENTS[:3]), documents)


EXPANSIONS = {
    "fixed": {"query_expansion": {"strategy": "fixed", "attend": True, "length": 16}, "document_length": 24},
    "at least": {"query_expansion": {"strategy": "min", "length": 16, "token": "yes"}, "query_length": 24},
    "none": {"query_length": 10, "document_length": None},
}


@pytest.mark.parametrize("settings", EXPANSIONS.values(), ids=EXPANSIONS)
def test_a_model_of_sentence_transformers_is_read_as_it_reads_it(settings: dict[str, Any], tmp_path: Path) -> None:
    save_pylate(tmp_path, "BertModel")
    MultiVectorEncoder(str(tmp_path), device="cpu").save(str(tmp_path))
    file = tmp_path / "sentence_bert_config.json"
    written = {k: v for k, v in json.loads(file.read_text()).items() if k not in ("query_expansion", "document_length")}
    write(tmp_path, file.name, written | settings)
    mask = {"skiplist_words": ["the", "no token"], "skiplist_tasks": ["query", "document"]}
    write(tmp_path, "2_MultiVectorMask/config.json", mask)
    queries, documents = encoder_says(tmp_path)

    with opened(tmp_path) as llm:
        assert_same(encoded(llm, QUERIES, role="query"), queries)
        assert_same(encoded(llm, DOCUMENTS[:3]), documents)


# requests


@pytest.fixture(scope="module")
def colbert(tmp_path_factory: pytest.TempPathFactory) -> Colbert:
    return save_pylate(tmp_path_factory.mktemp("colbert"), "BertModel")


@pytest.fixture(scope="module")
def llm(colbert: Colbert, open_llm: LLMFactory) -> LLM:
    return open_llm(colbert.folder)


def test_other_apis_than_token_embeddings_are_refused_with_the_tasks_of_the_model(llm: LLM) -> None:
    assert llm.embed("red fish", use_tqdm=False)[0].outputs.data.ndim == 2  # as in vLLM, a vector for each token
    with pytest.raises(Unsupported, match="^Classification API is not supported by this model. "):
        llm.classify("red fish")
    reply = make_client(llm).post("/pooling", json={"input": "red fish", "task": "embed"})
    assert reply.json()["error"]["message"].startswith("Unsupported task: 'embed' Supported tasks: ('token_embed',)")


def test_a_role_has_several_names(colbert: Colbert, llm: LLM) -> None:
    for given in ({"role": "query"}, {"role": "search_query"}, {"is_query": True}):
        assert_same(encoded(llm, "red fish", **given), [colbert.query("red fish")])
    for given in ({}, {"role": "document"}, {"role": "passage"}, {"role": "search_document"}, {"is_query": False}):
        assert_same(encoded(llm, "red fish", **given), [colbert.document("red fish")])
    with pytest.raises(BadRequest, match="role must be query or document or .*, got 'song'"):
        encoded(llm, "red fish", role="song")
    with pytest.raises(BadRequest, match="role='query' and is_query='document'"):
        encoded(llm, "red fish", role="query", is_query=False)


def test_the_routes_know_roles(colbert: Colbert, llm: LLM) -> None:
    client = make_client(llm)

    def pooled(**body: Any) -> Tensor:
        reply = client.post("/pooling", json={"input": "red fish"} | body)
        assert reply.status_code == 200, reply.text
        return torch.tensor(reply.json()["data"][0]["data"])

    for given in ({"role": "query"}, {"input_type": "search_query"}):
        assert_same([pooled(**given)], [colbert.query("red fish")])
    for given in ({}, {"role": "document"}, {"input_type": "search_document"}):
        assert_same([pooled(**given)], [colbert.document("red fish")])
    assert client.post("/pooling", json={"input": "red fish", "role": "song"}).status_code == 400

    reply = client.post("/rerank", json={"query": QUERIES[0], "documents": DOCUMENTS})
    ranked = {item["index"]: item["relevance_score"] for item in reply.json()["results"]}
    expected = {place: colbert.score(QUERIES[0], document) for place, document in enumerate(DOCUMENTS)}
    assert ranked == pytest.approx(expected, abs=1e-4)
    assert list(ranked) == sorted(expected, key=lambda place: -expected[place])


def test_a_text_over_the_length_of_its_role_is_truncated_and_reported(colbert: Colbert, llm: LLM) -> None:
    (query,) = llm.encode(QUERIES[3], pooling_task="token_embed", role="query", use_tqdm=False)
    reply = make_client(llm).post("/pooling", json={"input": DOCUMENTS[2], "return_token_counts": True})

    assert len(query.prompt_token_ids) == 32 and query.num_input_tokens > 32
    assert reply.headers["X-Truncated-Inputs"] == "1"
    assert reply.json()["data"][0]["token_counts"] == {"given": 45, "used": 40, "truncated": 5}


def test_a_request_may_ask_for_another_length(colbert: Colbert, llm: LLM) -> None:
    for length in (12, 60):
        rules = replace(colbert.rules, document_length=length)
        kwargs = {"truncate_prompt_tokens": length}
        expected = [replace(colbert, rules=rules).document(text) for text in DOCUMENTS]
        assert_same(encoded(llm, DOCUMENTS, tokenization_kwargs=kwargs), expected)
    as_made = encoded(llm, DOCUMENTS, tokenization_kwargs={"truncate_prompt_tokens": -1})
    assert_same(as_made, [colbert.document(text) for text in DOCUMENTS])


def test_settings_can_be_overridden(colbert: Colbert) -> None:
    rules = replace(colbert.rules, query_length=20, document_length=60, expands=False, query_marker="", skiplist=["a"])
    settings = {"query_length": 20, "document_length": 60, "do_query_expansion": False, "query_prefix": ""}

    with opened(colbert.folder, hf_overrides=settings | {"skiplist_words": ["a"]}) as llm:
        assert_gives(replace(colbert, rules=rules), llm)


@pytest.mark.parametrize(
    "options", [{"plain_late_interaction": True}, {"hf_overrides": {"plain_late_interaction": True}}]
)
def test_texts_can_be_read_as_any_others(options: dict[str, Any], colbert: Colbert) -> None:
    plain = Rules(query_marker="", document_marker="", expands=False, skiplist=[], query_length=99, document_length=99)
    texts = [*QUERIES[:3], DOCUMENTS[3]]

    with opened(colbert.folder, **options) as llm:
        assert_same(encoded(llm, texts, role="query"), [replace(colbert, rules=plain).query(text) for text in texts])
        assert_same(encoded(llm, texts), [replace(colbert, rules=plain).document(text) for text in texts])
        assert llm.model_config.max_model_len == 39  # as Sentence Transformers' file says


def test_a_text_in_the_place_of_a_boolean_is_refused(colbert: Colbert) -> None:
    with pytest.raises(LoadError, match="plain_late_interaction is 'false'; expected true or false"):
        LLM(str(colbert.folder), device="cpu", hf_overrides={"plain_late_interaction": "false"})


def test_token_ids_are_used_unchanged(colbert: Colbert, llm: LLM) -> None:
    ids = [2, 7, 8, 9, 60, 3]

    assert_same(encoded(llm, [ids], role="query"), [colbert.vectors(ids, [1] * len(ids))])


def test_the_error_for_an_unknown_marker_names_the_options(colbert: Colbert) -> None:
    with pytest.raises(LoadError, match=r"'\[R\]' is not a token of the tokenizer; .*plain_late_interaction"):
        LLM(str(colbert.folder), device="cpu", hf_overrides={"query_prefix": "[R]"})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"query_length": 0}, "query_length is 0; expected a number of tokens"),
        ({"document_length": "long"}, "document_length is 'long'"),
        ({"query_prefix": 5}, "query_prefix is 5; expected a str"),
        ({"skiplist_words": "."}, "skiplist_words is '.'; expected a list of strings"),
        ({"do_query_expansion": "no"}, "do_query_expansion is 'no'; expected a bool"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    save_pylate(tmp_path, "BertModel", **settings)

    with pytest.raises(LoadError, match=words):
        LLM(str(tmp_path), device="cpu")


def test_inspect_shows_the_format_of_each_role(colbert: Colbert, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(colbert.folder)]) == 0

    rows = {line.split("  ")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "at most 32 tokens; marker '[Q] '; expanded to 32, not attended" in rows["query"]
    assert "at most 40 tokens; marker '[D] '; no vector for 32 words" in rows["document"]
    assert rows["document"].endswith("from config_sentence_transformers.json")
