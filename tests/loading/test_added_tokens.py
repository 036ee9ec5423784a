"""Special tokens that stand only beside tokenizer.json get the ids that AutoTokenizer gives them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cenote.loading.checkpoint import Checkpoint
from cenote.loading.tokenizer_files import load_tokenizer_files
from tests.layouts.tokenizers import write_json, write_tokenizer
from tests.loading.tokenizer_parity import MODEL_TYPES, change, read_ids

TEXTS = (
    "the<new1>cat <new2> sat the <NEW3>cat [MASK]<mask><msk>x",
    "<new2><new1> Deep<img>water deep [SEP]</s>",
    "plain text",
    "é<new1>É <new2>",
)
NEW = ["<new1>", "<new2>"]


def token(text: str, **flags: bool) -> dict[str, Any]:
    return {"__type": "AddedToken", **plain(text, **flags)}


def plain(text: str, **flags: bool) -> dict[str, Any]:
    return {"content": text, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, **flags}


# changes of tokenizer_config.json, of special_tokens_map.json, and tokens of added_tokens.json
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "additional": ({"additional_special_tokens": NEW}, {}, []),
    "extra": ({"extra_special_tokens": NEW}, {}, []),
    "extra by name": ({"extra_special_tokens": {"boi_token": "<new1>", "eoi_token": "<new2>"}}, {}, []),
    "extra and additional": ({"extra_special_tokens": NEW[:1], "additional_special_tokens": NEW[1:]}, {}, []),
    "with flags": ({"additional_special_tokens": [token("<new1>", lstrip=True), token("<new2>")]}, {}, []),
    "normalized": ({"extra_special_tokens": [token("<NEW3>", normalized=True)]}, {}, []),
    "map": ({}, {"additional_special_tokens": NEW}, []),
    "map with extra": ({}, {"extra_special_tokens": NEW}, []),
    "map and settings": ({"additional_special_tokens": NEW[:1]}, {"additional_special_tokens": NEW[1:]}, []),
    "map and settings, extra": ({"extra_special_tokens": NEW[:1]}, {"extra_special_tokens": NEW[1:]}, []),
    "listed": ({}, {}, NEW),
    "listed capitals": ({}, {}, ["<NEW3>"]),
    "listed, one special": ({"additional_special_tokens": NEW[1:]}, {}, NEW),
    "mask in the map": ({}, {"mask_token": "<msk>"}, []),
    "mask with flags": ({}, {"mask_token": plain("<msk>", lstrip=True)}, []),
    "image": ({"image_token": "<img>"}, {}, []),
    "image in the map": ({}, {"image_token": "<img>"}, []),
    "in the vocabulary": ({"additional_special_tokens": ["water"]}, {}, []),
}


def write_case(folder: Path, kind_name: str, case: str) -> dict[str, int]:
    settings, older, listed = CASES[case]
    vocabulary = write_tokenizer(folder, kind_name, settings)
    write_json(folder / "config.json", {"model_type": MODEL_TYPES[kind_name]})
    change(folder / "special_tokens_map.json", **older)
    if listed:
        write_json(folder / "added_tokens.json", {text: len(vocabulary) + row for row, text in enumerate(listed)})
    return vocabulary


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind_name", ["bert-uncased", "mpnet", "roberta", "xlm-roberta", "qwen3-embedding", "gemma"])
def test_tokens_have_the_ids_of_transformers(tmp_path: Path, kind_name: str, case: str) -> None:
    write_case(tmp_path, kind_name, case)

    for changes in ({}, {"tokenizer_class": "PreTrainedTokenizerFast"}):
        change(tmp_path / "tokenizer_config.json", **changes)
        ours, theirs = read_ids(tmp_path, TEXTS)
        assert ours == theirs, changes


@pytest.mark.parametrize("case", CASES)
def test_with_added_tokens_decoder_the_older_files_are_not_read(tmp_path: Path, case: str) -> None:
    write_case(tmp_path, "bert-uncased", case)
    stored = json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]
    decoder = {entry["id"]: {key: value for key, value in entry.items() if key != "id"} for entry in stored}
    change(tmp_path / "tokenizer_config.json", added_tokens_decoder=decoder)

    ours, theirs = read_ids(tmp_path, TEXTS)

    assert ours == theirs


def test_new_tokens_follow_the_vocabulary(tmp_path: Path) -> None:
    vocabulary = write_case(tmp_path, "bert-uncased", "additional")

    tokenizer = load_tokenizer_files(Checkpoint("test", tmp_path)).tokenizer

    assert [tokenizer.token_to_id(text) for text in NEW] == [len(vocabulary), len(vocabulary) + 1]
    assert tokenizer.encode("<new1>").ids[1:-1] == [len(vocabulary)]


def test_tokens_without_their_type_are_read_where_transformers_fails(tmp_path: Path) -> None:
    """Lists of objects, which Transformers 4 wrote to special_tokens_map.json."""
    write_tokenizer(tmp_path, "bert-uncased", {})
    change(tmp_path / "special_tokens_map.json", additional_special_tokens=[plain("<new1>")])

    tokenizer = load_tokenizer_files(Checkpoint("test", tmp_path)).tokenizer

    assert tokenizer.token_to_id("<new1>") is not None
