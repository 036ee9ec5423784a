"""What every builder of an older tokenizer reads and returns, and the special-token templates they share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import AddedToken, Tokenizer, normalizers, processors

from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint, first_line

TokenizerSettings: TypeAlias = Mapping[str, Any]  # tokenizer_config.json
SpecialTokens: TypeAlias = dict[str, str]  # cls_token -> [CLS]

WAY_OUT = "save the tokenizer with Transformers, which writes tokenizer.json, or set the tokenizer option"

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


@dataclass(frozen=True, slots=True)
class TokenizerSource:
    """The files of a checkpoint and the tokenizer class that reads them."""

    checkpoint: Checkpoint
    class_name: str  # as in Transformers, without "Fast"
    class_file: str  # the file that decided the class
    settings: TokenizerSettings
    config: Mapping[str, Any]  # config.json
    special_tokens: SpecialTokens  # those of the files, and the defaults of the class for the others

    def require_vocabulary(self, file: str) -> Path:
        path = self.checkpoint.find_file(file)
        if path is None:
            raise LoadError(
                f"{self.checkpoint.folder}: {self.class_name} ({self.class_file}) needs {file}, which is missing; "
                f"download the model again, or {WAY_OUT}"
            )
        return path

    def refuse(self, setting: str) -> LoadError:
        """Return the error for a setting of tokenizer_config.json that is not supported."""
        path = self.checkpoint.folder / "tokenizer_config.json"
        return LoadError(f"{path}: {self.class_name} with {setting} is not supported; {WAY_OUT}")


@dataclass(frozen=True, slots=True)
class TokenizerRecipe:
    """How a tokenizer class is built from its vocabulary."""

    file: str  # the vocabulary
    names: SpecialTokens  # special tokens for those that the files leave out
    build: Callable[[TokenizerSource, Path], Tokenizer]
    set_template: Callable[[Tokenizer, SpecialTokens], None] | None = None  # None: `build` sets one, if any
    adds_bos: bool = False
    mask_takes_space: bool = False  # whether the mask token includes the space before it


@dataclass(frozen=True, slots=True)
class LegacyTokenizer:
    """A tokenizer with the special tokens and the recipe of its class."""

    tokenizer: Tokenizer
    special_tokens: SpecialTokens
    recipe: TokenizerRecipe


@contextmanager
def wrap_tokenizer_errors(path: Path) -> Iterator[None]:
    """Raise errors of the tokenizers library, which have no specific type, as LoadError with the file name."""
    try:
        yield
    except (LoadError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # Rust panics are not subclasses of Exception
        raise LoadError(f"{path} is not a valid tokenizer ({first_line(error)}); download it again") from error


def add_special_tokens(built: LegacyTokenizer) -> None:
    """Register special tokens, so that they are never split."""
    built.tokenizer.add_special_tokens(
        [
            AddedToken(
                text, lstrip=built.recipe.mask_takes_space and name == "mask_token", normalized=False, special=True
            )
            for name, text in built.special_tokens.items()
        ]
    )


def set_bert_template(tokenizer: Tokenizer, names: SpecialTokens) -> None:
    cls, sep = names["cls_token"], names["sep_token"]
    set_template(tokenizer, f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1", cls, sep)


def set_roberta_template(tokenizer: Tokenizer, names: SpecialTokens) -> None:
    cls, sep = names["cls_token"], names["sep_token"]
    set_template(tokenizer, f"{cls} $A {sep}", f"{cls} $A {sep} {sep} $B {sep}", cls, sep)


def set_template(tokenizer: Tokenizer, single: str, pair: str, *tokens: str) -> None:
    special = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(tokens)]
    for token, row in special:
        if row is None:
            raise ValueError(f"the vocabulary has no {token}, which the special-token template needs")
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)


def albert_steps(settings: TokenizerSettings, *, lower_case: bool) -> list[Any]:
    """Return the normalisation of ALBERT and XLNet before that of the file; `lower_case` is the class's default."""
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    return [*steps, normalizers.Lowercase()] if settings.get("do_lower_case", lower_case) else steps
