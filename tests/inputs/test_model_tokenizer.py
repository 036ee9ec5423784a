"""ModelTokenizer has the names and the results of Transformers' tokenizers, which are the oracle."""

from __future__ import annotations

import json
import pickle
import shutil
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tokenizers import AddedToken
from transformers import AutoTokenizer

from cenote import BadRequest
from cenote.engine.preprocessing.renderer_factory import make_model_tokenizer
from cenote.inputs.chat import ChatSettings
from cenote.inputs.model_tokenizer import ModelTokenizer
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.tokenizer_files import load_tokenizer_files
from tests.inputs.conftest import SHARED
from tests.suite import first_of

BERT: dict[str, Any] = {
    "tokenizer_class": "BertTokenizer",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "mask_token": "[MASK]",
    "model_max_length": 12,
}
ROBERTA: dict[str, Any] = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "sep_token": "</s>",
    "pad_token": "<pad>",
    "cls_token": "<s>",
    "mask_token": "<mask>",
    "model_max_length": 12,
}
# folder in `shared/tokenizers`, or the default model, and tokenizer_config.json as such checkpoints have it
SETTINGS: dict[str, dict[str, Any]] = {
    "wordpiece": BERT,
    "wordpiece-clean-up": BERT | {"clean_up_tokenization_spaces": True, "truncation_side": "left"},
    "roberta-base": ROBERTA | {"tokenizer_class": "RobertaTokenizer"},
    # its class in Transformers 5 adds a pre-tokenizer, which changes offsets
    "xlm-roberta": ROBERTA | {"tokenizer_class": "PreTrainedTokenizerFast", "padding_side": "left"},
    "deberta-v3": BERT
    | {"tokenizer_class": "DebertaV2Tokenizer", "bos_token": "[CLS]", "eos_token": "[SEP]", "model_max_length": 512},
    "qwen3": {},
}
TEXT = "Don't panic , the naïve café is open. 你好 🙂"
TEXTS = ["hello", TEXT, "one two three four five six seven eight nine ten"]
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello!"}]


class Pair(NamedTuple):
    ours: ModelTokenizer
    reference: Any


@cache
def load_pair(name: str, default_folder: Path, folder: Path) -> Pair:
    return Pair(load_ours(name, default_folder, folder), AutoTokenizer.from_pretrained(folder))


