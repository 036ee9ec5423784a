"""Small vocabularies in the files of older tokenizer classes, trained on the texts that tests compare."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
from tokenizers import ByteLevelBPETokenizer, Tokenizer, pre_tokenizers, trainers
from tokenizers.models import BPE

# texts that tokenizers disagree on: case, accents, CJK, emoji, control characters, spaces, numbers, special tokens
PROBES = [
    "Hello, world! The quick brown fox jumps over the lazy dog.",
    "  leading and   double  spaces and trailing  ",
    "naïve café — “quotes” ½ ﬁ Ünïcödé ÉCOLE",
    "L'été dernier, nous avons mangé des crêpes à Paris.",
    "東京に住む。日本語の文章です、ＡＢＣ１２３",
    "你好世界 мир 🙂 👩‍👩‍👧 ❤️ 한국어 العربية हिन्दी",
    "tab\tand\nline\r\nbreak",
    "",
    " ",
    "1234567 3.14 1,000,000 don't I'LL ``quoted'' text",
    "a" * 50,
    "\u200b\u00a0ｆｕｌｌ ｗｉｄｔｈ",
    "zero\x00width\x07bell",
    "an-unknown-word-𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ☃",
]
# control characters, zero-width characters and spaces, alone and beside others
_UNSEEN = [chr(code) for code in (1, 7, 0x1F, 0x7F, 0x85, 0xA0, 0xAD, 0x200B, 0x200D, 0x2028, 0x3000, 0xFE0F, 0xFEFF)]
INVISIBLE = [
    text for mark in (*_UNSEEN, "\t", "\n", " ") for text in (mark, f" {mark} ", f"{mark} {mark}", f"a {mark}b{mark}")
]
# special tokens inside a text
SPECIAL_PROBES = [
    "a <s> b </s> c <mask> d<mask>e <pad> <unk>",
    "a [CLS] b [SEP] c [MASK] d[MASK]e [PAD] [UNK]",
    "a <cls> b <sep> c <eos> <eod>",
]
PAIR = ("what is a café?", "A place in Paris, 東京")


def write_json(folder: Path, file: str, **values: Any) -> None:
    (folder / file).write_text(json.dumps(values), encoding="utf-8")


def train_sentencepiece(path: Path, *, vocab_size: int = 400, **options: Any) -> None:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(_corpus()),
        model_writer=model,
        vocab_size=vocab_size,
        hard_vocab_limit=False,
        character_coverage=0.98,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    path.write_bytes(model.getvalue())


def fairseq_pieces(folder: Path) -> None:
    """Write the file of XLM-RoBERTa, CamemBERT and MBart: <unk>, <s>, </s>, then pieces."""
    train_sentencepiece(folder / "sentencepiece.bpe.model")


def albert_pieces(folder: Path) -> None:
    train_sentencepiece(
        folder / "spiece.model",
        **{"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1},
        control_symbols=["[CLS]", "[SEP]"],
        user_defined_symbols=["[MASK]"],
    )


def xlnet_pieces(folder: Path) -> None:
    symbols = ["<cls>", "<sep>", "<pad>", "<mask>", "<eod>"]
    train_sentencepiece(folder / "spiece.model", control_symbols=symbols, user_defined_symbols=["<eop>"])


def internlm2_pieces(folder: Path) -> None:
    train_sentencepiece(
        folder / "tokenizer.model",
        vocab_size=700,
        model_type="bpe",
        byte_fallback=True,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
    )


def byte_level_pieces(folder: Path, special_tokens: Sequence[str]) -> None:
    """Write vocab.json and merges.txt; special tokens have the first ids."""
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(_corpus(), vocab_size=500, special_tokens=list(special_tokens), show_progress=False)
    tokenizer.save_model(str(folder))


def end_marked_words(folder: Path, special_tokens: Sequence[str]) -> None:
    """Write vocab.json and merges.txt of HerBERT, where the last part of a word ends in </w>."""
    tokenizer = Tokenizer(BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    options = {"special_tokens": list(special_tokens), "end_of_word_suffix": "</w>", "show_progress": False}
    tokenizer.train_from_iterator(_corpus(), trainers.BpeTrainer(vocab_size=600, **options))
    tokenizer.model.save(str(folder))


def word_pieces(folder: Path, *, vocab_size: int = 300, keep: Callable[[int], bool] = lambda row: row % 7 > 0) -> None:
    """Write vocab.txt and bpe.codes of BERTweet and PhoBERT; some results of merges are not in the vocabulary."""
    tokenizer = Tokenizer(BPE(end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, end_of_word_suffix="</w>", show_progress=False)
    tokenizer.train_from_iterator([*_corpus(), "@USER HTTPURL :grinning_face: :slightly_smiling_face: n't 's"], trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    parts = [part for part, _ in sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])]
    tokens = [part.removesuffix("</w>") if part.endswith("</w>") else f"{part}@@" for part in parts]
    kept = [token for row, token in enumerate(dict.fromkeys(tokens)) if keep(row)]
    (folder / "vocab.txt").write_text("".join(f"{token} 9\n" for token in kept), encoding="utf-8")
    lines = (f"{left} {right} 9\n" for left, right in merges)
    (folder / "bpe.codes").write_text("".join(lines), encoding="utf-8")


def japanese_words(folder: Path, words: Sequence[str]) -> None:
    """Write vocab.txt with words, their characters, and the special tokens of BERT."""
    characters = sorted({character for word in words for character in word})
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words, *characters, *(f"##{one}" for one in characters)]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in dict.fromkeys(tokens)), encoding="utf-8")


def _corpus() -> list[str]:
    lines = (
        (Path(__file__).parents[1] / "LICENSE").read_text(encoding="utf-8").splitlines()
    )  # a text that stays as it is
    return [line for line in [*lines, *PROBES[:7]] if line.strip()]


def write_clip(folder: Path, merges: Path) -> None:
    """Write vocab.json and merges.txt of CLIP from the file of merges that OpenAI published."""
    with gzip.open(merges, "rt", encoding="utf-8") as file:
        pairs = file.read().split("\n")[1 : 49152 - 256 - 2 + 1]
    # printable bytes first, then the others, which stand for themselves plus 256
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in printable] + [chr(256 + index) for index in range(256 - len(printable))]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *(pair.replace(" ", "") for pair in pairs)]
    vocabulary = {token: row for row, token in enumerate([*tokens, "<|startoftext|>", "<|endoftext|>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *pairs]), encoding="utf-8")
