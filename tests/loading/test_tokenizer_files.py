"""Tokenizers from tokenizer.json and from older vocabulary files equal the originals."""

from __future__ import annotations

import base64
import json
import shutil
import struct
import warnings
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from cenote.inputs import tokenizer as inputs
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.tokenizer_files import load_tokenizer_files

WORDS = {
    "[PAD]": 0,
    "[UNK]": 1,
    "[CLS]": 2,
    "[SEP]": 3,
    "[MASK]": 4,
    "hello": 5,
    "world": 6,
    "a": 7,
    "<s>": 8,
    "</s>": 9,
}
TEXTS = [
    "Hello, world!",
    "  leading and   double  spaces",
    "naïve café — “quotes” ½ ﬁ",
    "Ünïcödé 你好 мир 🙂 👩‍👩‍👧",
    "tab\tand\nline",
    "",
    "1234567 3.14 don't I'LL",
    "한국어 العربية हिन्दी",
    "a" * 50,
    "\u200b\u00a0ｆｕｌｌ ｗｉｄｔｈ",
]


def word_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(WORDS, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def saved(folder: Path, tokenizer: Tokenizer, **files: Any) -> Checkpoint:
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))
    return Checkpoint("test", folder)


def settings(folder: Path, **values: Any) -> Checkpoint:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    return Checkpoint("test", folder)


