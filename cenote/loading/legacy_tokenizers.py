"""Build tokenizers for checkpoints without tokenizer.json from older vocabulary files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, Unigram, WordPiece

from cenote.errors import LoadError
from cenote.loading import sentencepiece_model as sentencepiece
from cenote.loading.checkpoint import Checkpoint, check_not_empty, first_line

TokenizerSettings: TypeAlias = Mapping[str, Any]  # tokenizer_config.json
SpecialTokens: TypeAlias = dict[str, str]  # cls_token -> [CLS]

BERT_NAMES = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
ROBERTA_NAMES = {
    "cls_token": "<s>",
    "pad_token": "<pad>",
    "sep_token": "</s>",
    "unk_token": "<unk>",
    "mask_token": "<mask>",
}
LLAMA_NAMES = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
T5_NAMES = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
GPT2_NAMES = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>"}

# tokenizer_class without "Tokenizer" and "Fast"; "" if the checkpoint has none
WORDPIECE_CLASSES = ("", "Bert", "DistilBert", "Electra", "MobileBert")
BYTE_LEVEL_CLASSES = {"Roberta": "roberta", "Bart": "roberta", "Longformer": "roberta", "GPT2": "gpt2", "Qwen2": "qwen"}
SENTENCEPIECE_CLASSES = {
    "XLMRoberta": "xlm-roberta",
    "DebertaV2": "deberta",
    "T5": "t5",
    "Llama": "llama",
    "Mistral": "llama",
}
SENTENCEPIECE_FILES = {
    "sentencepiece.bpe.model": "xlm-roberta",
    "spm.model": "deberta",
    "spiece.model": "t5",
    "tokenizer.model": "llama",
}
QWEN_SPLIT_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class LegacyTokenizer:
    """A tokenizer with the special tokens and BOS default of its class."""

    tokenizer: Tokenizer
    special_tokens: SpecialTokens
    adds_bos: bool = False


def build_legacy_tokenizer(
    checkpoint: Checkpoint, settings: TokenizerSettings, special_tokens: SpecialTokens
) -> LegacyTokenizer | None:
    """Build from the first vocabulary file found; None if there is none. `special_tokens` override the defaults."""
    kind = str(settings.get("tokenizer_class") or "").removesuffix("Fast").removesuffix("Tokenizer")
    if (path := checkpoint.find_file("vocab.txt")) is not None and kind in WORDPIECE_CLASSES:
        with wrap_tokenizer_errors(path):
            return _build_wordpiece(
                path, settings, BERT_NAMES | special_tokens, checkpoint.read_json_object("config.json")
            )
    if (path := checkpoint.find_file("vocab.json")) is not None:
        merges = checkpoint.require_file("merges.txt")
        model_type = str(checkpoint.read_json_object("config.json").get("model_type", "gpt2"))
        variant = (
            BYTE_LEVEL_CLASSES.get(kind, "")
            if kind
            else next((name for name in ("roberta", "qwen") if name in model_type), "gpt2")
        )
        with wrap_tokenizer_errors(path):
            return _build_byte_level(
                checkpoint.read_json_object("vocab.json"), merges, variant, settings, special_tokens
            )
    for file, variant in SENTENCEPIECE_FILES.items():
        if (path := checkpoint.find_file(file)) is not None:
            with wrap_tokenizer_errors(path):
                return _build_sentencepiece(
                    path, SENTENCEPIECE_CLASSES.get(kind, "") if kind else variant, settings, special_tokens
                )
    return None


@contextmanager
def wrap_tokenizer_errors(path: Path) -> Iterator[None]:
    """Raise errors of the tokenizers library, which have no specific type, as LoadError with the file name."""
    try:
        yield
    except (LoadError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # Rust panics are not subclasses of Exception
        raise LoadError(f"{path} is not a valid tokenizer ({first_line(error)}); download it again") from error


def _build_wordpiece(
    path: Path, settings: TokenizerSettings, names: SpecialTokens, config: TokenizerSettings
) -> LegacyTokenizer:
    check_not_empty(path)
    words = path.read_text(encoding="utf-8").split("\n")
    vocab = {word.rstrip("\r"): row for row, word in enumerate(words[:-1] if not words[-1] else words)}
    expected = config.get("vocab_size")
    if isinstance(expected, int) and len(vocab) < 0.9 * expected:  # embeddings may be padded
        raise LoadError(
            f"{path} has {len(vocab)} tokens, config.json {expected}; the file is truncated, download it again"
        )
    for name in ("unk_token", "cls_token", "sep_token"):
        if names[name] not in vocab:
            raise LoadError(f"{path} has no {names[name]}, the {name}; download it again")
    tokenizer = Tokenizer(WordPiece(vocab, unk_token=names["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    _set_bert_template(tokenizer, names)
    return LegacyTokenizer(tokenizer, names)


def _build_byte_level(
    vocab: dict[str, int], merges: Path, variant: str, settings: TokenizerSettings, special_tokens: SpecialTokens
) -> LegacyTokenizer:
    if not variant:
        raise _unknown_class_error(settings, BYTE_LEVEL_CLASSES)
    check_not_empty(merges)
    lines = merges.read_text(encoding="utf-8").split("\n")
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    _check_merges(vocab, pairs, merges)
    with wrap_tokenizer_errors(merges):
        tokenizer = Tokenizer(BPE(vocab, [(pair[0], pair[1]) for pair in pairs]))
    space = bool(settings.get("add_prefix_space", False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    names = (ROBERTA_NAMES if variant == "roberta" else GPT2_NAMES) | special_tokens
    if variant == "qwen":
        words = pre_tokenizers.Split(Regex(QWEN_SPLIT_PATTERN), behavior="isolated")
        rest = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, rest])
    if variant == "roberta":
        _set_roberta_template(tokenizer, names)
    return LegacyTokenizer(tokenizer, names)


def _build_sentencepiece(
    path: Path, variant: str, settings: TokenizerSettings, special_tokens: SpecialTokens
) -> LegacyTokenizer:
    if not variant:
        raise _unknown_class_error(settings, SENTENCEPIECE_CLASSES)
    model = sentencepiece.read_sentencepiece(path)
    if variant == "llama":
        return _build_llama(model, settings, LLAMA_NAMES | special_tokens)
    if model.algorithm != sentencepiece.UNIGRAM:
        raise LoadError(f"{path} is a BPE model, but {variant} requires unigram; provide a tokenizer.json")
    vocab = [(piece.text, piece.score) for piece in model.pieces]
    names = {"xlm-roberta": ROBERTA_NAMES, "deberta": BERT_NAMES, "t5": T5_NAMES}[variant] | special_tokens
    unk_id = model.unk_id
    if variant == "xlm-roberta":
        # fairseq replaces the three special tokens of SentencePiece by four, so all other ids are one higher
        first = [(names[name], 0.0) for name in ("cls_token", "pad_token", "sep_token", "unk_token")]
        vocab, unk_id = [*first, *vocab[3:], (names["mask_token"], 0.0)], 3
    if variant == "t5":
        vocab += [(f"<extra_id_{number}>", 0.0) for number in reversed(range(settings.get("extra_ids", 100)))]
    tokenizer = Tokenizer(Unigram(vocab, unk_id=unk_id, byte_fallback=False))
    steps: list[Any] = [normalizers.Lowercase()] if settings.get("do_lower_case") else []
    steps += [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    _add_special_pieces(tokenizer, model)
    if variant == "xlm-roberta":
        _set_roberta_template(tokenizer, names)
    elif variant == "deberta":
        _set_bert_template(tokenizer, names)
    else:
        end = names["eos_token"]
        _set_template(tokenizer, f"$A {end}", f"$A {end} $B {end}", end)
    return LegacyTokenizer(tokenizer, names)


def _build_llama(
    model: sentencepiece.SentencePieceModel, settings: TokenizerSettings, names: SpecialTokens
) -> LegacyTokenizer:
    vocab = {piece.text: row for row, piece in enumerate(model.pieces)}
    if names["unk_token"] not in vocab:
        raise ValueError(f"no {names['unk_token']} in the vocabulary")
    if model.algorithm == sentencepiece.BPE:
        scores = {piece.text: piece.score for piece in model.pieces}
        rules = BPE(
            vocab, _derive_merges(vocab, scores), unk_token=names["unk_token"], fuse_unk=True, byte_fallback=True
        )
        tokenizer = Tokenizer(rules)
    else:
        pieces = [(piece.text, piece.score) for piece in model.pieces]
        tokenizer = Tokenizer(Unigram(pieces, unk_id=model.unk_id, byte_fallback=True))
    prefix = [normalizers.Prepend("▁")] if settings.get("add_prefix_space", True) else []
    if settings.get("legacy", True):
        tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first" if prefix else "never", split=False)
    parts: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Strip(content=" ", left=1)] if prefix else parts)
    _add_special_pieces(tokenizer, model)
    return LegacyTokenizer(tokenizer, names, adds_bos=True)


def _derive_merges(vocab: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Derive BPE merges from a vocabulary: every split of a piece into two others, highest scores first."""
    found: list[tuple[float, str, str]] = []
    for piece, score in scores.items():
        splits = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        known = [(left, right) for left, right in splits if left in vocab and right in vocab]
        found += [(score, *pair) for pair in sorted(known, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))]
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in found]


