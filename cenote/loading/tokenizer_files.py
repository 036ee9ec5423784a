"""Load the tokenizer of a checkpoint and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from cenote.errors import LoadError
from cenote.loading.added_tokens import TOKEN_NAMES, add_listed_tokens, add_unlisted_tokens, read_special_tokens
from cenote.loading.checkpoint import Checkpoint, check_not_empty
from cenote.loading.encoder_args import (
    APPLIED_TOKENIZER_ARGS,
    TOKENIZER_ARGS,
    find_encoder_file,
    read_encoder_args,
)
from cenote.loading.legacy_tokenizers.classes import find_tokenizer_class
from cenote.loading.legacy_tokenizers.source import (
    SpecialTokens,
    TokenizerSettings,
    add_special_tokens,
    wrap_tokenizer_errors,
)
from cenote.loading.tokenizer_class import has_token_types, resolve_tokenizer_class, returns_token_types
from cenote.loading.tokenizer_settings import add_class_template, apply_class_settings
from cenote.protocol.params import TruncationSide

UNLIMITED_LENGTH = 10**9  # tokenizers without a limit have 1e30
TOKENIZER_FILE_NAMES = (
    "tokenizer.json, vocab.txt, vocab.json with merges.txt, sentencepiece.bpe.model, spm.model, spiece.model"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerFiles:
    """A tokenizer without truncation and padding, and the checkpoint's settings for both."""

    tokenizer: Tokenizer
    truncation_side: TruncationSide = "right"
    model_max_length: int | None = None
    pad_token_id: int | None = None
    unk_token_id: int | None = None
    chat_template: str | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)  # bos_token -> <s>
    clean_up_spaces: bool = False  # clean_up_tokenization_spaces, for decoded text
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)  # tokenizer_config.json with the chat template
    has_token_types: bool = True  # whether the model takes token_type_ids
    is_legacy: bool = False  # built from older vocabulary files, without tokenizer.json
    returns_token_types: bool = False  # whether Transformers' tokenizer returns them without being asked
    checkpoint: Checkpoint | None = None  # that has its files


