"""Tokenizers of checkpoints without tokenizer.json give the ids of their tokenizer class."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tokenizers import Tokenizer
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer

from cenote.inputs import tokenizer as inputs
from cenote.inputs.token_vocabulary import copy_tokenizer
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.legacy_tokenizers.sentencepiece_file import read_sentencepiece
from cenote.loading.tokenizer_files import TokenizerFiles, load_tokenizer_files
from cenote.utils.install_commands import install_command
from tests import vocabularies as vocabulary
from tests.vocabularies import INVISIBLE, PAIR, PROBES, SPECIAL_PROBES, write_json

ROBERTA_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
DEBERTA_TOKENS = ("[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]")
ESM_TOKENS = "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>"
PROTEINS = ["MKTAYIAKQRQISFVKSHFSRQ", "mkt ABC<mask>L J", "M K  T\nA"]
TWEETS = [
    "@bob check https://t.co/abc?x=(y) www.foo.com foo.bar/baz I can't, I'm ca n't cannot go at 5 p . m . &amp; :-) <3",
    "call (555) 123-4567 now!!!!!!! #hash-tag's x@y.com a.b.c 3.5/4 -> <br> &#128; &bogus; it's they've n't ’tis…",
    "❤ 😀😀😀😀😀 👍🏽 हिन्दी \ufe0f",
    "don't\nworry be\n\nhappy\n",
]
needs_mecab = pytest.mark.skipif(not all(map(find_spec, ("fugashi", "ipadic"))), reason="needs fugashi and ipadic")
needs_unidic = pytest.mark.skipif(find_spec("unidic_lite") is None, reason="needs unidic-lite")
needs_emoji = pytest.mark.skipif(find_spec("emoji") is None, reason="needs emoji")
needs_jieba = pytest.mark.skipif(find_spec("rjieba") is None, reason="needs rjieba")
ROFORMER_TOKENS = str.split(
    "[PAD] [UNK] [CLS] [SEP] [MASK] 今 天 气 非 常 好 。 the cat ##s caf é c ##c ##+ + a b ' t don x"
)
ROFORMER_TEXTS = ["今天天气非常好。", "the cats café don't", "THE [MASK] cat", "c++ xc++ A.B  мир\n😀", ""]


def load(folder: Path) -> TokenizerFiles:
    return load_tokenizer_files(Checkpoint("test", folder))


def auto_tokenizer(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(folder)  # type: ignore[no-untyped-call]


def assert_same_ids(actual: Tokenizer, expected: Any, texts: list[str]) -> None:
    for text in texts:
        assert actual.encode(text).ids == expected(text)["input_ids"], text
    assert actual.encode(*PAIR).ids == expected(*PAIR)["input_ids"]


def sentencepiece_ids(path: Path) -> Callable[[str], list[int]]:
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return lambda text: list(model.encode(text))


def test_camembert_ids_are_four_above_those_of_the_file(tmp_path: Path) -> None:
    vocabulary.fairseq_pieces(tmp_path)
    write_json(tmp_path, "config.json", model_type="camembert")  # as published: no tokenizer_class anywhere
    plain_ids = sentencepiece_ids(tmp_path / "sentencepiece.bpe.model")

    files = load(tmp_path)

    for text in PROBES:
        assert files.tokenizer.encode(text).ids == [5, *(row + 4 if row else 3 for row in plain_ids(text)), 6], text
    first, second = (list(files.tokenizer.encode(text, add_special_tokens=False).ids) for text in PAIR)
    assert files.tokenizer.encode(*PAIR).ids == [5, *first, 6, 6, *second, 6]
    assert files.tokenizer.encode("<s></s><pad><unk><unk>NOTUSED", add_special_tokens=False).ids == [5, 6, 1, 3, 4]
    last = len(read_sentencepiece(tmp_path / "sentencepiece.bpe.model").pieces) + 4
    assert files.tokenizer.encode("a <mask>", add_special_tokens=False).ids[-1] == last
    assert (files.pad_token_id, files.unk_token_id) == (1, 3)


def test_mbart_ends_a_text_with_its_language(tmp_path: Path) -> None:
    vocabulary.fairseq_pieces(tmp_path)
    write_json(tmp_path, "config.json", model_type="mbart")
    plain_ids = sentencepiece_ids(tmp_path / "sentencepiece.bpe.model")
    end = len(read_sentencepiece(tmp_path / "sentencepiece.bpe.model").pieces) + 1

    tokenizer = load(tmp_path).tokenizer

    for text in PROBES:
        assert tokenizer.encode(text).ids == [*(row + 1 if row else 3 for row in plain_ids(text)), 2, end + 3], text
    assert tokenizer.token_to_id("<mask>") == end + 25
    write_json(tmp_path, "tokenizer_config.json", src_lang="fr_XX")
    assert load(tmp_path).tokenizer.encode("a").ids[-1] == end + 7


@pytest.mark.parametrize("options", [{}, {"do_lower_case": False}, {"keep_accents": True}])
def test_albert_lowercases_and_removes_accents(tmp_path: Path, options: dict[str, bool]) -> None:
    from transformers import AlbertTokenizer

    vocabulary.albert_pieces(tmp_path)
    write_json(tmp_path, "config.json", model_type="albert")
    write_json(tmp_path, "tokenizer_config.json", **options)
    model = read_sentencepiece(tmp_path / "spiece.model")
    pieces = [(piece.text, piece.score) for piece in model.pieces]
    reference = AlbertTokenizer(vocab=pieces, _spm_precompiled_charsmap=model.charsmap, **options)  # type: ignore[no-untyped-call, arg-type]

    files = load(tmp_path)

    assert_same_ids(files.tokenizer, reference, [*PROBES, *SPECIAL_PROBES])
    encoding = files.tokenizer.encode(*PAIR)
    assert (encoding.ids[0], encoding.ids[-1]) == (2, 3)
    assert encoding.type_ids == [0] * encoding.type_ids.count(0) + [1] * encoding.type_ids.count(1)
    assert (files.pad_token_id, files.unk_token_id) == (0, 1)


def test_albert_takes_special_tokens_that_only_a_list_has(tmp_path: Path) -> None:
    vocabulary.train_sentencepiece(tmp_path / "spiece.model")
    size = len(read_sentencepiece(tmp_path / "spiece.model").pieces)
    write_json(tmp_path, "config.json", model_type="albert")
    write_json(tmp_path, "added_tokens.json", **{"[CLS]": size, "[SEP]": size + 1, "<pad>": size + 2})

    ids = load(tmp_path).tokenizer.encode("the fox").ids

    assert (ids[0], ids[-1]) == (size, size + 1)
    assert ids[1:-1] == sentencepiece_ids(tmp_path / "spiece.model")("the fox")


@pytest.mark.parametrize("settings", [{}, {"tokenizer_class": "AlbertTokenizer"}], ids=["model type", "class"])
def test_albert_with_a_vocabulary_of_bert_is_read_like_bert(tmp_path: Path, settings: dict[str, str]) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(ROFORMER_TOKENS))
    write_json(tmp_path, "config.json", model_type="bert")
    reference = auto_tokenizer(tmp_path)
    write_json(tmp_path, "config.json", model_type="albert")
    write_json(tmp_path, "tokenizer_config.json", **settings)

    assert_same_ids(load(tmp_path).tokenizer, reference, [*PROBES, *ROFORMER_TEXTS])


def write_roformer(folder: Path, *words: str) -> None:
    (folder / "vocab.txt").write_text("\n".join([*ROFORMER_TOKENS, *words]))
    write_json(folder, "config.json", model_type="roformer")
    write_json(folder, "tokenizer_config.json", tokenizer_class="RoFormerTokenizer", do_lower_case=True)


@needs_jieba
@pytest.mark.parametrize("words", [(), ("非常", "天气", "c++")], ids=["characters", "words"])
def test_roformer_splits_words_of_jieba(tmp_path: Path, words: Sequence[str]) -> None:
    from transformers import RoFormerTokenizer

    write_roformer(tmp_path, *words)
    vocab = {token: row for row, token in enumerate([*ROFORMER_TOKENS, *words])}
    reference = RoFormerTokenizer(vocab)  # type: ignore[no-untyped-call]
    # Transformers 5 separates Chinese characters before Jieba sees them; the models were trained with words
    reference.backend_tokenizer.normalizer = BertNormalizer(handle_chinese_chars=False)

    tokenizer = load(tmp_path).tokenizer

    assert_same_ids(tokenizer, reference, [*PROBES, *ROFORMER_TEXTS])
    tokenizer.pre_tokenizer = BertPreTokenizer()  # as Transformers saves it
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert_same_ids(load(tmp_path).tokenizer, reference, [*PROBES, *ROFORMER_TEXTS])


def test_roformer_without_chinese_words_needs_no_jieba(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rjieba", None)
    write_roformer(tmp_path)

    tokenizer = load(tmp_path).tokenizer

    tokens = tokenizer.encode("The cats café 天气 XC++").tokens
    assert " ".join(tokens[1:-1]) == "the cat ##s [UNK] 天 气 x c ##+ ##+"
    assert tokenizer.encode(*PAIR).type_ids[-1] == 1


def test_roformer_with_chinese_words_names_the_package_that_it_needs(
    tmp_path: Path, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rjieba", None)
    write_roformer(tmp_path, "非常")

    with refused("RoFormerTokenizer", "'非常'", "rjieba", install_command("chinese")):
        load(tmp_path)


def test_deberta_v3_is_read_like_its_published_tokenizer(tmp_path: Path, shared: Path) -> None:
    published = shared / "tokenizers" / "deberta-v3"
    (tmp_path / "spm.model").symlink_to((published / "spm.model").resolve())
    write_json(tmp_path, "config.json", model_type="deberta-v2")
    reference = Tokenizer.from_file(str(published / "tokenizer.json"))
    reference.no_padding()
    reference.no_truncation()

    tokenizer = load(tmp_path).tokenizer

    for text in [*PROBES, *INVISIBLE]:
        assert tokenizer.encode(text).ids == reference.encode(text).ids, repr(text)
    assert tokenizer.encode("\u200b").tokens == ["[CLS]", "\u2581", "[SEP]"]


def test_xlnet_ends_a_text_with_sep_and_cls(tmp_path: Path) -> None:
    from transformers import XLNetTokenizer

    vocabulary.xlnet_pieces(tmp_path)
    write_json(tmp_path, "config.json", model_type="xlnet")
    model = read_sentencepiece(tmp_path / "spiece.model")
    pieces = [(piece.text, piece.score) for piece in model.pieces]
    reference = XLNetTokenizer(vocab=pieces, _spm_precompiled_charsmap=model.charsmap)  # type: ignore[no-untyped-call, arg-type]

    tokenizer = load(tmp_path).tokenizer

    assert_same_ids(tokenizer, reference, [*PROBES, *SPECIAL_PROBES])
    assert tokenizer.encode(*PAIR).type_ids == reference(*PAIR, return_token_type_ids=True)["token_type_ids"]
    assert tokenizer.encode("a").ids[-2:] == [4, 3]


def test_internlm2_starts_with_bos_and_adds_no_space(tmp_path: Path) -> None:
    vocabulary.internlm2_pieces(tmp_path)
    write_json(tmp_path, "config.json", model_type="internlm2")
    write_json(tmp_path, "tokenizer_config.json", tokenizer_class="InternLM2Tokenizer")
    plain_ids = sentencepiece_ids(tmp_path / "tokenizer.model")

    files = load(tmp_path)

    for text in PROBES:
        assert files.tokenizer.encode(text).ids == [1, *plain_ids(text)], text
        assert files.tokenizer.decode(files.tokenizer.encode(text).ids) == text
    assert files.pad_token_id == 2
    write_json(tmp_path, "tokenizer_config.json", tokenizer_class="InternLM2Tokenizer", add_eos_token=True)
    assert load(tmp_path).tokenizer.encode("a").ids[-1] == 2


def test_a_real_byte_pair_model_of_internlm2_is_as_sentencepiece_has_it(tmp_path: Path, shared: Path) -> None:
    (tmp_path / "tokenizer.model").symlink_to((shared / "tokenizers" / "mistral-v1" / "tokenizer.model").resolve())
    write_json(tmp_path, "config.json", model_type="internlm2")
    plain_ids = sentencepiece_ids(tmp_path / "tokenizer.model")

    tokenizer = load(tmp_path).tokenizer

    for text in PROBES:
        assert tokenizer.encode(text).ids == [1, *plain_ids(text)], text


def test_bart_is_read_like_roberta(tmp_path: Path) -> None:
    vocabulary.byte_level_pieces(tmp_path, ROBERTA_TOKENS)
    write_json(tmp_path, "config.json", model_type="bart")

    files = load(tmp_path)

    assert_same_ids(files.tokenizer, auto_tokenizer(tmp_path), PROBES)
    assert files.tokenizer.encode("a").ids[-1] == 2


@pytest.mark.parametrize("settings", [{"tokenizer_class": "CLIPTokenizer"}, {}], ids=["class", "model type"])
def test_clip_lowercases_and_marks_the_ends_of_words(tmp_path: Path, shared: Path, settings: dict[str, Any]) -> None:
    vocabulary.write_clip(tmp_path, shared / "tokenizers" / "clip" / "bpe_simple_vocab_16e6.txt.gz")
    write_json(tmp_path, "config.json", model_type="clip")
    write_json(tmp_path, "tokenizer_config.json", model_max_length=77, **settings)

    files = load(tmp_path)

    assert files.tokenizer.encode("a Photo of a cat").ids == [49406, 320, 1125, 539, 320, 2368, 49407]
    assert_same_ids(files.tokenizer, auto_tokenizer(tmp_path), PROBES)


def test_deberta_v1_puts_cls_and_sep_around_texts(tmp_path: Path) -> None:
    vocabulary.byte_level_pieces(tmp_path, DEBERTA_TOKENS)
    write_json(tmp_path, "config.json", model_type="deberta")
    write_json(tmp_path, "tokenizer_config.json", do_lower_case=False, vocab_type="gpt2")
    reference = auto_tokenizer(tmp_path)

    files = load(tmp_path)

    for text in PROBES:
        assert files.tokenizer.encode(text).ids == reference(text)["input_ids"], text
    # Transformers 5 puts two [SEP] between texts; the models were trained with one, as in Transformers 4
    first, second = (files.tokenizer.encode(text, add_special_tokens=False).ids for text in PAIR)
    assert files.tokenizer.encode(*PAIR).ids == [1, *first, 2, *second, 2]
    assert files.tokenizer.encode("a [MASK]").ids == [1, *files.tokenizer.encode("a").ids[1:-1], 4, 2]
    assert files.pad_token_id == 3


def test_phobert_splits_words_by_merges_that_the_vocabulary_may_lack(tmp_path: Path) -> None:
    vocabulary.word_pieces(tmp_path)
    write_json(tmp_path, "config.json", model_type="roberta", tokenizer_class="PhobertTokenizer")

    files = load(tmp_path)

    assert_same_ids(files.tokenizer, auto_tokenizer(tmp_path), [*PROBES, *SPECIAL_PROBES, *TWEETS])
    vocabulary.word_pieces(tmp_path, keep=lambda row: True)  # without unknown tokens
    files = load(tmp_path)
    encoding = files.tokenizer.encode("and the", add_special_tokens=False)
    pieces = [token.removesuffix("@@") for token in encoding.tokens]
    assert ["and the"[start:end] for start, end in encoding.offsets] == pieces
    assert files.tokenizer.decode(encoding.ids) == "and the"
    # a pre-tokenizer in Python cannot be serialised
    assert copy_tokenizer(files.tokenizer).encode(*PAIR).ids == files.tokenizer.encode(*PAIR).ids


@needs_emoji
def test_bertweet_normalizes_tweets(tmp_path: Path) -> None:
    vocabulary.word_pieces(tmp_path)
    write_json(tmp_path, "config.json", model_type="roberta", tokenizer_class="BertweetTokenizer")
    write_json(tmp_path, "tokenizer_config.json", normalization=True)
    reference = auto_tokenizer(tmp_path)

    tokenizer = load(tmp_path).tokenizer

    assert_same_ids(tokenizer, reference, [*PROBES, *SPECIAL_PROBES, *TWEETS])
    text = "so @someone don't  &amp; 😀 go"
    spans = {text[start:end] for start, end in tokenizer.encode(text, add_special_tokens=False).offsets}
    assert {"@someone", "😀", "&"} <= spans
    batch = inputs.Tokenizer(tokenizer).encode([text] * 3)
    assert all(ids.tolist() == reference(text, add_special_tokens=False)["input_ids"] for ids in batch)


def test_bertweet_without_normalization_keeps_the_text(tmp_path: Path) -> None:
    vocabulary.word_pieces(tmp_path)
    write_json(tmp_path, "tokenizer_config.json", tokenizer_class="BertweetTokenizer")
    write_json(tmp_path, "config.json", model_type="roberta")

    assert_same_ids(load(tmp_path).tokenizer, auto_tokenizer(tmp_path), [*PROBES, *SPECIAL_PROBES, *TWEETS])


def test_bertweet_without_the_emoji_package_is_refused(
    tmp_path: Path, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "emoji", None)
    vocabulary.word_pieces(tmp_path)
    write_json(tmp_path, "tokenizer_config.json", tokenizer_class="BertweetTokenizer", normalization=True)

    with refused("vocab.txt", "BertweetTokenizer", install_command("tweets")):
        load(tmp_path)


def test_esm_finds_its_tokens_inside_words(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join(ESM_TOKENS.split()))
    write_json(tmp_path, "config.json", model_type="esm", vocab_size=33)

    files = load(tmp_path)

    assert_same_ids(files.tokenizer, auto_tokenizer(tmp_path), [*PROBES, *SPECIAL_PROBES, *PROTEINS])
    assert files.tokenizer.encode("LA").ids == [0, 4, 5, 2]
    assert (files.pad_token_id, files.unk_token_id) == (1, 3)


JAPANESE_WORDS = ["東京", "に", "住む", "日本語", "文章", "です", "hello", "world", "the", "abc", "ABC"]
MECAB = {"word_tokenizer_type": "mecab", "mecab_kwargs": {"mecab_dic": "ipadic"}}


def japanese_folder(folder: Path, **settings: Any) -> None:
    vocabulary.japanese_words(folder, JAPANESE_WORDS)
    # the class is named in config.json only, as published
    write_json(folder, "config.json", model_type="bert", tokenizer_class="BertJapaneseTokenizer")
    write_json(folder, "tokenizer_config.json", **settings)


@needs_mecab
@pytest.mark.parametrize(
    "settings",
    [
        MECAB,
        MECAB | {"subword_tokenizer_type": "character"},
        MECAB | {"do_subword_tokenize": False},
        MECAB | {"do_lower_case": True},
        pytest.param(MECAB | {"mecab_kwargs": {"mecab_dic": "unidic_lite"}}, marks=needs_unidic),
        MECAB | {"mecab_kwargs": {"mecab_dic": "ipadic", "normalize_text": False}},
    ],
)
def test_japanese_bert_takes_the_words_of_mecab(tmp_path: Path, settings: dict[str, Any]) -> None:
    japanese_folder(tmp_path, **settings)

    tokenizer = load(tmp_path).tokenizer

    assert_same_ids(tokenizer, auto_tokenizer(tmp_path), [*PROBES, *SPECIAL_PROBES, "ＴＥＬ℡ ㎏ 東京　に"])


@needs_mecab
def test_words_of_mecab_know_their_place_in_the_text(tmp_path: Path) -> None:
    japanese_folder(tmp_path, **MECAB)
    text = "ｈｅｌｌｏ、東京　に住む"

    encoding = load(tmp_path).tokenizer.encode(text, add_special_tokens=False)

    assert [text[start:end] for start, end in encoding.offsets] == ["ｈｅｌｌｏ", "、", "東京", "に", "住む"]


@needs_mecab
def test_without_a_dictionary_ipadic_is_used_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "日本語の文章です、国立国会図書館"
    japanese_folder(tmp_path, **MECAB)
    expected = load(tmp_path).tokenizer.encode(text).ids
    japanese_folder(tmp_path, word_tokenizer_type="mecab")

    with caplog.at_level(logging.WARNING, logger="cenote"):
        assert load(tmp_path).tokenizer.encode(text).ids == expected
    assert "tokenizer_config.json names no MeCab dictionary: using ipadic" in caplog.text


def test_japanese_bert_without_mecab_is_refused_with_the_command_that_installs_it(
    tmp_path: Path, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fugashi", None)
    japanese_folder(tmp_path, **MECAB)

    with refused("vocab.txt", "BertJapaneseTokenizer", install_command("japanese")):
        load(tmp_path)


def test_japanese_bert_with_basic_words_needs_no_mecab(tmp_path: Path) -> None:
    japanese_folder(tmp_path, word_tokenizer_type="basic")

    assert_same_ids(load(tmp_path).tokenizer, auto_tokenizer(tmp_path), [*PROBES, *SPECIAL_PROBES])


@pytest.mark.parametrize(
    "settings",
    [
        {"word_tokenizer_type": "sudachi"},
        {"word_tokenizer_type": "jumanpp"},
        {"subword_tokenizer_type": "sentencepiece"},
        {"word_tokenizer_type": "mecab", "mecab_kwargs": {"mecab_option": "-d /tmp/x"}},
        {"word_tokenizer_type": "mecab", "mecab_kwargs": {"mecab_dic": "neologd"}},
    ],
)
def test_other_japanese_settings_are_refused(tmp_path: Path, settings: dict[str, Any], refused: Any) -> None:
    japanese_folder(tmp_path, **settings)

    with refused("tokenizer_config.json", "BertJapaneseTokenizer", "writes tokenizer.json"):
        load(tmp_path)


def test_mpnet_reads_word_pieces_with_the_tokens_of_roberta(tmp_path: Path) -> None:
    tokens = ["<s>", "<pad>", "</s>", "[UNK]", "hello", "world", ",", "##s", "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(tokens))
    write_json(tmp_path, "config.json", model_type="mpnet")

    tokenizer = load(tmp_path).tokenizer

    assert tokenizer.encode("Hello, worlds").ids == [0, 4, 6, 5, 7, 2]
    assert tokenizer.encode("hello", "world <mask>").ids == [0, 4, 2, 2, 5, 8, 2]


def test_herbert_reads_words_with_an_end_mark(tmp_path: Path) -> None:
    vocabulary.end_marked_words(tmp_path, ROBERTA_TOKENS)
    write_json(tmp_path, "config.json", model_type="bert", tokenizer_class="HerbertTokenizerFast")

    assert_same_ids(load(tmp_path).tokenizer, auto_tokenizer(tmp_path), [*PROBES, *SPECIAL_PROBES])


def test_the_class_of_tokenizer_config_is_believed_before_that_of_config(tmp_path: Path) -> None:
    vocabulary.fairseq_pieces(tmp_path)
    write_json(tmp_path, "config.json", model_type="bert", tokenizer_class="CamembertTokenizer")

    assert load(tmp_path).tokenizer.encode("").ids == [5, 6]
    write_json(tmp_path, "tokenizer_config.json", tokenizer_class="XLMRobertaTokenizerFast")
    assert load(tmp_path).tokenizer.encode("").ids == [0, 2]
    write_json(tmp_path, "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")  # says nothing
    assert load(tmp_path).tokenizer.encode("").ids == [5, 6]


@pytest.mark.parametrize("file", ["vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model", "bpe.codes"])
@pytest.mark.parametrize("model_type", [None, "xlm", "flaubert", "something_new"])
def test_a_file_name_alone_does_not_decide_the_class(
    tmp_path: Path, file: str, model_type: str | None, refused: Any
) -> None:
    (tmp_path / file).write_text("{}")
    write_json(tmp_path, "config.json", model_type=model_type)

    with refused(file, "tokenizer_class", repr(model_type), "or set the tokenizer option"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("model_type", "file", "needed"),
    [
        ("roberta", "bpe.codes", "RobertaTokenizer (config.json) needs vocab.json"),
        ("bert", "sentencepiece.bpe.model", "BertTokenizer (config.json) needs vocab.txt"),
        ("camembert", "vocab.json", "CamembertTokenizer (config.json) needs sentencepiece.bpe.model"),
    ],
)
def test_a_class_without_its_vocabulary_is_refused(
    tmp_path: Path, model_type: str, file: str, needed: str, refused: Any
) -> None:
    (tmp_path / file).write_text("{}")
    write_json(tmp_path, "config.json", model_type=model_type)

    with refused(needed, "writes tokenizer.json"):
        load(tmp_path)
