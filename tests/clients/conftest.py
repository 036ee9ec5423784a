"""Servers that clients from the shelf speak to: real processes, each started once, and the same model in this one."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from cenote import LLM
from tests.api.app_client import add_chat_template
from tests.models.tiny_qwen3_vl import save_tiny_qwen3_vl
from tests.real.conftest import model_folder
from tests.serving.server_process import ServerProcess
from tests.tiny import save_tiny

# read by the clients as soon as they are imported
os.environ |= {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # a price list that it would download
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "DO_NOT_TRACK": "1",
    "NO_PROXY": "127.0.0.1",
}
HERE = ("127.0.0.1", b"127.0.0.1", "localhost", None)
KEY = "your-api-key"
TEXTS = ["a cenote is a natural pit", "the price of bread", "how deep is it?"]
QUERY = "who live in the old city?"
DOCUMENTS = ["the dog and the cat", "people live in the old city", "a red bird", "two big fish in the river"]
PROMPTS = {"query": "search query: ", "document": "the book: "}
LABELS = {0: "good", 1: "bad"}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # several wait for each other, long where other processes have the cores
EXACT = {"dtype": "float32", "device": "cpu"}


@dataclass(frozen=True)
class RunningServer:
    url: str
    model: str
    llm: LLM  # the same model, for the numbers that are right

    def embed(self, prompts: Any, **options: Any) -> np.ndarray[Any, Any]:
        found = self.llm.embed(prompts, use_tqdm=False, **options)
        return np.array([each.outputs.embedding for each in found], dtype=np.float32)

    def score(self, query: Any, documents: Any, **options: Any) -> list[float]:
        return [each.outputs.score for each in self.llm.score(query, documents, use_tqdm=False, **options)]

    def num_tokens(self, prompts: Sequence[str]) -> int:
        return sum(len(self.ids(prompt)) for prompt in prompts)

    def ids(self, prompt: str) -> list[int]:
        found: list[int] = self.tokenizer.encode(prompt).ids
        return found

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.llm.get_tokenizer()


@pytest.fixture(autouse=True)
def block_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A client that looks for another machine finds none, and its test fails even if it can live with that."""
    looked_for: list[Any] = []
    look_up = socket.getaddrinfo

    def look_up_here(host: Any, *rest: Any, **more: Any) -> Any:
        if host not in HERE:
            looked_for.append(host)
            raise socket.gaierror(f"{host} is not this machine")
        return look_up(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", look_up_here)
    yield
    assert not looked_for


@contextmanager
def run_server(model: LLM, name: str, *flags: str) -> Iterator[RunningServer]:
    exact = [word for option, value in EXACT.items() for word in (f"--{option}", value)]
    served = ServerProcess(*flags, *exact, "--served-model-name", name, **ONE_THREAD)
    try:
        yield RunningServer(served.wait_until_ready().address, name, model)
    finally:
        served.stop()


@pytest.fixture(scope="session")
def embedder(llm: LLM) -> Iterator[RunningServer]:
    """all-MiniLM-L6-v2, said to be a Matryoshka model: 384 numbers, 256 tokens. No key, no prompts."""
    with run_server(llm, "mini", "--hf_overrides", '{"is_matryoshka": true}') as server:
        yield server


@pytest.fixture(scope="session")
def protected_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A tiny Qwen3 embedder behind a key and two front-end processes: 32 numbers, 66 tokens, longer texts in pieces."""
    folder = tmp_path_factory.mktemp("guarded")
    save_tiny(folder, "Qwen3Model")
    add_chat_template(folder)
    add_prompts(folder)
    pooler = {"pooling_type": "MEAN", "normalize": True, "enable_chunked_processing": True, "max_embed_len": 1_572_864}
    words = ["--task", "embed", "--override-pooler-config", json.dumps(pooler), "--trust-remote-code"]
    words += ["--api-key", KEY, "--api-server-count", "2"]
    with (
        LLM(str(folder), served_model_name="tiny", pooler_config=pooler, **EXACT) as model,
        run_server(model, "tiny", str(folder), *words) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A tiny Qwen2 with two classes and a chat template."""
    folder = tmp_path_factory.mktemp("classifier")
    save_tiny(folder, "Qwen2ForSequenceClassification", id2label=LABELS, max_position_embeddings=256)
    add_chat_template(folder)
    with LLM(str(folder), **EXACT) as model, run_server(model, "classes", str(folder)) as server:
        yield server


@pytest.fixture(scope="session")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A tiny XLM-RoBERTa that compares two texts; what it likes is chance."""
    folder = tmp_path_factory.mktemp("reranker")
    save_tiny(folder, "XLMRobertaForSequenceClassification", num_labels=1, max_position_embeddings=258)
    with LLM(str(folder), **EXACT) as model, run_server(model, "pairs", str(folder)) as server:
        yield server


@pytest.fixture(scope="session")
def multimodal_embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A tiny Qwen3-VL, an embedder of texts and images."""
    folder = tmp_path_factory.mktemp("seer")
    save_tiny_qwen3_vl(folder)
    with LLM(str(folder), **EXACT) as model, run_server(model, "seer", str(folder)) as server:
        yield server


@pytest.fixture(scope="session")
def cross_encoder() -> Iterator[RunningServer]:
    """A real cross-encoder, where its files are at hand."""
    name = "ms-marco-MiniLM-L12-v2"
    checkpoint = str(model_folder(name))
    with LLM(checkpoint, **EXACT) as model, run_server(model, name, checkpoint) as server:
        yield server


@pytest.fixture(scope="session")
def granite() -> Iterator[RunningServer]:
    """A real RoBERTa embedder, where its files are at hand."""
    name = "granite-embedding-30m-english"
    checkpoint = str(model_folder(name))
    with LLM(checkpoint, **EXACT) as model, run_server(model, name, checkpoint) as server:
        yield server


@pytest.fixture
def openai_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenAI's own vocabulary, of which litellm brings a copy; tiktoken would download it."""
    spec = find_spec("litellm")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "litellm_core_utils" / "tokenizers"
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder))


def add_prompts(folder: Path) -> None:
    """As Sentence Transformers writes them."""
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": PROMPTS}))


def is_close(one: Any, other: Any) -> bool:
    """The same up to the last bits: who shares a batch with whom is up to chance."""
    return bool(np.allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5))
