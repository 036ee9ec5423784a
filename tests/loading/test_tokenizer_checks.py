"""A tokenizer that contradicts config.json is refused, or named in a warning."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from cenote import LLM
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.tokenizer_checks import check_tokenizer
from cenote.loading.tokenizer_files import load_tokenizer_files
from cenote.models.architecture import HFConfig
from tests import vocabularies as vocabulary
from tests.tiny import save_tiny, save_tokenizer
from tests.vocabularies import write_json

CAMEMBERT_IDS = {"bos_token_id": 5, "eos_token_id": 6, "pad_token_id": 1}


def check(folder: Path, vocab_size: int = 1000, **config: Any) -> None:
    check_tokenizer(
        load_tokenizer_files(Checkpoint("test", folder)), HFConfig(config, "config.json"), vocab_size, folder
    )


def test_a_class_whose_special_ids_contradict_the_config_is_refused(tmp_path: Path, refused: Any) -> None:
    vocabulary.fairseq_pieces(tmp_path)
    write_json(tmp_path, "tokenizer_config.json", tokenizer_class="XLMRobertaTokenizer")  # it is CamembertTokenizer

    with refused(
        str(tmp_path), "'<s>' (id 0) and '</s>' (id 2)", "config.json has 5 and 6", "set the tokenizer option"
    ):
        check(tmp_path, **CAMEMBERT_IDS)
    write_json(tmp_path, "tokenizer_config.json", tokenizer_class="CamembertTokenizer")
    check(tmp_path, **CAMEMBERT_IDS)


def test_a_tokenizer_json_that_contradicts_the_config_is_named_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_tokenizer(tmp_path)

    with caplog.at_level(logging.WARNING, logger="cenote"):
        check(tmp_path, bos_token_id=5, eos_token_id=6)
    assert "'[CLS]' (id 2) and '[SEP]' (id 3) around texts, config.json has 5 and 6" in caplog.text


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"cls_token_id": 2, "bos_token_id": 50, "sep_token_id": 51, "eos_token_id": 52},  # one end agrees
        {"cls_token_id": 9, "bos_token_id": 2, "sep_token_id": 9, "eos_token_id": [7, 3]},
        {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1},  # defaults of ConvBERT's config class
        {"bos_token_id": 0, "eos_token_id": 0, "eos_token_ids": 0, "pad_token_id": 0},  # of Transformers 2
        {"bos_token_id": None, "eos_token_id": None},
        {"pad_token_id": 77, "mask_token_id": 78},
        {"eos_token_id": 52},
    ],
)
def test_ids_that_are_known_to_be_stale_are_accepted(
    tmp_path: Path, config: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    save_tokenizer(tmp_path)

    with caplog.at_level(logging.WARNING, logger="cenote"):
        check(tmp_path, **config)
    assert not caplog.text


def test_a_special_token_outside_the_embedding_table_is_refused(tmp_path: Path, refused: Any) -> None:
    vocabulary.byte_level_pieces(tmp_path, ())  # as published without added_tokens.json
    write_json(tmp_path, "tokenizer_config.json", tokenizer_class="GPT2Tokenizer", add_bos_token=True)

    with refused("'<|endoftext|>' with id", "the model has 500 tokens", "tokenizer option"):
        check(tmp_path, vocab_size=500)


def test_the_tokenizer_of_another_model_is_refused(tmp_path: Path, refused: Any) -> None:
    save_tiny(tmp_path / "model", "BertModel")
    (tmp_path / "other").mkdir()
    vocabulary.fairseq_pieces(tmp_path / "other")
    write_json(tmp_path / "other", "tokenizer_config.json", tokenizer_class="XLMRobertaTokenizer")

    with refused("other: the tokenizer has", "the model 160", "set the tokenizer option"):
        LLM(str(tmp_path / "model"), tokenizer=str(tmp_path / "other"))