def load_tokenizer_files(
    checkpoint: Checkpoint, *, is_plain: bool = False, text_suffix: str | None = None
) -> TokenizerFiles:
    """Load from tokenizer.json, or else from older vocabulary files.

    `is_plain`: tokenizer.json is used as it is, whatever class and tokens other files name. `text_suffix` ends every
    text.
    """
    config = checkpoint.read_json_object("config.json")
    args = read_encoder_args(checkpoint, find_encoder_file(checkpoint), TOKENIZER_ARGS)
    applied = {name: value for name, value in args.items() if name in APPLIED_TOKENIZER_ARGS}
    settings = {**checkpoint.read_json_object("tokenizer_config.json"), **applied}
    names = _read_special_tokens(checkpoint, settings)
    class_name: str | None = None
    path, built = checkpoint.find_file("tokenizer.json"), None
    if path is not None:
        check_not_empty(path)
        with wrap_tokenizer_errors(path):
            tokenizer = Tokenizer.from_file(str(path))
        if not is_plain:
            class_name = resolve_tokenizer_class(settings, config, is_byte_level=_is_byte_level(tokenizer))
        if class_name is not None:
            with wrap_tokenizer_errors(checkpoint.folder / "tokenizer_config.json"):
                apply_class_settings(tokenizer, class_name, settings, path)
    else:
        # imported on use: most models have a tokenizer.json, and every module makes the start slower
        from cenote.loading.legacy_tokenizers.build import build_legacy_tokenizer

        built = build_legacy_tokenizer(checkpoint, settings, names)
        if built is None:
            raise LoadError(
                f"{checkpoint.folder} has no tokenizer: expected one of {TOKENIZER_FILE_NAMES} or tokenizer.model; "
                "download the model again or set the tokenizer option"
            )
        tokenizer, names = built.tokenizer, built.special_tokens
        chosen = find_tokenizer_class(settings, config)
        class_name = None if chosen is None else chosen.name
    padding, truncation = tokenizer.padding or {}, tokenizer.truncation or {}
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if not is_plain:
        with wrap_tokenizer_errors(checkpoint.folder / "tokenizer_config.json"):
            add_listed_tokens(tokenizer, checkpoint, settings)
            if built is not None:  # after tokens with fixed ids
                add_special_tokens(built)
            add_unlisted_tokens(tokenizer, checkpoint, settings, class_name)
    with wrap_tokenizer_errors(path or checkpoint.folder):
        if built is None and class_name is not None:
            add_class_template(tokenizer, class_name, names)
        _add_bos_eos(tokenizer, settings, names, adds_bos=built is not None and built.recipe.adds_bos)
    if text_suffix is not None:
        _append_suffix(tokenizer, text_suffix, str(checkpoint.folder))

    pad = _token_id(tokenizer, names.get("pad_token"))
    unk = names.get("unk_token") or getattr(tokenizer.model, "unk_token", None)
    side = settings.get("truncation_side") or truncation.get("direction", "right")
    if side not in ("left", "right"):
        raise LoadError(
            f"{checkpoint.folder / 'tokenizer_config.json'}: truncation_side is {side!r}; expected 'left' or 'right'"
        )
    template = _find_chat_template(checkpoint, settings)
    return TokenizerFiles(
        tokenizer=tokenizer,
        truncation_side=side,
        model_max_length=read_tokenizer_max_length(checkpoint),
        pad_token_id=pad if pad is not None else padding.get("pad_id"),
        unk_token_id=_token_id(tokenizer, unk),
        chat_template=template,
        special_tokens=names,
        # for WordPiece only; tokens of byte-level BPE include their spaces
        clean_up_spaces=settings.get("clean_up_tokenization_spaces") is True
        and type(tokenizer.model).__name__ != "BPE",
        tokenizer_config=_make_tokenizer_config(settings, template),
        has_token_types=has_token_types(settings, class_name),
        is_legacy=built is not None,
        returns_token_types=returns_token_types(settings, class_name),
        checkpoint=checkpoint,
    )


def load_text_tokenizer(checkpoint: Checkpoint, text_suffix: str | None) -> Tokenizer:
    """Load the tokenizer of a text model again, in another process than the model."""
    return load_tokenizer_files(checkpoint, text_suffix=text_suffix).tokenizer


def read_tokenizer_max_length(checkpoint: Checkpoint) -> int | None:
    """Return model_max_length of tokenizer_config.json, None if missing or unlimited."""
    length = checkpoint.read_json_object("tokenizer_config.json").get("model_max_length")
    return int(length) if isinstance(length, int | float) and 0 < length < UNLIMITED_LENGTH else None


def empty_tokenizer_files() -> TokenizerFiles:
    """Return a placeholder for models without text input."""
    return TokenizerFiles(tokenizer=Tokenizer(models.WordLevel({"": 0}, unk_token="")))


def read_chat_template(checkpoint: Checkpoint) -> str | None:
    return _find_chat_template(checkpoint, checkpoint.read_json_object("tokenizer_config.json"))


def _read_special_tokens(checkpoint: Checkpoint, settings: TokenizerSettings) -> SpecialTokens:
    """Return the special tokens as strings; files may store them as objects."""
    merged = read_special_tokens(checkpoint, settings)
    given = {name: merged.get(name) for name in TOKEN_NAMES}
    texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in given.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    splitter = tokenizer.pre_tokenizer
    parts = list(splitter) if isinstance(splitter, pre_tokenizers.Sequence) else [splitter]  # type: ignore[call-overload]
    is_decoder = isinstance(tokenizer.decoder, decoders.ByteLevel)
    return is_decoder or any(isinstance(part, pre_tokenizers.ByteLevel) for part in parts)