def _check_merges(vocab: Mapping[str, int], pairs: list[tuple[str, ...]], path: Path) -> None:
    bad = next((pair for pair in pairs if len(pair) != 2), None)
    merged = {"".join(pair) for pair in pairs}
    orphans = sum(len(token) > 1 and token not in merged for token in vocab)
    if bad is not None or orphans > len(vocab) // 20 + 100:
        reason = f"{' '.join(bad)!r} is not a pair" if bad else f"{orphans} of {len(vocab)} tokens have no merge"
        raise LoadError(f"{path} is truncated: {reason}; download it again")


def _add_special_pieces(tokenizer: Tokenizer, model: sentencepiece.SentencePieceModel) -> None:
    for piece in model.pieces:
        if piece.kind in (sentencepiece.CONTROL, sentencepiece.USER_DEFINED):
            special = piece.kind == sentencepiece.CONTROL
            tokenizer.add_tokens([AddedToken(piece.text, normalized=False, special=special)])


def add_special_tokens(tokenizer: Tokenizer, names: SpecialTokens) -> None:
    """Register special tokens, so that they are never split."""
    # where tokens include their leading space, the mask token takes it too
    spaced = names.get("mask_token") == "<mask>"
    tokenizer.add_special_tokens(
        [
            AddedToken(text, lstrip=spaced and name == "mask_token", normalized=False, special=True)
            for name, text in names.items()
        ]
    )


def _set_bert_template(tokenizer: Tokenizer, names: SpecialTokens) -> None:
    cls, sep = names["cls_token"], names["sep_token"]
    _set_template(tokenizer, f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1", cls, sep)


def _set_roberta_template(tokenizer: Tokenizer, names: SpecialTokens) -> None:
    cls, sep = names["cls_token"], names["sep_token"]
    _set_template(tokenizer, f"{cls} $A {sep}", f"{cls} $A {sep} {sep} $B {sep}", cls, sep)


def _set_template(tokenizer: Tokenizer, single: str, pair: str, *tokens: str) -> None:
    special = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(tokens)]
    for token, row in special:
        if row is None:
            raise ValueError(f"the vocabulary has no {token}, which the special-token template needs")
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)


def _unknown_class_error(settings: TokenizerSettings, known: Mapping[str, str]) -> LoadError:
    names = ", ".join(f"{name}Tokenizer" for name in known)
    return LoadError(
        f"tokenizer_config.json: {settings.get('tokenizer_class')} is not supported without a tokenizer.json; "
        f"expected one of: {names}. Save the tokenizer with a tokenizer.json"
    )