def original(path: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def assert_same(actual: Tokenizer, expected: Tokenizer, texts: list[str] = TEXTS) -> None:
    for text in texts:
        assert actual.encode(text).ids == expected.encode(text).ids, text
    one, other = actual.encode("hello there", "a b c"), expected.encode("hello there", "a b c")
    assert (one.ids, one.type_ids) == (other.ids, other.type_ids)


def test_stored_truncation_and_padding_are_switched_off_but_remembered(tmp_path: Path) -> None:
    tokenizer = word_tokenizer()
    tokenizer.enable_truncation(2, direction="left")
    tokenizer.enable_padding(length=9, pad_id=3)

    files = load_tokenizer_files(saved(tmp_path, tokenizer))

    assert files.tokenizer.encode("hello world a").ids == [5, 6, 7]
    assert files.truncation_side == "left"
    assert files.pad_token_id == 3
    assert files.unk_token_id == 1


def test_the_settings_are_read(tmp_path: Path) -> None:
    config = {
        "truncation_side": "left",
        "model_max_length": 77,
        "pad_token": {"content": "[PAD]"},
        "unk_token": "[UNK]",
        "chat_template": "{{ messages }}",
    }

    files = load_tokenizer_files(saved(tmp_path, word_tokenizer(), tokenizer_config=config))

    assert (files.truncation_side, files.model_max_length) == ("left", 77)
    assert (files.pad_token_id, files.unk_token_id) == (0, 1)
    assert files.chat_template == "{{ messages }}"


def test_special_tokens_may_be_in_special_tokens_map(tmp_path: Path) -> None:
    files = load_tokenizer_files(saved(tmp_path, word_tokenizer(), special_tokens_map={"pad_token": "[PAD]"}))

    assert files.pad_token_id == 0


def test_an_absurd_length_is_none(tmp_path: Path) -> None:
    config = {"model_max_length": 1000000000000000019884624838656}

    assert load_tokenizer_files(saved(tmp_path, word_tokenizer(), tokenizer_config=config)).model_max_length is None


def test_an_invalid_truncation_side_is_refused(tmp_path: Path, refused: Any) -> None:
    with refused("tokenizer_config.json", "'up'"):
        load_tokenizer_files(saved(tmp_path, word_tokenizer(), tokenizer_config={"truncation_side": "up"}))


def test_a_chat_template_file_takes_precedence_over_the_settings(tmp_path: Path) -> None:
    several = [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]
    checkpoint = saved(tmp_path, word_tokenizer(), tokenizer_config={"chat_template": several})

    assert load_tokenizer_files(checkpoint).chat_template == "d"
    (tmp_path / "chat_template.jinja").write_text("from the file")
    assert load_tokenizer_files(checkpoint).chat_template == "from the file"
    assert load_tokenizer_files(checkpoint).tokenizer_config["chat_template"] == "from the file"


def test_a_chat_template_may_be_in_chat_template_json(tmp_path: Path) -> None:
    checkpoint = saved(
        tmp_path, word_tokenizer(), chat_template={"chat_template": "its own"}, tokenizer_config={"chat_template": "x"}
    )

    assert load_tokenizer_files(checkpoint).chat_template == "its own"


@pytest.mark.parametrize("template", [None, 7, [], ["text"], [{"name": "tool", "template": "t"}], {"default": "d"}])
def test_what_is_no_default_chat_template_is_none(tmp_path: Path, template: Any) -> None:
    checkpoint = saved(tmp_path, word_tokenizer(), tokenizer_config={"chat_template": template})

    assert load_tokenizer_files(checkpoint).chat_template is None


def test_special_tokens_are_known_by_name(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>", "unk_token": None}
    checkpoint = saved(
        tmp_path, word_tokenizer(), tokenizer_config=config, special_tokens_map={"pad_token": "[PAD]", "eos_token": "x"}
    )

    # as in Transformers, the older file takes precedence, except over settings with added_tokens_decoder
    expected = {"bos_token": "<s>", "eos_token": "x", "pad_token": "[PAD]"}
    assert load_tokenizer_files(checkpoint).special_tokens == expected
    checkpoint = settings(tmp_path, added_tokens_decoder={}, **config)
    assert load_tokenizer_files(checkpoint).special_tokens == expected | {"eos_token": "</s>"}


def test_the_tokenizer_config_is_returned_unchanged(tmp_path: Path) -> None:
    config = {"tokenizer_class": "BertTokenizer", "model_max_length": 10**30, "extra": {"a": [1]}}
    checkpoint = saved(tmp_path, word_tokenizer(), tokenizer_config=config)

    assert load_tokenizer_files(checkpoint).tokenizer_config == {**config, "model_max_length": 1e30}


def test_without_settings_the_tokenizer_still_has_a_class(tmp_path: Path) -> None:
    assert load_tokenizer_files(saved(tmp_path, word_tokenizer())).tokenizer_config == {
        "tokenizer_class": "PreTrainedTokenizerFast"
    }


def test_cleaning_up_spaces_is_not_for_byte_level_pieces(tmp_path: Path) -> None:
    config = {"clean_up_tokenization_spaces": True}
    pieces = Tokenizer(models.BPE({"a": 0}, []))

    assert load_tokenizer_files(saved(tmp_path, word_tokenizer(), tokenizer_config=config)).clean_up_spaces
    assert not load_tokenizer_files(saved(tmp_path, pieces, tokenizer_config=config)).clean_up_spaces
    assert not load_tokenizer_files(saved(tmp_path, word_tokenizer(), tokenizer_config={})).clean_up_spaces


@pytest.mark.parametrize(
    ("config", "single", "pair"),
    [
        ({}, [7], [7, 5]),
        ({"add_bos_token": True}, [8, 7], [8, 7, 8, 5]),
        ({"add_eos_token": True}, [7, 9], [7, 9, 5, 9]),
        ({"add_bos_token": True, "add_eos_token": True}, [8, 7, 9], [8, 7, 9, 8, 5, 9]),
    ],
)
def test_begin_and_end_are_added_when_the_settings_ask_for_them(
    tmp_path: Path, config: dict[str, Any], single: list[int], pair: list[int]
) -> None:
    names = {"bos_token": "<s>", "eos_token": "</s>"}

    tokenizer = load_tokenizer_files(saved(tmp_path, word_tokenizer(), tokenizer_config=config | names)).tokenizer

    assert tokenizer.encode("a").ids == single
    assert tokenizer.encode("a", "hello").ids == pair
    assert tokenizer.encode("a", add_special_tokens=False).ids == [7]


def test_an_end_is_added_to_a_template_that_has_only_the_begin(tmp_path: Path) -> None:
    tokenizer = word_tokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 8)])
    config = {"add_bos_token": True, "add_eos_token": True, "bos_token": "<s>", "eos_token": "</s>"}

    actual = load_tokenizer_files(saved(tmp_path, tokenizer, tokenizer_config=config)).tokenizer

    assert actual.encode("a").ids == [8, 7, 9]


def test_a_template_with_other_tokens_is_kept(tmp_path: Path) -> None:
    tokenizer = word_tokenizer()
    around = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=around)
    config = {"add_eos_token": True, "eos_token": "</s>"}

    assert load_tokenizer_files(saved(tmp_path, tokenizer, tokenizer_config=config)).tokenizer.encode("a").ids == [
        2,
        7,
        3,
    ]


def test_case_settings_of_the_config_take_precedence(tmp_path: Path) -> None:
    tokenizer = word_tokenizer()
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)

    def read_ids(**config: Any) -> list[int]:
        checkpoint = saved(tmp_path, tokenizer, tokenizer_config=config)
        return load_tokenizer_files(checkpoint).tokenizer.encode("HELLO", add_special_tokens=False).ids

    assert read_ids() == [1]
    assert read_ids(do_lower_case=True, tokenizer_class="BertTokenizer") == [5]
    # a generic class, whose do_lower_case is ignored
    assert read_ids(do_lower_case=True, tokenizer_class="PreTrainedTokenizerFast") == [1]