def append_eos(files: TokenizerFiles) -> None:
    """Make the tokenizer end every input with the EOS token."""
    _add_bos_eos(files.tokenizer, {"add_eos_token": True}, dict(files.special_tokens), adds_bos=False)


def remove_special_tokens(tokenizer: Tokenizer) -> None:
    """Make the tokenizer add no special tokens to texts and pairs."""
    tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])


def _append_suffix(tokenizer: Tokenizer, suffix: str, source: str) -> None:
    """Make the tokenizer end every input with the tokens of a text, which truncation keeps like an EOS token."""
    added = tokenizer.encode(suffix, add_special_tokens=False)
    if tokenizer.encode(f"a{suffix}").ids != [*tokenizer.encode("a").ids, *added.ids]:
        raise LoadError(f"{source}: the tokens of the suffix {suffix!r} depend on the text; set the tokenizer option")
    single = ["$A", *added.tokens]
    template = processors.TemplateProcessing(
        single=single, pair=[*single, "$B:1"], special_tokens=list(zip(added.tokens, added.ids, strict=True))
    )
    before = tokenizer.post_processor
    tokenizer.post_processor = template if before is None else processors.Sequence([before, template])


def _add_bos_eos(tokenizer: Tokenizer, settings: TokenizerSettings, names: SpecialTokens, *, adds_bos: bool) -> None:
    """Apply add_bos_token and add_eos_token unless the tokenizer's template already does."""
    bos, eos = _token_id(tokenizer, names.get("bos_token")), _token_id(tokenizer, names.get("eos_token"))
    wants_bos = bool(settings.get("add_bos_token", adds_bos)) and bos is not None
    wants_eos = bool(settings.get("add_eos_token", False)) and eos is not None
    plain, full = tokenizer.encode("a", add_special_tokens=False).ids, tokenizer.encode("a").ids
    start = next((row for row in range(len(full)) if full[row : row + len(plain)] == plain), 0)
    before, after = full[:start], full[start + len(plain) :]
    if before not in ([], [bos]) or after not in ([], [eos]):  # a template with other tokens is kept
        return
    if wants_bos <= bool(before) and wants_eos <= bool(after):
        return
    starts = [(names["bos_token"], bos)] if wants_bos or before else []
    ends = [(names["eos_token"], eos)] if wants_eos or after else []
    texts = [[text for text, _ in starts], ["$A"], [text for text, _ in ends]]
    single = [text for part in texts for text in part]
    second = [f"{text}:1".replace("$A", "$B") for text in single]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=single + second, special_tokens=list(dict(starts + ends).items())
    )


def _token_id(tokenizer: Tokenizer, text: str | None) -> int | None:
    return None if text is None else tokenizer.token_to_id(text)


def _find_chat_template(checkpoint: Checkpoint, settings: TokenizerSettings) -> str | None:
    """Return the chat template: a file, or chat_template of the settings (a string or a list with "default")."""
    if (path := checkpoint.find_file("chat_template.jinja")) is not None:
        check_not_empty(path)
        return path.read_text(encoding="utf-8")
    template = checkpoint.read_json_object("chat_template.json").get("chat_template") or settings.get("chat_template")
    if isinstance(template, list):
        entries = (entry for entry in template if isinstance(entry, dict))
        template = {entry.get("name"): entry.get("template") for entry in entries}.get("default")
    return template if isinstance(template, str) else None


def _make_tokenizer_config(settings: TokenizerSettings, template: str | None) -> dict[str, Any]:
    """Return tokenizer_config.json with the chat template, in values that every serialisation format supports."""
    named = {**settings, "tokenizer_class": settings.get("tokenizer_class") or "PreTrainedTokenizerFast"}
    named = named if template is None else {**named, "chat_template": template}
    # "unlimited" model_max_length exceeds 64 bits
    return {name: float(value) if type(value) is int and value >= 2**63 else value for name, value in named.items()}
