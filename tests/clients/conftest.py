"""Servers for tests of published client libraries: real processes, each started once, and the same model in-process.

They stop after the tests of this folder: three idle processes of a server take some of the time of a core.
"""

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

from cenote import LLM
from cenote.inputs.model_tokenizer import ModelTokenizer
from tests.api.app_client import add_chat_template
from tests.models.tiny_qwen3_vl import save_tiny_qwen3_vl
from tests.real.conftest import model_folder
from tests.serving.server_process import ServerProcess
from tests.tiny import save_tiny

# read by the client libraries when they are imported
os.environ |= {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise it downloads a price list
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "DO_NOT_TRACK": "1",
    "NO_PROXY": "127.0.0.1",
}
LOCAL_HOSTS = ("127.0.0.1", b"127.0.0.1", "localhost", None)
KEY = "your-api-key"
TEXTS = ["a cenote is a natural pit", "the price of bread", "how deep is it?"]
QUERY = "who live in the old city?"
DOCUMENTS = ["the dog and the cat", "people live in the old city", "a red bird", "two big fish in the river"]
PROMPTS = {"query": "search query: ", "document": "the book: "}
LABELS = {0: "good", 1: "bad"}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # several threads wait for each other, for long if other processes use the cores
EXACT = {"dtype": "float32", "device": "cpu"}


@dataclass(frozen=True)
class RunningServer:
    url: str
    model: str
    llm: LLM  # the same model, for expected results

    def embed(self, prompts: Any, **options: Any) -> np.ndarray[Any, Any]:
        outputs = self.llm.embed(prompts, use_tqdm=False, **options)
        return np.array([output.outputs.embedding for output in outputs], dtype=np.float32)

    def score(self, query: Any, documents: Any, **options: Any) -> list[float]:
        return [output.outputs.score for output in self.llm.score(query, documents, use_tqdm=False, **options)]

    def num_tokens(self, prompts: Sequence[str]) -> int:
        return sum(len(self.ids(prompt)) for prompt in prompts)

    def ids(self, prompt: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(prompt).ids
        return ids

    @cached_property
    def tokenizer(self) -> ModelTokenizer:
        return self.llm.get_tokenizer()


@pytest.fixture(autouse=True)
def block_network(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail name resolution of other hosts, and the test too, even if the client handles the failure."""
    refused_hosts: list[Any] = []
    getaddrinfo = socket.getaddrinfo

    def resolve_local(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host not in LOCAL_HOSTS:
            refused_hosts.append(host)
            raise socket.gaierror(f"{host} is not a local host")
        return getaddrinfo(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_local)
    yield
    assert not refused_hosts


@contextmanager
def run_server(model: LLM, name: str, *flags: str) -> Iterator[RunningServer]:
    exact_flags = [word for option, value in EXACT.items() for word in (f"--{option}", value)]
    process = ServerProcess(*flags, *exact_flags, "--served-model-name", name, **ONE_THREAD)
    try:
        yield RunningServer(process.wait_until_ready().address, name, model)
    finally:
        process.stop()


@pytest.fixture(scope="package")
def embedder(llm: LLM) -> Iterator[RunningServer]:
    """all-MiniLM-L6-v2, declared as a Matryoshka model: 384 dimensions, 256 tokens. No API key, no prompts."""
    with run_server(llm, "mini", "--hf_overrides", '{"is_matryoshka": true}') as server:
        yield server


@pytest.fixture(scope="package")
def protected_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A tiny Qwen3 embedder with an API key and two front-ends: 32 dimensions, 66 tokens, longer texts in chunks."""
    folder = tmp_path_factory.mktemp("protected")
    save_tiny(folder, "Qwen3Model")
    add_chat_template(folder)
    add_prompts(folder)
    pooler = {"pooling_type": "MEAN", "normalize": True, "enable_chunked_processing": True, "max_embed_len": 1_572_864}
    flags = ["--task", "embed", "--override-pooler-config", json.dumps(pooler), "--trust-remote-code"]
    flags += ["--api-key", KEY, "--api-server-count", "2"]
    with (
        LLM(str(folder), served_model_name="tiny", pooler_config=pooler, **EXACT) as model,
        run_server(model, "tiny", str(folder), *flags) as server,
    ):
        yield server


@pytest.fixture(scope="package")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A tiny Qwen2 with two classes and a chat template."""
    folder = tmp_path_factory.mktemp("classifier")
    save_tiny(folder, "Qwen2ForSequenceClassification", id2label=LABELS, max_position_embeddings=256)
    add_chat_template(folder)
    with LLM(str(folder), **EXACT) as model, run_server(model, "classes", str(folder)) as server:
        yield server


@pytest.fixture(scope="package")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A tiny XLM-RoBERTa cross-encoder with random weights."""
    folder = tmp_path_factory.mktemp("reranker")
    save_tiny(folder, "XLMRobertaForSequenceClassification", num_labels=1, max_position_embeddings=258)
    with LLM(str(folder), **EXACT) as model, run_server(model, "pairs", str(folder)) as server:
        yield server


@pytest.fixture(scope="package")
def multimodal_embedder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A tiny Qwen3-VL embedder of texts and images."""
    folder = tmp_path_factory.mktemp("tiny-vl")
    save_tiny_qwen3_vl(folder)
    with LLM(str(folder), **EXACT) as model, run_server(model, "tiny-vl", str(folder)) as server:
        yield server


@pytest.fixture(scope="package")
def cross_encoder() -> Iterator[RunningServer]:
    """A real cross-encoder; skipped if its files are not available."""
    name = "ms-marco-MiniLM-L12-v2"
    checkpoint = str(model_folder(name))
    with LLM(checkpoint, **EXACT) as model, run_server(model, name, checkpoint) as server:
        yield server


@pytest.fixture(scope="package")
def granite() -> Iterator[RunningServer]:
    """A real RoBERTa embedder; skipped if its files are not available."""
    name = "granite-embedding-30m-english"
    checkpoint = str(model_folder(name))
    with LLM(checkpoint, **EXACT) as model, run_server(model, name, checkpoint) as server:
        yield server


@pytest.fixture
def openai_tokenizer(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use the copy of OpenAI's vocabulary in litellm, which is the result: tiktoken would download it."""
    spec = find_spec("litellm")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "litellm_core_utils" / "tokenizers"
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
    return folder / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"  # cl100k_base.tiktoken


def add_prompts(folder: Path) -> None:
    """Add prompts in the format of Sentence Transformers."""
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
    """Compare up to rounding: results depend slightly on the other inputs of the batch."""
    return bool(np.allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5))