def test_tokens_that_only_the_settings_list_are_added_under_their_ids(tmp_path: Path, refused: Any) -> None:
    more = {"10": {"content": "<new>", "special": True}}
    checkpoint = saved(tmp_path, word_tokenizer(), tokenizer_config={"added_tokens_decoder": more})

    assert load_tokenizer_files(checkpoint).tokenizer.encode("hello<new>").ids == [5, 10]
    more = {"99": {"content": "<new>", "special": True}}
    with refused("tokenizer_config.json", "'<new>' the id 99"):
        load_tokenizer_files(saved(tmp_path, word_tokenizer(), tokenizer_config={"added_tokens_decoder": more}))


def test_the_error_for_a_missing_tokenizer_lists_the_expected_files(tmp_path: Path, refused: Any) -> None:
    with refused("expected one of tokenizer.json, vocab.txt", "tokenizer.model"):
        load_tokenizer_files(Checkpoint("test", tmp_path))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_tokenizer_that_was_cut_is_named(tmp_path: Path, share: float, refused: Any) -> None:
    checkpoint = saved(tmp_path, word_tokenizer())
    whole = (tmp_path / "tokenizer.json").read_bytes()
    (tmp_path / "tokenizer.json").write_bytes(whole[: int(len(whole) * share)])

    with refused("tokenizer.json"):
        load_tokenizer_files(checkpoint)


def test_a_panic_of_the_tokenizer_library_is_an_error_like_any_other(tmp_path: Path, refused: Any) -> None:
    checkpoint = saved(tmp_path, word_tokenizer())
    values = json.loads((tmp_path / "tokenizer.json").read_bytes())
    values["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "no base64!"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))

    with refused("tokenizer.json", "download it again"):
        load_tokenizer_files(checkpoint)


def wordpiece_folder(folder: Path, words: dict[str, int] = WORDS, **config: Any) -> Checkpoint:
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    (folder / "config.json").write_text(json.dumps({"vocab_size": len(WORDS)}))
    return settings(folder, tokenizer_class="BertTokenizer", **config)


def test_vocab_txt_gives_a_bert_tokenizer(tmp_path: Path) -> None:
    files = load_tokenizer_files(wordpiece_folder(tmp_path))

    encoded = files.tokenizer.encode("HELLO", "wörld")
    assert encoded.ids == [2, 5, 3, 6, 3]
    assert encoded.type_ids == [0, 0, 0, 1, 1]
    assert files.tokenizer.encode("[MASK]").ids == [2, 4, 3]
    assert (files.pad_token_id, files.unk_token_id) == (0, 1)


def test_a_cased_vocabulary_keeps_the_case(tmp_path: Path) -> None:
    checkpoint = wordpiece_folder(tmp_path, do_lower_case=False)

    assert load_tokenizer_files(checkpoint).tokenizer.encode("hello HELLO").ids == [2, 5, 1, 3]


def test_half_a_vocabulary_is_refused(tmp_path: Path, refused: Any) -> None:
    with refused("vocab.txt has 5 tokens, config.json 10"):
        load_tokenizer_files(wordpiece_folder(tmp_path, dict(list(WORDS.items())[:5])))


def test_a_vocabulary_without_its_special_tokens_is_refused(tmp_path: Path, refused: Any) -> None:
    with refused("vocab.txt has no [CLS]"):
        load_tokenizer_files(wordpiece_folder(tmp_path, {f"w{row}": row for row in range(10)} | {"[UNK]": 10}))


def test_real_word_pieces_are_as_in_the_tokenizers_own_file(tmp_path: Path, shared: Path) -> None:
    folder = shared / "models" / "ms-marco-MiniLM-L12-v2"
    for file in ("vocab.txt", "tokenizer_config.json", "config.json"):
        shutil.copyfile(folder / file, tmp_path / file)

    files = load_tokenizer_files(Checkpoint("test", tmp_path))

    assert_same(files.tokenizer, original(folder / "tokenizer.json"), [*TEXTS, "a [SEP] b [MASK]"])


def byte_level_folder(folder: Path, tokenizer_json: Path) -> None:
    """Write vocab.json and merges.txt from a tokenizer.json."""
    model = json.loads(tokenizer_json.read_bytes())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "kind"), [("roberta-base", "RobertaTokenizer"), ("gpt2", "GPT2Tokenizer"), ("qwen3", "Qwen2Tokenizer")]
)
def test_real_byte_pairs_are_as_in_the_tokenizers_own_file(tmp_path: Path, name: str, kind: str, shared: Path) -> None:
    folder = shared / "tokenizers" / name
    byte_level_folder(tmp_path, folder / "tokenizer.json")
    if (folder / "tokenizer_config.json").exists():
        shutil.copyfile(folder / "tokenizer_config.json", tmp_path / "tokenizer_config.json")
    else:
        settings(tmp_path, tokenizer_class=kind)

    files = load_tokenizer_files(Checkpoint("test", tmp_path))

    assert_same(files.tokenizer, original(folder / "tokenizer.json"), [*TEXTS, "<|im_end|> <mask> </s> <|endoftext|>"])


