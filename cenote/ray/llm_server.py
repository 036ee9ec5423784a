"""CenoteLLMServer: the `server_cls` of a Ray Serve LLM configuration, for embeddings and scores.

LLMConfig(model_loading_config={"model_id": "mini", "model_source": FOLDER}, server_cls=CenoteLLMServer)
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any

import msgspec

from cenote.config.engine import EngineConfig
from cenote.config.model_table import ModelEntry
from cenote.config.server import ServerConfig
from cenote.errors import Unsupported
from cenote.ray.asgi_calls import HttpRequest, call_app
from cenote.ray.imports import import_ray
from cenote.ray.replica import ModelReplica
from cenote.ray.serve import MAX_ONGOING_REQUESTS

RESPONSE_MODELS = "ray.llm._internal.serve.core.configs.openai_api_models"
JSON_HEADERS = ((b"content-type", b"application/json"),)
NO_PROFILES = "a pooling engine takes no profiles here; run cenote explain MODEL"
NO_SLEEP = "a pooling engine does not sleep or pause; scale the deployment to zero replicas"
GENERATIVE = "this model returns vectors and scores; use /v1/embeddings, /v1/score or /tokenize"


class CenoteLLMServer:
    """Has the methods of Ray Serve LLM's server protocol; requests and responses are vLLM's types."""

    def __init__(self, llm_config: Any = None, **kwargs: Any) -> None:
        self._llm_config = llm_config
        loading = llm_config.model_loading_config
        model = getattr(loading, "model_source", None) or loading.model_id
        config = EngineConfig.from_kwargs(**{**(llm_config.engine_kwargs or {}), "model": str(model)})
        entry = ModelEntry(name=loading.model_id, config=config)
        num_cpus = (llm_config.deployment_config.get("ray_actor_options") or {}).get("num_cpus", 1)
        threads = None if config.device is not None and "cuda" in config.device else max(1, round(num_cpus))
        self.replica = ModelReplica(entry, ServerConfig(), threads)

    @classmethod
    def get_deployment_options(cls, llm_config: Any) -> dict[str, Any]:
        """Return the options of the deployment: those of the configuration over ours."""
        options = deepcopy(llm_config.deployment_config)
        options.setdefault("max_ongoing_requests", MAX_ONGOING_REQUESTS)
        actor_options = options.setdefault("ray_actor_options", {})
        if llm_config.runtime_env:
            actor_options["runtime_env"] = {**actor_options.get("runtime_env", {}), **llm_config.runtime_env}
        return dict(options)

    async def start(self) -> None:
        """The engine runs since the constructor."""

    async def check_health(self) -> None:
        await self.replica.check_health()

    def record_autoscaling_stats(self) -> dict[str, float]:
        return self.replica.record_autoscaling_stats()

    async def __serve_build_asgi_app__(self) -> Any:
        """Return our app, where Ray Serve LLM sends HTTP requests to the servers directly."""
        return await self.replica.__serve_build_asgi_app__()

    async def embeddings(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        yield await self._call("/v1/embeddings", request, "EmbeddingResponse")

    async def score(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        yield await self._call("/score", request, "ScoreResponse")

    async def tokenize(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        yield await self._call("/tokenize", request, "TokenizeResponse")

    async def detokenize(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        yield await self._call("/detokenize", request, "DetokenizeResponse")

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncIterator[Any]:
        yield make_error(GENERATIVE, "BadRequestError", 400)

    completions = transcriptions = chat

    async def llm_config(self) -> Any:
        return self._llm_config

    async def reset_prefix_cache(self) -> None:
        """There is no prefix cache."""

    async def start_profile(self) -> None:
        raise Unsupported(NO_PROFILES)

    stop_profile = start_profile

    async def sleep(self, **kwargs: Any) -> None:
        raise Unsupported(NO_SLEEP)

    async def wakeup(self, **kwargs: Any) -> None:
        """The engine never sleeps."""

    async def is_sleeping(self) -> bool:
        return False

    pause = sleep

    async def resume(self, **kwargs: Any) -> None:
        """The engine never pauses."""

    is_paused = is_sleeping

    async def _call(self, path: str, request: Any, response_type: str) -> Any:
        """Send a request through our routes, so that limits, errors and metrics are those of HTTP requests."""
        body = request.model_dump_json(exclude_unset=True).encode()
        reply = await call_app(self.replica.asgi_app, HttpRequest("POST", path, headers=JSON_HEADERS, body=body))
        content = msgspec.json.decode(reply.body)
        if reply.status != 200:
            error = content["error"]
            return make_error(error["message"], error["type"], reply.status)
        return getattr(import_ray(RESPONSE_MODELS), response_type)(**content)


def make_error(message: str, kind: str, status: int) -> Any:
    models = import_ray(RESPONSE_MODELS)
    return models.ErrorResponse(error=models.ErrorInfo(message=message, type=kind, code=status))
