"""Settings of tokenizer_config.json and defaults of tokenizer classes are applied as AutoTokenizer applies them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, normalizers

from cenote.loading.checkpoint import Checkpoint
from cenote.loading.tokenizer_class import CLASS_OF_MODEL_TYPE, OVERRIDING_TYPES, resolve_tokenizer_class
from cenote.loading.tokenizer_files import load_tokenizer_files
from tests.layouts.tokenizers import TOKENIZER_KINDS, write_json, write_tokenizer
from tests.loading.tokenizer_parity import MODEL_TYPES, TEXTS, change, read_ids

# keys of tokenizer_config.json that classes of an algorithm read, or that other classes read
SETTINGS: dict[str, dict[str, tuple[Any, ...]]] = {
    "wordpiece": {
        "do_lower_case": (True, False),
        "strip_accents": (None, True, False),
        "tokenize_chinese_chars": (True, False),
    },
    "bpe": {"add_prefix_space": (True, False), "do_lower_case": (True,)},
    "unigram": {
        "do_lower_case": (True, False),
        "keep_accents": (True, False),
        "add_prefix_space": (True, False),
        "split_by_punct": (True,),
    },
    "sentencepiece-bpe": {"add_prefix_space": (True, False), "legacy": (True, False)},
}


def list_variations(algorithm: str) -> Iterator[dict[str, Any]]:
    yield {}
    for key, values in SETTINGS[algorithm].items():
        yield from ({key: value} for value in values)


@pytest.mark.parametrize("place", ["tokenizer_config.json", "config.json", "model_type", "generic"])
@pytest.mark.parametrize("kind_name", MODEL_TYPES)
def test_settings_are_applied_as_by_the_class(tmp_path: Path, kind_name: str, place: str) -> None:
    kind = TOKENIZER_KINDS[kind_name]
    write_tokenizer(tmp_path, kind_name, {})
    path = tmp_path / "tokenizer_config.json"
    stored = json.loads(path.read_text())
    keys = (*SETTINGS[kind.algorithm], "tokenizer_class")
    base = {key: value for key, value in stored.items() if key not in keys}
    named = {"tokenizer_config.json": kind.tokenizer_class, "generic": "PreTrainedTokenizerFast"}.get(place)
    write_json(tmp_path / "config.json", {"model_type": MODEL_TYPES[kind_name]})
    if place == "config.json":
        change(tmp_path / "config.json", tokenizer_class=kind.tokenizer_class)

    for values in list_variations(kind.algorithm):
        write_json(path, {**base, **values, **({"tokenizer_class": named} if named else {})})
        ours, theirs = read_ids(tmp_path)
        assert ours == theirs, values


@pytest.mark.parametrize("adds_space", [None, True, False])
def test_deberta(tmp_path: Path, adds_space: bool | None, monkeypatch: pytest.MonkeyPatch) -> None:
    specials = TOKENIZER_KINDS["bert-uncased"].specials
    kind = replace(
        TOKENIZER_KINDS["roberta"],
        tokenizer_class="DebertaTokenizer",
        specials=specials,
        ids={},
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        settings={},
    )
    monkeypatch.setitem(TOKENIZER_KINDS, "deberta", kind)
    write_tokenizer(tmp_path, "deberta", {} if adds_space is None else {"add_prefix_space": adds_space})
    write_json(tmp_path / "config.json", {"model_type": "deberta"})

    ours, theirs = read_ids(tmp_path)

    # pairs are those of tokenizer.json: Transformers 5 has two [SEP] between texts, the published models were not so
    # trained
    assert ours[:-1] == theirs[:-1]
    separator = Tokenizer.from_file(str(tmp_path / "tokenizer.json")).token_to_id("[SEP]")
    assert ours[-1].count(separator) == 2 and theirs[-1].count(separator) == 3


@pytest.mark.parametrize("kind_name", [name for name in MODEL_TYPES if name not in ("llama", "gemma")])
def test_a_missing_template_is_that_of_the_class(tmp_path: Path, kind_name: str) -> None:
    """Except for Llama and Gemma, whose add_bos_token is applied: Transformers 5 does not read it."""
    write_tokenizer(tmp_path, kind_name, {})
    write_json(tmp_path / "config.json", {"model_type": MODEL_TYPES[kind_name]})
    change(tmp_path / "tokenizer.json", post_processor=None)

    ours, theirs = read_ids(tmp_path)
    assert ours == theirs
    change(tmp_path / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    ours, theirs = read_ids(tmp_path)
    assert ours == theirs


def test_a_normalizer_that_the_class_does_not_have_is_replaced_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_tokenizer(tmp_path, "bert-cased", {})
    write_json(tmp_path / "config.json", {"model_type": "bert"})
    file, path = tmp_path / "tokenizer.json", tmp_path / "tokenizer_config.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace("cat", "mat"), tokenizer.normalizer])
    tokenizer.save(str(file))
    settings = json.loads(path.read_text())
    write_json(path, {key: value for key, value in settings.items() if key not in SETTINGS["wordpiece"]})

    ours, theirs = read_ids(tmp_path)

    assert ours == theirs
    (message,) = [record.getMessage() for record in caplog.records if record.name == "cenote"]
    assert str(file) in message and "that of BertTokenizer" in message and "or do_lower_case" in message
    change(path, tokenizer_class="PreTrainedTokenizerFast")
    caplog.clear()
    ours, theirs = read_ids(tmp_path)
    assert ours == theirs
    assert not [record for record in caplog.records if record.name == "cenote"]


def test_a_vocabulary_that_the_class_cannot_read_keeps_its_file(tmp_path: Path) -> None:
    """paraphrase-multilingual-MiniLM is a BERT model with the vocabulary of XLM-RoBERTa."""
    write_tokenizer(tmp_path, "xlm-roberta", {"tokenizer_class": "BertTokenizer", "do_lower_case": True})
    write_json(tmp_path / "config.json", {"model_type": "bert"})

    tokenizer = load_tokenizer_files(Checkpoint("test", tmp_path)).tokenizer

    expected = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert all(tokenizer.encode(text).ids == expected.encode(text).ids for text in TEXTS)


def test_an_invalid_value_is_refused(tmp_path: Path, refused: Any) -> None:
    write_tokenizer(tmp_path, "bert-uncased", {"do_lower_case": "yes"})

    with refused("tokenizer_config.json", "str"):
        load_tokenizer_files(Checkpoint("test", tmp_path))


def test_model_types_are_registered_as_in_transformers() -> None:
    from transformers.models.auto import tokenization_auto as auto

    for kind, name in CLASS_OF_MODEL_TYPE.items():
        # the class of Mistral's own format is used only if mistral-common is installed and the files are there
        theirs = str(auto.TOKENIZER_MAPPING_NAMES[kind]).replace("MistralCommonBackend", "TokenizersBackend")
        assert auto.tokenizer_class_from_name(theirs) is auto.tokenizer_class_from_name(name), kind
    forced = auto.MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS
    assert {kind for kind in CLASS_OF_MODEL_TYPE if kind in forced} - set(OVERRIDING_TYPES) <= {
        kind for kind, name in CLASS_OF_MODEL_TYPE.items() if name == "TokenizersBackend"
    }


@pytest.mark.parametrize(
    ("named", "model_type", "is_byte_level", "expected"),
    [
        ("LlamaTokenizerFast", "llama", True, None),
        ("LlamaTokenizerFast", "llama", False, "LlamaTokenizer"),
        ("LlamaTokenizer", "mistral", False, None),
        (None, "llama", False, None),
        ("PreTrainedTokenizerFast", "qwen2", True, "Qwen2Tokenizer"),
        ("PreTrainedTokenizerFast", "qwen3", True, None),
        ("DistilBertTokenizer", "bert", False, "DistilBertTokenizer"),
        (None, "unheard-of", False, None),
        (None, None, False, None),
    ],
)
def test_classes(named: str | None, model_type: str | None, is_byte_level: bool, expected: str | None) -> None:
    settings = {} if named is None else {"tokenizer_class": named}

    resolved = resolve_tokenizer_class(settings, {"model_type": model_type}, is_byte_level=is_byte_level)

    assert resolved == expected
    config = {"tokenizer_class": named, "model_type": model_type}
    assert resolve_tokenizer_class({}, config, is_byte_level=is_byte_level) == expected


def test_the_code_of_a_custom_tokenizer_is_not_run_and_its_class_kept() -> None:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "auto_map": {"AutoTokenizer": ["a.A", "b.B"]}}

    assert resolve_tokenizer_class(settings, {"model_type": "qwen2"}, is_byte_level=True) is None