@pytest.mark.parametrize("file", ["vocab.json", "merges.txt"])
@pytest.mark.parametrize("share", [None, 0.0, 0.5])
def test_byte_pairs_that_were_cut_are_named(
    tmp_path: Path, file: str, share: float | None, shared: Path, refused: Any
) -> None:
    byte_level_folder(tmp_path, shared / "tokenizers" / "gpt2" / "tokenizer.json")
    checkpoint = settings(tmp_path, tokenizer_class="GPT2Tokenizer")
    whole = (tmp_path / file).read_bytes()
    (tmp_path / file).unlink() if share is None else (tmp_path / file).write_bytes(whole[: int(len(whole) * share)])

    with refused(file if share is not None or file == "merges.txt" else "expected one of", "download"):
        load_tokenizer_files(checkpoint)


@pytest.mark.parametrize(("file", "kind"), [("vocab.json", "CTRLTokenizer"), ("spiece.model", "BigBirdTokenizer")])
def test_a_class_that_cannot_be_rebuilt_is_refused(tmp_path: Path, file: str, kind: str, refused: Any) -> None:
    (tmp_path / file).write_text("{}")
    (tmp_path / "merges.txt").write_text("a b\n")

    with refused("tokenizer_config.json", kind, "writes tokenizer.json, or set the tokenizer option"):
        load_tokenizer_files(settings(tmp_path, tokenizer_class=kind))


def test_a_real_unigram_model_is_as_in_the_tokenizers_own_file(tmp_path: Path, shared: Path) -> None:
    folder = shared / "tokenizers" / "deberta-v3"
    shutil.copyfile(folder / "spm.model", tmp_path / "spm.model")

    files = load_tokenizer_files(settings(tmp_path, tokenizer_class="DebertaV2Tokenizer"))

    assert_same(files.tokenizer, original(folder / "tokenizer.json"), [*TEXTS, "a [SEP] b [MASK] c"])
    assert (files.pad_token_id, files.unk_token_id) == (0, 3)


def test_a_real_byte_pair_model_is_as_sentencepiece_has_it(tmp_path: Path, shared: Path) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    shutil.copyfile(shared / "tokenizers" / "mistral-v1" / "tokenizer.model", tmp_path / "tokenizer.model")

    tokenizer = load_tokenizer_files(
        settings(tmp_path, tokenizer_class="LlamaTokenizerFast", add_eos_token=True)
    ).tokenizer

    reference = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    for text in [*TEXTS, "trailing space "]:
        assert tokenizer.encode(text).ids == [1, *reference.encode(text), 2], text
    assert tokenizer.encode("</s>").ids == [1, 2, 2]
    assert tokenizer.decode(tokenizer.encode("Hello, 🙂 world").ids) == "Hello, 🙂 world"


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def sentencepiece_file(pieces: list[tuple[str, float, int]], charsmap: bytes = b"", algorithm: int = 1) -> bytes:
    """Encode a SentencePiece model file: pieces, trainer spec, normalizer spec."""
    lines = [
        field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(kind))
        for text, score, kind in pieces
    ]
    return b"".join(lines) + field(2, b"\x18" + varint(algorithm)) + field(3, field(2, charsmap))


def test_a_fairseq_vocabulary_is_shifted_as_in_the_tokenizers_own_file(tmp_path: Path, shared: Path) -> None:
    path = shared / "tokenizers" / "xlm-roberta" / "tokenizer.json"
    values = json.loads(path.read_bytes())
    charsmap = base64.b64decode(values["normalizer"]["normalizers"][0]["precompiled_charsmap"])
    pieces = [(text, score, 1) for text, score in values["model"]["vocab"][4:-1]]
    head = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    (tmp_path / "sentencepiece.bpe.model").write_bytes(sentencepiece_file(head + pieces, charsmap))

    files = load_tokenizer_files(settings(tmp_path, tokenizer_class="XLMRobertaTokenizer"))

    assert_same(files.tokenizer, original(path))
    assert files.tokenizer.token_to_id("<mask>") == 250001
    # tokenizer.json keeps a trailing space, SentencePiece does not
    assert files.tokenizer.encode("hello ").ids == files.tokenizer.encode("hello").ids


