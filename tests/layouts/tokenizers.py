"""Tiny tokenizers of the algorithms, special tokens and classes that published models have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

WORDS = ("the", "cat", "sat", "on", "mat", "deep", "water", "query", "about", "is", "what", "city", "of", "passage")
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
SIGNS = ".,:;?!'\"-<>/()"
CJK = "中文水深猫"
SPACE, BYTE_SPACE = "\u2581", "\u0120"  # of SentencePiece and of byte-level BPE
# with words, single letters, capitals, accents, signs and characters outside the vocabulary
TEXTS = (
    "the cat sat on the mat",
    "How deep is the water?",
    "Paris: capital of France, 2024!",
    "a",
    "Café crème 水深 中",
    "what is the query about " * 4,
)
PAIRS = tuple(zip(TEXTS, reversed(TEXTS), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerKind:
    """How a tiny tokenizer is built, with the ids that the published special tokens have."""

    algorithm: str  # wordpiece, bpe, sentencepiece-bpe or unigram
    tokenizer_class: str  # of tokenizer_config.json
    specials: Mapping[str, str]  # name -> token
    ids: Mapping[str, int] = field(default_factory=dict)  # of tokens whose id matters; others follow the vocabulary
    single: str = "$A"
    pair: str = "$A $B"
    lowercase: bool = False
    more_tokens: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  # of tokenizer_config.json
    two_types: bool = False
    prepends_space: bool = False  # to the first word, in a normalizer


BERT_SPECIALS = {
    "unk_token": "[UNK]",
    "sep_token": "[SEP]",
    "pad_token": "[PAD]",
    "cls_token": "[CLS]",
    "mask_token": "[MASK]",
}
ROBERTA_SPECIALS = {
    "bos_token": "<s>",
    "eos_token": "</s>",
    "sep_token": "</s>",
    "cls_token": "<s>",
    "unk_token": "<unk>",
    "pad_token": "<pad>",
    "mask_token": "<mask>",
}
ROBERTA_TEMPLATE = {"single": "<s> $A </s>", "pair": "<s> $A </s> </s> $B </s>"}
BERT_TEMPLATE = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B:1 [SEP]:1"}
FLAT_BERT_TEMPLATE = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B [SEP]"}


def _bert(*, lowercase: bool, tokenizer_class: str = "BertTokenizer") -> TokenizerKind:
    return TokenizerKind(
        algorithm="wordpiece",
        tokenizer_class=tokenizer_class,
        specials=BERT_SPECIALS,
        ids={"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103},
        lowercase=lowercase,
        settings={"do_lower_case": lowercase, "tokenize_chinese_chars": True, "strip_accents": None},
        two_types=True,
        **BERT_TEMPLATE,
    )


ROBERTA = TokenizerKind(
    algorithm="bpe",
    tokenizer_class="RobertaTokenizer",
    specials=ROBERTA_SPECIALS,
    ids={"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3},
    settings={"add_prefix_space": False, "trim_offsets": True, "errors": "replace"},
    **ROBERTA_TEMPLATE,
)
LLAMA = TokenizerKind(
    algorithm="sentencepiece-bpe",
    tokenizer_class="LlamaTokenizer",
    specials={"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"},
    ids={"<unk>": 0, "<s>": 1, "</s>": 2},
    single="<s> $A",
    pair="<s> $A <s>:1 $B:1",
    settings={"add_bos_token": True, "add_eos_token": False, "legacy": True},
    prepends_space=True,
)
TOKENIZER_KINDS = {
    "bert-uncased": _bert(lowercase=True),
    "bert-cased": _bert(lowercase=False),
    "distilbert-uncased": _bert(lowercase=True, tokenizer_class="DistilBertTokenizer"),
    "distilbert-cased": _bert(lowercase=False, tokenizer_class="DistilBertTokenizer"),
    "electra": _bert(lowercase=True, tokenizer_class="ElectraTokenizer"),
    "mpnet": TokenizerKind(
        algorithm="wordpiece",
        tokenizer_class="MPNetTokenizer",
        specials=ROBERTA_SPECIALS | {"unk_token": "[UNK]"},
        ids={"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "[UNK]": 104},
        lowercase=True,
        settings={"do_lower_case": True, "tokenize_chinese_chars": True, "strip_accents": None},
        **ROBERTA_TEMPLATE,
    ),
    "roberta": ROBERTA,
    "bart": replace(ROBERTA, tokenizer_class="BartTokenizer"),
    "xlm-roberta": TokenizerKind(
        algorithm="unigram",
        tokenizer_class="XLMRobertaTokenizer",
        specials=ROBERTA_SPECIALS,
        ids={"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3},
        **ROBERTA_TEMPLATE,
    ),
    "deberta-v3": TokenizerKind(
        algorithm="unigram",
        tokenizer_class="DebertaV2Tokenizer",
        specials=BERT_SPECIALS | {"bos_token": "[CLS]", "eos_token": "[SEP]"},
        ids={"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3},
        settings={"do_lower_case": False, "split_by_punct": False, "vocab_type": "spm"},
        two_types=True,
        **BERT_TEMPLATE,
    ),
    "albert": TokenizerKind(
        algorithm="unigram",
        tokenizer_class="AlbertTokenizer",
        specials=BERT_SPECIALS
        | {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "[CLS]", "eos_token": "[SEP]"},
        ids={"<pad>": 0, "<unk>": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4},
        lowercase=True,
        settings={"do_lower_case": True, "keep_accents": False, "remove_space": True},
        two_types=True,
        **BERT_TEMPLATE,
    ),
    "camembert": TokenizerKind(
        algorithm="unigram",
        tokenizer_class="CamembertTokenizer",
        specials=ROBERTA_SPECIALS,
        ids={"<s>NOTUSED": 0, "<pad>": 1, "</s>NOTUSED": 2, "<unk>": 3, "<unk>NOTUSED": 4, "<s>": 5, "</s>": 6},
        **ROBERTA_TEMPLATE,
    ),
    "t5": TokenizerKind(
        algorithm="unigram",
        tokenizer_class="T5Tokenizer",
        specials={"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"},
        ids={"<pad>": 0, "</s>": 1, "<unk>": 2},
        single="$A </s>",
        pair="$A </s> $B </s>",
        settings={"extra_ids": 0},
    ),
    "modernbert": TokenizerKind(
        algorithm="bpe",
        tokenizer_class="PreTrainedTokenizerFast",
        specials=BERT_SPECIALS,
        settings={"model_input_names": ["input_ids", "attention_mask"]},
        **FLAT_BERT_TEMPLATE,
    ),
    "qwen3-embedding": TokenizerKind(
        algorithm="bpe",
        tokenizer_class="Qwen2Tokenizer",
        specials={"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        more_tokens=("<|im_start|>",),
        single="$A <|endoftext|>",
        pair="$A $B <|endoftext|>",
        settings={"add_bos_token": False, "add_prefix_space": False, "unk_token": None},
    ),
    "qwen2": TokenizerKind(
        algorithm="bpe",
        tokenizer_class="Qwen2Tokenizer",
        specials={"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
        more_tokens=("<|im_start|>",),
        settings={"add_prefix_space": False, "unk_token": None},
    ),
    "llama": LLAMA,
    "llama-eos": replace(LLAMA, tokenizer_class="PreTrainedTokenizerFast", single="<s> $A </s>"),
    "gemma": TokenizerKind(
        algorithm="sentencepiece-bpe",
        tokenizer_class="GemmaTokenizer",
        specials={"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"},
        ids={"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3},
        single="<bos> $A <eos>",
        pair="<bos> $A <eos> <bos>:1 $B:1 <eos>:1",
        settings={"add_bos_token": True, "add_eos_token": True},
    ),
}

# answers of rerankers
TOKENIZER_KINDS["qwen3-answers"] = replace(TOKENIZER_KINDS["qwen2"], more_tokens=("<|im_start|>", "Yes", "No"))
TOKENIZER_KINDS["mmbert"] = replace(
    TOKENIZER_KINDS["gemma"],
    tokenizer_class="PreTrainedTokenizerFast",
    specials=TOKENIZER_KINDS["gemma"].specials | {"mask_token": "<mask>", "cls_token": "<bos>", "sep_token": "<eos>"},
    ids={"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3, "<mask>": 4},
)


def write_tokenizer(folder: Path, kind_name: str, changes: Mapping[str, Any]) -> dict[str, int]:
    """Write tokenizer.json, tokenizer_config.json and special_tokens_map.json; return the vocabulary."""
    kind = TOKENIZER_KINDS[kind_name]
    vocabulary = _make_vocabulary(kind)
    tokenizer = _ALGORITHMS[kind.algorithm](kind, vocabulary)
    tokens = list(dict.fromkeys(kind.specials.values()))
    # the mask token of byte-level BPE and of Unigram includes the space before it
    tokens_to_add = [AddedToken(token, lstrip=token == "<mask>", special=True) for token in tokens]
    tokenizer.add_special_tokens(tokens_to_add)
    if kind.single != "$A":
        names = {part.partition(":")[0] for part in f"{kind.single} {kind.pair}".split() if not part.startswith("$")}
        tokenizer.post_processor = processors.TemplateProcessing(
            single=kind.single, pair=kind.pair, special_tokens=[(name, vocabulary[name]) for name in sorted(names)]
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": kind.tokenizer_class, "model_max_length": 512, **kind.settings, **kind.specials}
    write_json(folder / "tokenizer_config.json", {**settings, **changes})
    write_json(folder / "special_tokens_map.json", kind.specials)
    return vocabulary


def write_json(path: Path, values: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, ensure_ascii=False, indent=1))


def _make_vocabulary(kind: TokenizerKind) -> dict[str, int]:
    """Return tokens with ids: special tokens where they are published, [unused...] in the gaps."""
    byte_letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = {
        "wordpiece": [*WORDS, *LETTERS, *LETTERS.upper()[:26], *SIGNS, *CJK, *(f"##{letter}" for letter in LETTERS)],
        "bpe": [*byte_letters, *(piece for word in WORDS for piece in _merge_steps(BYTE_SPACE, word)[1])],
        "sentencepiece-bpe": [
            *(f"<0x{byte:02X}>" for byte in range(256)),
            *(SPACE, *LETTERS, *LETTERS.upper()[:26], *SIGNS, *CJK),
            *(piece for word in WORDS for piece in _merge_steps(SPACE, word)[1]),
        ],
        "unigram": [SPACE, *(SPACE + word for word in WORDS), *WORDS, *LETTERS, *LETTERS.upper()[:26], *SIGNS, *CJK],
    }[kind.algorithm]
    fixed = dict(kind.ids)
    specials = [token for token in dict.fromkeys([*kind.specials.values(), *kind.more_tokens]) if token not in fixed]
    first = max(fixed.values(), default=-1) + 1
    by_id = {row: token for token, row in fixed.items()}
    unused = iter(range(first))
    tokens = [by_id.get(row) or f"[unused{next(unused)}]" for row in range(first)]
    tokens += [token for token in dict.fromkeys(pieces) if token not in fixed] + specials
    return {token: row for row, token in enumerate(dict.fromkeys(tokens))}


def _merge_steps(left: str, word: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the merges that build a word letter by letter after a space, and their results."""
    merges, results = [], []
    for letter in word:
        merges.append((left, letter))
        left += letter
        results.append(left)
    return merges, results


