"""Fixtures: real tokenizers of five types."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import tokenizers

from cenote.inputs.renderer import Renderer
from cenote.inputs.renderer_settings import RendererSettings
from cenote.inputs.tokenizer import Tokenizer
from cenote.protocol.params import TruncationSide

SHARED = Path(__file__).parents[2] / ".." / "shared" / "tokenizers"
NAMES = ("wordpiece", "roberta-base", "xlm-roberta", "qwen3", "deberta-v3")


@cache
def read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    raw = tokenizers.Tokenizer.from_file(str(path))
    raw.no_truncation()
    raw.no_padding()
    return raw


@pytest.fixture(params=NAMES)
def raw(request: pytest.FixtureRequest, default_folder: Path) -> tokenizers.Tokenizer:
    """A `tokenizers.Tokenizer` without truncation and padding, shared by tests: they must restore what they change."""
    if request.param == "wordpiece":
        return read_tokenizer(default_folder / "tokenizer.json")
    path = SHARED / request.param / "tokenizer.json"
    if not path.is_file():
        pytest.skip(f"no tokenizer {request.param} in the folder `shared` next to the project")
    return read_tokenizer(path)


@cache
def wrap_tokenizer(raw: tokenizers.Tokenizer, side: TruncationSide = "right") -> Tokenizer:
    """Cached, since scanning a large vocabulary is slow."""
    return Tokenizer(raw, truncation_side=side)


@pytest.fixture(scope="session")
def wordpiece(default_folder: Path) -> Tokenizer:
    """BERT's tokenizer: [CLS] 101, [SEP] 102, [PAD] 0; the longest of 30,522 tokens has 18 characters.

    Shared by tests: they must restore what they change.
    """
    return Tokenizer(read_tokenizer(default_folder / "tokenizer.json"), pad_token_id=0)


@pytest.fixture
def renderer(wordpiece: Tokenizer) -> Renderer:
    return Renderer(wordpiece, RendererSettings(vocab_size=30522, hidden_size=384))