def load_ours(name: str, default_folder: Path, folder: Path) -> ModelTokenizer:
    source = default_folder if name.startswith("wordpiece") else SHARED / name
    if not (source / "tokenizer.json").is_file():
        pytest.skip(f"no tokenizer {name} in the folder `shared` next to the project")
    shutil.copy(source / "tokenizer.json", folder)
    if SETTINGS[name]:
        (folder / "tokenizer_config.json").write_text(json.dumps(SETTINGS[name]))
    else:
        shutil.copy(source / "tokenizer_config.json", folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3" if name == "qwen3" else "bert"}))
    files = load_tokenizer_files(Checkpoint(str(folder), folder))
    settings = ChatSettings(tokenizer_template=files.chat_template, special_tokens=files.special_tokens)
    return make_model_tokenizer(files, str(folder), settings)


@pytest.fixture(params=SETTINGS)
def pair(request: pytest.FixtureRequest, default_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.getbasetemp() / f"tokenizer-{request.param}"
    folder.mkdir(exist_ok=True)
    return load_pair(request.param, default_folder, folder)


@pytest.fixture
def bert(default_folder: Path, tmp_path: Path) -> ModelTokenizer:
    """Not shared, since tests change it."""
    return load_ours("wordpiece", default_folder, tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_special_tokens": False},
        {"text_pair": ["a b", "c", "d e f g"]},
        {"truncation": True, "max_length": 8},
        {"max_length": 8},
        {"truncation": "only_first", "max_length": 7, "text_pair": ["a", "b", "c"]},
        {"truncation": "longest_first", "max_length": 9, "text_pair": ["a b", "c", "d e f g"]},
        {"padding": True},
        {"padding": "longest", "return_tensors": "pt"},
        {"padding": "max_length", "max_length": 40, "return_tensors": "np"},
        {"padding": True, "truncation": True, "max_length": 6, "return_tensors": "pt"},
        {"padding": True, "pad_to_multiple_of": 8},
        {"return_offsets_mapping": True},
        {"return_special_tokens_mask": True, "return_attention_mask": False, "return_token_type_ids": True},
        {"return_length": True},
    ],
    ids=str,
)
def test_a_call_returns_the_columns_of_transformers(pair: Pair, options: dict[str, Any]) -> None:
    ours, reference = pair.ours(TEXTS, **options), pair.reference(TEXTS, **options)

    assert set(ours) == set(reference)
    for name in reference:
        expected = reference[name]
        assert type(ours[name]) is type(expected)
        same = torch.equal if isinstance(expected, torch.Tensor) else np.array_equal
        is_array = isinstance(expected, torch.Tensor | np.ndarray)
        assert same(ours[name], expected) if is_array else ours[name] == expected
        assert getattr(ours, name) is ours[name]


def test_one_text_gives_flat_columns_and_a_batch_of_one_as_tensors(pair: Pair) -> None:
    assert dict(pair.ours(TEXT)) == dict(pair.reference(TEXT))
    assert dict(pair.ours(TEXT, "a pair")) == dict(pair.reference(TEXT, "a pair"))
    assert pair.ours(TEXT, return_tensors="pt").input_ids.shape == (1, len(pair.ours(TEXT)["input_ids"]))


def test_a_list_of_lists_is_a_list_of_pairs(pair: Pair) -> None:
    batch = [["a b", "c"], ["d", "e f"]]

    assert pair.ours(batch).input_ids == pair.reference(batch).input_ids


def test_words_are_encoded_as_they_are_split(bert: ModelTokenizer) -> None:
    encoded = bert(["playing", "chess"], is_split_into_words=True)

    assert encoded.tokens() == ["[CLS]", "playing", "chess", "[SEP]"]
    assert encoded.word_ids() == [None, 0, 1, None]


def test_ids_tokens_and_texts_convert_as_in_transformers(pair: Pair) -> None:
    ids = pair.reference.encode(TEXT)

    assert pair.ours.encode(TEXT) == ids
    assert pair.ours.encode(TEXT, "b", add_special_tokens=False) == pair.reference.encode(
        TEXT, "b", add_special_tokens=False
    )
    assert torch.equal(pair.ours.encode(TEXT, return_tensors="pt"), pair.reference.encode(TEXT, return_tensors="pt"))
    assert pair.ours.tokenize(TEXT) == pair.reference.tokenize(TEXT)
    assert pair.ours.convert_ids_to_tokens(ids) == pair.reference.convert_ids_to_tokens(ids)
    assert pair.ours.convert_ids_to_tokens(ids, skip_special_tokens=True) == pair.reference.convert_ids_to_tokens(
        ids, skip_special_tokens=True
    )
    assert pair.ours.convert_ids_to_tokens(ids[1]) == pair.reference.convert_ids_to_tokens(ids[1])
    tokens = [*pair.reference.tokenize(TEXT), "no such token"]
    assert pair.ours.convert_tokens_to_ids(tokens) == pair.reference.convert_tokens_to_ids(tokens)
    assert pair.ours.convert_tokens_to_string(tokens[:3]) == pair.reference.convert_tokens_to_string(tokens[:3])


@pytest.mark.parametrize("skip", [True, False])
def test_decoding_keeps_special_tokens_unless_told_otherwise(pair: Pair, skip: bool) -> None:
    ids = pair.reference(TEXTS)["input_ids"]

    assert pair.ours.decode(ids[1], skip_special_tokens=skip) == pair.reference.decode(ids[1], skip_special_tokens=skip)
    assert pair.ours.decode(ids[1]) == pair.reference.decode(ids[1])
    assert pair.ours.decode(torch.tensor(ids[1])) == pair.reference.decode(ids[1])
    assert pair.ours.decode(ids[1][1]) == pair.reference.decode(ids[1][1])
    assert pair.ours.batch_decode(ids, skip_special_tokens=skip) == pair.reference.batch_decode(
        ids, skip_special_tokens=skip
    )


@pytest.mark.parametrize(
    "ids",
    [
        [5, 6],
        (5, 6),
        [np.int64(5), np.int64(6)],
        [torch.tensor(5), torch.tensor(6)],
        [[np.int64(5)], [6, 7]],
        [torch.tensor([5, 6]), torch.tensor([7])],
        np.array([[5, 6], [7, 8]]),
        np.int64(5),
    ],
    ids=repr,
)
def test_ids_of_every_type_are_decoded_as_in_transformers(pair: Pair, ids: Any) -> None:
    assert pair.ours.decode(ids) == pair.reference.decode(ids)
    assert pair.ours.batch_decode(ids) == pair.reference.batch_decode(ids)


def test_positional_arguments_of_encode_are_those_of_transformers(pair: Pair) -> None:
    for args in [(TEXT, None, False), (TEXT, "b", True), (TEXT, None, True, "max_length", True, 9)]:
        assert pair.ours.encode(*args) == pair.reference.encode(*args)


def test_several_texts_are_encoded_one_by_one(pair: Pair) -> None:
    for texts in (["the", "cat"], ["the"], [("a", "b"), ("c", "d")]):
        assert pair.ours.encode(texts) == pair.reference.encode(texts)
    assert pair.ours.encode("", add_special_tokens=False) == []
    assert pair.ours.encode([""], add_special_tokens=False) == [[]]


PADDED = [{"input_ids": [5, 6, 7], "labels": 1.5}, {"input_ids": [8], "labels": 2.5}]


@pytest.mark.parametrize(
    ("encoded", "options"),
    [
        (PADDED, {}),
        (PADDED, {"return_tensors": "pt"}),
        (PADDED, {"padding": "max_length", "max_length": 6, "padding_side": "left"}),
        (PADDED, {"pad_to_multiple_of": 4, "return_attention_mask": False}),
        (PADDED, {"padding": False}),
        ({"input_ids": [5, 6]}, {"padding": "max_length", "max_length": 3}),
        ({"input_ids": [[5, 6], [7]], "token_type_ids": [[0, 1], [0]], "special_tokens_mask": [[1, 0], [1]]}, {}),
        ([{"input_ids": torch.tensor([5, 6])}, {"input_ids": torch.tensor([7])}], {}),
        ([{"input_ids": np.array([5, 6])}, {"input_ids": np.array([7])}], {}),
    ],
    ids=str,
)
def test_encoded_texts_are_padded_as_in_transformers(pair: Pair, encoded: Any, options: dict[str, Any]) -> None:
    ours, reference = pair.ours.pad(deepcopy(encoded), **options), pair.reference.pad(deepcopy(encoded), **options)

    assert set(ours) == set(reference)
    for name, expected in reference.items():
        assert type(ours[name]) is type(expected)
        assert getattr(ours[name], "dtype", None) == getattr(expected, "dtype", None)
        assert np.array_equal(ours[name], expected) if hasattr(expected, "dtype") else ours[name] == expected


def test_results_of_calls_can_be_padded(bert: ModelTokenizer) -> None:
    padded = bert.pad([bert("a"), bert("a b c")], return_tensors="pt")

    assert padded.attention_mask.tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
    assert torch.equal(padded.input_ids, bert(["a", "a b c"], padding=True, return_tensors="pt").input_ids)


@pytest.mark.parametrize(
    "pair", first_of(SETTINGS, lambda name: name not in ("wordpiece", "roberta-base")), indirect=True
)
def test_special_tokens_are_added_by_name_as_in_transformers(pair: Pair) -> None:
    ours, reference = deepcopy(pair.ours), deepcopy(pair.reference)  # once: a copy of a large vocabulary takes seconds
    text = "the <new> <other> <a><b> <c> [PAD]"

    for tokens in (
        {},
        {"additional_special_tokens": ["<a>", "<b>"]},
        {"extra_special_tokens": [AddedToken("<c>", special=True)]},
        {"pad_token": "[PAD]"},
        {"pad_token": "<new>", "cls_token": "<other>"},
    ):
        assert ours.add_special_tokens(tokens) == reference.add_special_tokens(tokens), tokens
        assert ours.encode(text, add_special_tokens=False) == reference.encode(text, add_special_tokens=False), tokens
        for name in ("pad_token", "pad_token_id", "cls_token", "cls_token_id"):
            assert getattr(ours, name) == getattr(reference, name), tokens
        assert ours.decode(ours.encode(text), skip_special_tokens=True) == reference.decode(
            reference.encode(text), skip_special_tokens=True
        ), tokens


def test_the_vocabulary_and_special_tokens_are_those_of_transformers(pair: Pair) -> None:
    ours, reference = pair

    assert (len(ours), ours.vocab_size) == (len(reference), reference.vocab_size)
    assert ours.get_vocab() == reference.get_vocab()
    assert ours.get_added_vocab() == reference.get_added_vocab()
    for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"):
        assert getattr(ours, f"{name}_token") == getattr(reference, f"{name}_token")
        assert getattr(ours, f"{name}_token_id") == getattr(reference, f"{name}_token_id")
    assert set(ours.all_special_tokens) == set(reference.all_special_tokens)
    assert set(ours.all_special_ids) == set(reference.all_special_ids)
    assert ours.num_special_tokens_to_add(pair=True) == reference.num_special_tokens_to_add(pair=True)


@pytest.mark.parametrize("name", ["truncation_side", "padding_side", "model_max_length", "is_fast", "name_or_path"])
def test_settings_are_those_of_transformers(pair: Pair, name: str) -> None:
    assert getattr(pair.ours, name) == getattr(pair.reference, name)


def test_sides_can_be_changed(bert: ModelTokenizer) -> None:
    bert.truncation_side = bert.padding_side = "left"

    assert bert("a b c d", truncation=True, max_length=4).tokens() == ["[CLS]", "c", "d", "[SEP]"]
    assert bert(["a", "b c"], padding=True).tokens(0) == ["[PAD]", "[CLS]", "a", "[SEP]"]


def test_truncation_without_a_length_uses_that_of_the_model(bert: ModelTokenizer) -> None:
    assert len(bert("a " * 50, truncation=True)["input_ids"]) == bert.model_max_length == 12
    assert len(bert("a " * 50)["input_ids"]) == 52  # a call changes no settings


# chat


@pytest.fixture
def qwen(default_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.getbasetemp() / "tokenizer-qwen3"
    folder.mkdir(exist_ok=True)
    return load_pair("qwen3", default_folder, folder)


@pytest.mark.parametrize("options", [{}, {"add_generation_prompt": True}, {"enable_thinking": False}], ids=str)
def test_a_chat_template_renders_as_in_transformers(qwen: Pair, options: dict[str, Any]) -> None:
    text = qwen.reference.apply_chat_template(MESSAGES, tokenize=False, **options)

    assert qwen.ours.apply_chat_template(MESSAGES, tokenize=False, **options) == text
    assert qwen.ours.apply_chat_template([MESSAGES, MESSAGES], tokenize=False, **options) == [text, text]
    ids = qwen.reference.apply_chat_template(MESSAGES, return_dict=False, **options)
    assert qwen.ours.apply_chat_template(MESSAGES, **options) == ids
    assert qwen.ours.apply_chat_template(MESSAGES, return_tensors="pt", **options).tolist() == [ids]
    assert qwen.ours.apply_chat_template(MESSAGES, return_dict=True, **options).input_ids == ids
    assert qwen.ours.chat_template == qwen.reference.chat_template


def test_a_chat_template_can_be_passed_or_set_and_a_missing_one_is_an_error(bert: ModelTokenizer) -> None:
    template = "{% for message in messages %}{{ message.content }}{{ sep_token }}{% endfor %}{{ mood }}"

    with pytest.raises(BadRequest, match="chat template"):
        bert.apply_chat_template(MESSAGES, tokenize=False)
    passed = bert.apply_chat_template(MESSAGES, chat_template=template, tokenize=False, mood="calm")
    bert.chat_template = template

    assert passed == "Be brief.[SEP]Hello![SEP]calm"
    assert bert.apply_chat_template(MESSAGES, tokenize=False, mood="calm") == passed


# other


def test_methods_of_the_tokenizers_library_still_work(bert: ModelTokenizer) -> None:
    encoding = bert.encode("hello world", "again")

    assert encoding == encoding.ids == [101, 7592, 2088, 102, 2153, 102]
    assert encoding.type_ids == [0, 0, 0, 0, 1, 1]
    assert encoding.offsets[1] == (0, 5)
    assert bert.token_to_id("[CLS]") == 101
    assert bert.id_to_token(101) == "[CLS]"
    assert [item.ids for item in bert.encode_batch(["hello"])] == [[101, 7592, 102]]
    bert.enable_truncation(3)
    assert bert.encode("hello world again").ids == [101, 7592, 102]


def test_arguments_of_the_tokenizers_library_still_work(bert: ModelTokenizer) -> None:
    assert bert.encode(sequence="hello world", pair="again").type_ids == [0, 0, 0, 0, 1, 1]
    assert bert.encode(sequence=["hello", "world"], is_pretokenized=True) == [101, 7592, 2088, 102]
    assert bert.add_special_tokens(["<a>"]) == bert.add_special_tokens(tokens=["<b>"]) == 1
    assert bert.tokenize("<a><b>") == ["<a>", "<b>"]


def test_attributes_of_the_tokenizers_library_can_be_set(bert: ModelTokenizer) -> None:
    assert bert.tokenize("Hello") == ["hello"]
    bert.normalizer = None
    bert.some_note = "kept"

    assert bert.backend_tokenizer.normalizer is None
    assert bert.tokenize("Hello") == ["[UNK]"]
    assert (bert.some_note, pickle.loads(pickle.dumps(bert)).normalizer) == ("kept", None)


def test_it_can_be_pickled(bert: ModelTokenizer) -> None:
    copy = pickle.loads(pickle.dumps(bert))

    assert copy(TEXT, return_tensors="np").input_ids.tolist() == [bert.encode(TEXT)]
    assert pickle.loads(pickle.dumps(bert.encode(TEXT))) == bert.encode(TEXT)
    assert copy.cls_token_id == 101


def test_a_padding_token_can_be_set(qwen: Pair) -> None:
    tokenizer = pickle.loads(pickle.dumps(qwen.ours))
    tokenizer.pad_token = None

    with pytest.raises(BadRequest, match="padding token"):
        tokenizer(TEXTS, padding=True)
    tokenizer.pad_token = tokenizer.eos_token

    assert tokenizer(["a", "b c"], padding=True).input_ids[0][-1] == tokenizer.eos_token_id == tokenizer.pad_token_id


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda tokenizer: tokenizer(TEXTS, return_tensors="pt"), "activate truncation and/or padding"),
        (lambda tokenizer: tokenizer(TEXTS, return_tensors="tf"), "return_tensors='tf'"),
        (lambda tokenizer: tokenizer(TEXTS, padding="wide"), "padding='wide'"),
        (lambda tokenizer: tokenizer(TEXTS, truncation="some"), "truncation='some'"),
        (lambda tokenizer: tokenizer.pad([{"ids": [1]}]), "with input_ids"),
        (lambda tokenizer: tokenizer.pad({"input_ids": [1]}, padding="wide"), "padding='wide'"),
        (lambda tokenizer: tokenizer.add_special_tokens({"token": "a"}), "'token' is not the name of a special token"),
        (lambda tokenizer: tokenizer.add_special_tokens({"pad_token_id": "a"}), "'pad_token_id' is not the name"),
        (lambda tokenizer: tokenizer.add_special_tokens({"pad_token": 3}), "pad_token=3"),
        (lambda tokenizer: tokenizer.encode(), "text input must be of type"),
        (lambda tokenizer: tokenizer(3), "text input must be of type"),
        (lambda tokenizer: tokenizer(TEXTS, ["one"]), "same length, got 3 and 1"),
    ],
)
def test_wrong_arguments_are_refused(bert: ModelTokenizer, call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(bert)