def _make_wordpiece(kind: TokenizerKind, vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=kind.specials["unk_token"]))  # type: ignore[call-arg]
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=kind.lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _make_bpe(kind: TokenizerKind, vocabulary: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocabulary, _make_merges(BYTE_SPACE)))
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind.tokenizer_class.startswith("Qwen2"):
        pattern = (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
        tokenizer.normalizer = normalizers.NFC()
        regex = pre_tokenizers.Split(Regex(pattern), "isolated")
        split = pre_tokenizers.Sequence(  # type: ignore[assignment]
            [regex, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _make_merges(space: str) -> list[tuple[str, str]]:
    return list(dict.fromkeys(step for word in WORDS for step in _merge_steps(space, word)[0]))


def _make_sentencepiece_bpe(kind: TokenizerKind, vocabulary: dict[str, int]) -> Tokenizer:
    model = models.BPE(
        vocabulary, _make_merges(SPACE), unk_token=kind.specials["unk_token"], fuse_unk=True, byte_fallback=True
    )
    tokenizer = Tokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    if kind.prepends_space:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
    else:
        tokenizer.normalizer = spaces
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _make_unigram(kind: TokenizerKind, vocabulary: dict[str, int]) -> Tokenizer:
    unknown = kind.specials["unk_token"]
    scores = [(token, 0.0 if token in kind.specials.values() else -1.0 - 2 / len(token)) for token in vocabulary]
    tokenizer = Tokenizer(models.Unigram(scores, unk_id=vocabulary[unknown], byte_fallback=False))
    metaspace = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    if kind.tokenizer_class == "DebertaV2Tokenizer":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")])
        tokenizer.pre_tokenizer = metaspace
    elif kind.lowercase:
        parts = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
        tokenizer.normalizer = normalizers.Sequence(parts)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    return tokenizer


_ALGORITHMS = {
    "wordpiece": _make_wordpiece,
    "bpe": _make_bpe,
    "sentencepiece-bpe": _make_sentencepiece_bpe,
    "unigram": _make_unigram,
}