def test_t5_ends_its_texts_and_has_a_hundred_sentinel_tokens(tmp_path: Path) -> None:
    pieces = [("<pad>", 0.0, 3), ("</s>", 0.0, 3), ("<unk>", 0.0, 2), ("▁a", -1.0, 1), ("▁", -2.0, 1), ("b", -2.0, 1)]
    model = sentencepiece_file(pieces).replace(b"\x18\x01\x1a\x02\x12\x00", b"\x18\x01\xc0\x02\x02\x1a\x02\x12\x00")
    model = model.replace(b"\x12\x02\x18\x01\xc0", b"\x12\x05\x18\x01\xc0")  # trainer spec with unk_id 2
    (tmp_path / "spiece.model").write_bytes(model)

    files = load_tokenizer_files(settings(tmp_path, tokenizer_class="T5Tokenizer"))

    assert files.tokenizer.encode("a b ?").ids == [3, 4, 5, 4, 2, 1]
    assert files.tokenizer.token_to_id("<extra_id_99>") == 6
    assert files.tokenizer.token_to_id("<extra_id_0>") == 105


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.95])
def test_a_sentencepiece_model_that_was_cut_is_named(tmp_path: Path, share: float, shared: Path, refused: Any) -> None:
    whole = (shared / "tokenizers" / "mistral-v1" / "tokenizer.model").read_bytes()
    (tmp_path / "tokenizer.model").write_bytes(whole[: int(len(whole) * share)])

    with refused("tokenizer.model", "download it again"):
        load_tokenizer_files(settings(tmp_path, tokenizer_class="LlamaTokenizer"))


@pytest.mark.parametrize("content", [b"\xff" * 100, b"hello, this is text", b"\x00" * 10, field(1, b"")])
def test_an_invalid_sentencepiece_model_is_named(tmp_path: Path, content: bytes, refused: Any) -> None:
    (tmp_path / "spm.model").write_bytes(content)

    with refused("spm.model", "download it again"):
        load_tokenizer_files(settings(tmp_path, tokenizer_class="DebertaV2Tokenizer"))


def test_a_vocabulary_without_what_goes_around_texts_is_named(tmp_path: Path, refused: Any) -> None:
    (tmp_path / "spm.model").write_bytes(sentencepiece_file([("<unk>", 0.0, 2), ("a", -1.0, 1)]))

    with refused("spm.model", "the vocabulary has no [CLS]"):
        load_tokenizer_files(settings(tmp_path, tokenizer_class="DebertaV2Tokenizer"))


def test_a_word_level_sentencepiece_model_is_refused(tmp_path: Path, refused: Any) -> None:
    (tmp_path / "spm.model").write_bytes(sentencepiece_file([("a", 0.0, 1)], algorithm=3))

    with refused("spm.model was trained as type 3"):
        load_tokenizer_files(settings(tmp_path, tokenizer_class="DebertaV2Tokenizer"))


@pytest.mark.parametrize("name", ["ms-marco-MiniLM-L12-v2", "granite-embedding-30m-english"])
def test_a_real_checkpoint_is_tokenized_as_transformers_does(name: str, shared: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        reference = AutoTokenizer.from_pretrained(shared / "models" / name)  # type: ignore[no-untyped-call]

    files = load_tokenizer_files(Checkpoint(name, shared / "models" / name))

    for text in TEXTS:
        assert files.tokenizer.encode(text).ids == reference(text)["input_ids"], text
    pair = reference("hello there", "a b c", return_token_type_ids=True)
    encoded = files.tokenizer.encode("hello there", "a b c")
    assert (encoded.ids, encoded.type_ids) == (pair["input_ids"], pair["token_type_ids"])
    assert files.pad_token_id == reference.pad_token_id
    assert files.model_max_length == reference.model_max_length
    assert files.special_tokens == reference.special_tokens_map
    actual = inputs.Tokenizer(files.tokenizer, clean_up=files.clean_up_spaces)
    for text in (*TEXTS, "what 's up ? i 'm here , isn't it !"):
        ids = reference(text)["input_ids"]
        assert actual.detokenize(ids) == reference.decode(ids)
