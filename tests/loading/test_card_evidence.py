"""The model card and the names of a model agree with how its files were understood, or raise a doubt."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cenote.cli.check import compute_check
from cenote.cli.model_settings import resolve_settings, settings_to_json
from cenote.config.engine import EngineConfig
from cenote.config.pooler import PoolerConfig
from cenote.errors import LoadError
from cenote.loading.card_evidence import CardEvidence, ModelUse, weigh_card
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.describe import describe_model
from cenote.loading.model_card import MAX_CARD_CHARS, PublishedCard
from tests.tiny import save_tiny, tiny_bert, tiny_qwen3_causal

MEAN_CODE = "```python\nembeddings = mean_pooling(model_output, attention_mask)\n```"
CROSS_ENCODER_CODE = '```python\nmodel = CrossEncoder("owner/mine")\n```'


def use(kind: Any = "embed", architecture: str = "BertModel", **changes: Any) -> ModelUse:
    return ModelUse(kind=kind, architecture=architecture, **changes)


def weigh(head: str, text: str = "", of: ModelUse | None = None, names: tuple[str, ...] = ("mine",)) -> CardEvidence:
    return weigh_card(PublishedCard.from_text(f"---\n{head}\n---\n{text}"), names, of or use())


CONVERTED = use(architecture="Qwen3ForCausalLM", is_converted=True, default_pooling="LAST")
DECLARED = use(is_declared=True)


@pytest.mark.parametrize(
    ("head", "text", "of", "names", "doubt"),
    [
        # pipeline_tag
        ("pipeline_tag: text-ranking", "", use(), (), "config.json names BertModel: loading as embedder. .*reranker"),
        ("pipeline_tag: text-ranking", "", CONVERTED, (), "its prompt is unknown: .* set score_template, or chat_temp"),
        ("pipeline_tag: text-classification", "", use(), (), r'"\.\.\.ForSequenceClassification"\]}; convert='),
        ("pipeline_tag: token-classification", "", use("masked"), (), r'"\.\.\.ForTokenClassification"\]}; convert='),
        ("pipeline_tag: feature-extraction", "", use("sequence"), (), "is loaded as sequence; convert='embed' loads"),
        ("pipeline_tag: sentence-similarity", "", use("token"), (), "is loaded as token; convert='embed' loads"),
        ("pipeline_tag: token-classification", "", use("sequence"), (), "loaded as sequence; if that is wrong, downl"),
        ("pipeline_tag: text-generation", "", CONVERTED, (), "nothing says how Qwen3ForCausalLM makes embeddings"),
        # library_name
        ("library_name: setfit", "", DECLARED, (), "what that library adds to it is not used"),
        ("library_name: PyLate", "", use(), (), "library_name PyLate, but BertModel is loaded as embed"),
        (
            "library_name: sentence-transformers",
            "",
            use(default_pooling="CLS", has_modules=False),
            (),
            "there is no modules.json, and pooling CLS is the default of BertModel; download it",
        ),
        ("tags: [sentence-transformers]", "", use(default_pooling="CLS", has_modules=False), (), "the tag sentence-tr"),
        # base_model
        ("base_model: a/reranker", "", use(), (), "base_model a/reranker, but config.json names BertModel"),
        ("base_model: a/reranker", "", use("sequence", lacks_pair_prompt=True), (), "query and document are joined as"),
        # example code
        (
            "",
            CROSS_ENCODER_CODE,
            use(),
            ("mine",),
            "the example code of README.md loads the model with CrossEncoder, but",
        ),
        ("", MEAN_CODE, use(default_pooling="CLS"), (), r'mean_pooling, but .*pooler_config={"pooling_type": "MEAN"}$'),
        (
            "",
            MEAN_CODE,
            use(default_pooling="CLS", normalizes_by_default=True),
            (),
            r'pooler_config={"pooling_type": "MEAN", "use_activation": false}$',
        ),
        # names
        ("", "", use(), ("my-reranker",), "the model is called my-reranker, but config.json names BertModel"),
        (
            "pipeline_tag: text-ranking",
            "",
            use("sequence", "Qwen3ForSequenceClassification", lacks_pair_prompt=True),
            (),
            "its prompt is unknown: query and document are joined as they are; set score_template to",
        ),
    ],
)
def test_a_contradiction_is_a_doubt_with_its_way_out(
    head: str, text: str, of: ModelUse, names: tuple[str, ...], doubt: str
) -> None:
    (found,) = weigh(head, text, of, names).doubts

    assert re.search(doubt, found)


@pytest.mark.parametrize(
    ("head", "text", "of", "names"),
    [
        ("pipeline_tag: text-ranking", "", use("listwise"), ()),
        ("pipeline_tag: text-classification", "", use("reward"), ()),
        ("pipeline_tag: sentence-similarity", CROSS_ENCODER_CODE, use(), ("mine",)),  # the front matter counts more
        ("pipeline_tag: sentence-similarity\nbase_model: a/reranker", "", use(), ("mine-reranker-embed",)),
        ("pipeline_tag: text-ranking", "", DECLARED, ()),
        ("pipeline_tag: text-generation", "", DECLARED, ()),
        ("pipeline_tag: image-text-to-text", "", CONVERTED, ("VL-Embedding-2B",)),
        ("pipeline_tag: text-generation\nbase_model: a/Qwen3-Embedding-0.6B", "", CONVERTED, ()),
        ("pipeline_tag: fill-mask", "", use("masked"), ()),
        ("pipeline_tag: automatic-speech-recognition", "", use("token"), ()),  # of transcripts
        ("library_name: sentence-transformers", "", use(default_pooling="CLS"), ()),
        ("library_name: sentence-transformers", "", use("sequence", has_modules=False, default_pooling="CLS"), ()),
        ("library_name: setfit", "", use("sequence"), ()),
        ("", 'CrossEncoder("owner/another")', use(), ("mine",)),
        ("", 'SentenceTransformer("owner/mine"), CrossEncoder("owner/mine")', use(), ("mine",)),
        ("", MEAN_CODE, use(default_pooling="MEAN"), ()),
        ("", MEAN_CODE, use(), ()),  # files decide the pooling
        ("", MEAN_CODE + "last_token_pool(states)", use(default_pooling="CLS"), ()),  # of several models
        ("", "", use("sequence", lacks_pair_prompt=True), ("skywork-reward",)),
    ],
)
def test_without_a_contradiction_there_is_no_doubt(head: str, text: str, of: ModelUse, names: tuple[str, ...]) -> None:
    assert weigh(head, text, of, names).doubts == ()


def test_a_language_model_of_another_task_is_refused_unless_an_option_says_embedder() -> None:
    refusal = weigh("pipeline_tag: automatic-speech-recognition", of=CONVERTED).refusal

    assert refusal is not None
    assert refusal.startswith("README.md has pipeline_tag automatic-speech-recognition, and nothing says how ")
    assert weigh("pipeline_tag: automatic-speech-recognition", of=DECLARED).refusal is None


def test_evidence_that_agrees_is_no_more_than_noted() -> None:
    evidence = weigh("pipeline_tag: sentence-similarity\nlibrary_name: x\nbase_model: a/b")

    assert evidence.agrees
    assert evidence.facts == {"pipeline_tag": "sentence-similarity", "library_name": "x", "base_model": ["a/b"]}
    assert not weigh("library_name: x").agrees


# reading the card


def read(text: str, tmp_path: Path) -> PublishedCard:
    (tmp_path / "README.md").write_text(text)
    return PublishedCard.from_checkpoint(Checkpoint("test", tmp_path))


def test_entries_are_read_with_one_value_or_a_list(tmp_path: Path) -> None:
    index = (
        "model-index:\n- name: 'mine'\n  results:\n  - dataset:\n      name: other\n    metrics:\n    - name: more\n"
    )
    text = f"---\nbase_model:\n- a/b\n- c/d\npipeline_tag: 'text-ranking'\n{index}tags: one\n---\nlibrary_name: x\n"

    card = read(text, tmp_path)

    assert (card.base_models, card.pipeline_tag, card.tags) == (("a/b", "c/d"), "text-ranking", ("one",))
    assert (card.own_names, card.library_name) == (("mine",), None)


@pytest.mark.parametrize(
    "entry",
    [
        "pipeline_tag: [",
        "pipeline_tag: !!python/object/apply:os.system ['true']",
        "pipeline_tag: !!bool maybe",
        "pipeline_tag: null",
        "pipeline_tag: {a: b}",
        "pipeline_tag: " + "[" * 4900,
        "pipeline_tag: [&a [x, x], &b [*a, *a], &c [*b, *b], [*c, *c]]",
        "pipeline_tag: *missing",
        "pipeline_tag: " + "x" * 100_000,
    ],
)
def test_an_entry_that_cannot_be_read_is_left_out_alone(entry: str, tmp_path: Path) -> None:
    card = read(f"---\n{entry}\nlibrary_name: pylate\n---\n", tmp_path)

    assert card.pipeline_tag in (None, "maybe", "true")  # tags of YAML have no effect
    assert card.library_name == "pylate"


def test_a_card_is_read_up_to_a_size(tmp_path: Path) -> None:
    assert len(read("x" * (MAX_CARD_CHARS + 9), tmp_path).text) == MAX_CARD_CHARS


def test_a_card_that_cannot_be_read_stops_nothing(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    (tmp_path / "README.md").symlink_to("missing")

    assert described(tmp_path, pooler_config=PoolerConfig(pooling_type="CLS")).doubts == ()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("emb = F.normalize(model(**x).last_hidden_state[:, 0, :])", None),
        ("emb = model(**x).last_hidden_state[:, 0, :]", "does not normalize embeddings; to get dot products as there"),
        ("emb = model(**x).pooler_output", 'hf_overrides={"_name_or_path": "sup-simcse-bert-base-uncased"}'),
        ("emb = model(**x)", "no file says how BertModel makes embeddings"),
    ],
)
def test_the_pooling_of_an_encoder_is_looked_up_in_its_example_code(
    code: str, words: str | None, tmp_path: Path
) -> None:
    tiny_bert(tmp_path)
    (tmp_path / "README.md").write_text(code)

    doubts = described(tmp_path).doubts

    assert len(doubts) == (words is not None)
    assert all(words is not None and words in doubt for doubt in doubts)


def test_a_doubt_about_normalization_ends_with_the_option(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    (tmp_path / "README.md").write_text("embeds = model(**encoded).last_hidden_state[:, 0, :]")

    assert len(described(tmp_path).doubts) == 1
    for normalizes in (True, False):
        assert described(tmp_path, pooler_config=PoolerConfig(use_activation=normalizes)).doubts == ()


# models


def described(folder: Path, **options: Any) -> Any:
    return describe_model(EngineConfig(model=str(folder), device="cpu", **options))


def test_inspect_shows_the_card_and_check_the_doubt(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    (tmp_path / "README.md").write_text("---\npipeline_tag: text-ranking\nbase_model: google/bert\n---\n")

    settings = resolve_settings(EngineConfig(model=str(tmp_path), device="cpu"))
    (row,) = (setting for setting in settings if setting.key == "model_card")

    assert row.format_row() == ("model card", "text-ranking; google/bert", "README.md")
    (doubt,) = settings_to_json(settings)["doubts"]["value"]
    assert doubt.startswith(f"{tmp_path / 'README.md'} has pipeline_tag text-ranking, but config.json names BertModel")
    result = compute_check(str(tmp_path))
    assert (result.verdict, result.reasons[0]) == ("doubtful", doubt)


def test_sentence_transformers_without_modules_json_is_doubted_until_the_pooling_is_given(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    (tmp_path / "README.md").write_text(f"---\nlibrary_name: sentence-transformers\n---\n{MEAN_CODE}")

    (doubt,) = described(tmp_path).doubts

    assert "there is no modules.json, and pooling CLS is the default of BertModel" in doubt
    assert described(tmp_path, pooler_config=PoolerConfig(pooling_type="MEAN")).doubts == ()


def test_a_decoder_with_one_label_that_is_called_a_reranker_is_asked_for_its_prompt(tmp_path: Path) -> None:
    folder = tmp_path / "my-reranker"
    save_tiny(folder, "Qwen3ForSequenceClassification", num_labels=1)

    (doubt,) = described(folder).doubts

    assert "set score_template to the prompt it was trained with" in doubt
    for value in ("none", "qwen3_reranker"):
        assert described(folder, score_template=value).doubts == ()


def test_a_speech_model_is_refused_and_a_chat_model_doubted_unless_the_user_wants_an_embedder(tmp_path: Path) -> None:
    tiny_qwen3_causal(tmp_path)
    card = tmp_path / "README.md"

    card.write_text("---\npipeline_tag: text-to-speech\n---\n")
    with pytest.raises(LoadError, match="text-to-speech, and nothing says how Qwen3ForCausalLM .* convert='embed'"):
        described(tmp_path)
    assert described(tmp_path, convert="embed").doubts == ()
    card.write_text("---\npipeline_tag: text-generation\n---\n")
    assert "pipeline_tag text-generation, but nothing says" in described(tmp_path).doubts[0]
    assert described(tmp_path, convert="embed").doubts == ()
    (tmp_path / "modules.json").write_text(
        json.dumps(
            [
                {"type": "sentence_transformers.models.Transformer", "path": ""},
                {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
            ]
        )
    )
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    assert described(tmp_path).doubts == ()
