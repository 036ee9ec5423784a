"""LoRA adapters in a real server with two front-ends, with OpenAI's client."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from cenote import LLM, LoRARequest
from tests.models.adapters import save_model_and_adapters
from tests.serving.server_process import TIMEOUT_S, ServerProcess
from tests.tiny import TEXTS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and two adapters."""
    return save_model_and_adapters(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    flags = ("--dtype", "float32", "--served-model-name", "tiny", "--lora-modules", f"first={folder / 'first'}")
    server = ServerProcess(
        str(folder / "model"),
        *flags,
        "--api-server-count",
        "2",
        "--admin-api-key",
        "none",
        "--allow-runtime-lora-updating",
    ).wait_until_ready()
    yield server
    assert server.stop() == 0


def vectors(server: ServerProcess, model: str) -> np.ndarray[Any, Any]:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        response = client.embeddings.create(model=model, input=TEXTS)
    assert response.model == "tiny"
    return np.array([item.embedding for item in response.data])


def expected(folder: Path, name: str | None) -> np.ndarray[Any, Any]:
    with LLM(str(folder / "model"), dtype="float32", device="cpu", enable_lora=True) as llm:
        adapter = LoRARequest(name, 1, str(folder / name)) if name else None
        outputs = llm.embed(TEXTS, lora_request=adapter, use_tqdm=False)
        return np.array([output.outputs.embedding for output in outputs])


def test_the_model_field_of_the_openai_client_selects_an_adapter(server: ServerProcess, folder: Path) -> None:
    with openai.OpenAI(base_url=f"{server.address}/v1", api_key="none", timeout=TIMEOUT_S) as client:
        assert [(card.id, card.parent) for card in client.models.list()] == [  # type: ignore[attr-defined]
            ("tiny", None),
            ("first", "tiny"),
        ]
    np.testing.assert_allclose(vectors(server, "tiny"), expected(folder, None), atol=1e-5)
    np.testing.assert_allclose(vectors(server, "first"), expected(folder, "first"), atol=1e-5)
    with pytest.raises(openai.NotFoundError, match="The model `late` does not exist"):
        vectors(server, "late")


def test_an_adapter_loaded_by_one_front_end_is_known_to_the_others(server: ServerProcess, folder: Path) -> None:
    late = expected(folder, "late")

    def post(path: str, body: dict[str, str]) -> httpx.Response:
        # creating a TLS context takes longer
        return httpx.post(
            server.address + path, json=body, headers={"x-api-key": "none"}, timeout=TIMEOUT_S, verify=False
        )

    def embed_late(_: int) -> httpx.Response:
        """Send over a new connection; several at once reach both front-ends."""
        return post("/v1/embeddings", {"model": "late", "input": TEXTS[0]})

    for _ in range(3):
        added = post("/v1/load_lora_adapter", {"lora_name": "late", "lora_path": str(folder / "late")})
        assert added.status_code == 200
        with ThreadPoolExecutor(4) as pool:
            for reply in pool.map(embed_late, range(4)):
                np.testing.assert_allclose(reply.json()["data"][0]["embedding"], late[0], atol=1e-5)
        assert post("/v1/unload_lora_adapter", {"lora_name": "late"}).status_code == 200
        with ThreadPoolExecutor(4) as pool:
            assert {reply.status_code for reply in pool.map(embed_late, range(4))} == {404}
