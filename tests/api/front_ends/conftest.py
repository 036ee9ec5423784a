"""The native encoder of a vocabulary is made once per test file: engines and front-ends make one each otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import tokenizers

from cenote.inputs import tokenizer as tokenizer_module
from cenote.inputs.native_tokenizer import NativeChoice, choose_encoder
from tests.scoring.conftest import jina  # noqa: F401  # a fixture


@pytest.fixture(scope="module", autouse=True)
def shared_native_encoders() -> Iterator[None]:
    encoders: dict[str, NativeChoice] = {}

    def choose_once(raw: tokenizers.Tokenizer) -> NativeChoice:
        content = raw.to_str()
        if content not in encoders:
            encoders[content] = choose_encoder(raw)
        return encoders[content]

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(tokenizer_module, "choose_encoder", choose_once)
        yield
