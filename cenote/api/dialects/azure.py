"""Paths of Azure OpenAI, where a deployment is a model, and of TextEmbed: bodies and answers are OpenAI's."""

from __future__ import annotations

from dataclasses import replace

from cenote.api.dialects.dialect import Dialect
from cenote.api.dialects.openai import OPENAI

AZURE = Dialect(
    "azure",
    [
        replace(
            OPENAI.routes[0],
            paths=(
                "/openai/deployments/{model}/embeddings",
                "/deployments/{model}/embeddings",
                "/v1/deployments/{model}/embeddings",  # with a base URL that ends in /v1
                "/openai/v1/embeddings",
                "/v1/embedding",
            ),
        )
    ],
    generation_paths=[
        f"{prefix}/{name}"
        for prefix in ("/openai/deployments/{model}", "/openai/v1")
        for name in ("chat/completions", "completions", "responses")
    ],
)
