"""CenoteLLMServer has the methods that the installed version of Ray Serve LLM calls, and answers with its types."""

from __future__ import annotations

import ast
import asyncio
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pydantic
import pytest

from cenote.ray.llm_server import RESPONSE_MODELS, CenoteLLMServer

HAS_RAY = find_spec("ray") is not None


class AnyModel(pydantic.BaseModel, extra="allow"):
    pass


@pytest.fixture
def server(default_folder: Path, monkeypatch: pytest.MonkeyPatch) -> CenoteLLMServer:
    """With stand-ins for vLLM's types, which Ray Serve LLM imports: vLLM is not installed for tests."""
    models = ModuleType(RESPONSE_MODELS)
    for name in ("EmbeddingResponse", "ScoreResponse", "ErrorResponse", "ErrorInfo"):
        setattr(models, name, type(name, (AnyModel,), {}))
    monkeypatch.setattr("cenote.ray.llm_server.import_ray", {RESPONSE_MODELS: models}.__getitem__)
    loading = SimpleNamespace(model_id="mini", model_source=str(default_folder))
    config = SimpleNamespace(
        model_loading_config=loading, engine_kwargs={"dtype": "float32"}, deployment_config={}, runtime_env=None
    )
    return CenoteLLMServer(config)


async def first(answers: Any) -> Any:
    return await anext(answers)


def test_embeddings_and_scores_have_the_types_of_ray_serve_llm(server: CenoteLLMServer) -> None:
    embedded = asyncio.run(first(server.embeddings(AnyModel(model="mini", input=["a", "b"]))))
    scored = asyncio.run(first(server.score(AnyModel(model="mini", text_1="a", text_2=["a", "b"]))))
    refused = asyncio.run(first(server.embeddings(AnyModel(model="mini", input=[]))))
    chat = asyncio.run(first(server.chat(AnyModel(model="mini", messages=[]))))

    assert type(embedded).__name__ == "EmbeddingResponse"
    assert [len(item["embedding"]) for item in embedded.data] == [384, 384]
    assert type(scored).__name__ == "ScoreResponse"
    assert scored.data[0]["score"] == pytest.approx(1.0, abs=1e-3)
    assert (type(refused).__name__, refused.error.code) == ("ErrorResponse", 400)
    assert chat.error.code == 400
    asyncio.run(server.check_health())


def test_our_number_of_concurrent_requests_is_a_default(server: CenoteLLMServer) -> None:
    config = SimpleNamespace(deployment_config={"num_replicas": 2}, runtime_env=None)

    assert CenoteLLMServer.get_deployment_options(config) == {
        "num_replicas": 2,
        "max_ongoing_requests": 1024,
        "ray_actor_options": {},
    }


@pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed")
def test_every_method_of_the_protocol_exists_with_its_arguments() -> None:
    """Read from the source: importing it needs vLLM."""
    spec = find_spec("ray")
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).parent / "llm/_internal/serve/core/protocol.py"
    tree = ast.parse(source.read_text())
    (protocol,) = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "LLMServerProtocol"]
    methods = [node for node in protocol.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]

    assert len(methods) > 10
    for method in methods:
        ours: Any = getattr(CenoteLLMServer, method.name)
        if method.name != "__init__":
            arguments = [argument.arg for argument in method.args.args]
            assert list(ours.__code__.co_varnames[: ours.__code__.co_argcount]) == arguments, method.name
    assert "ray.llm" not in sys.modules
