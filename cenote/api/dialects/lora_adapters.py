"""Load and unload LoRA adapters at runtime, as in vLLM; enabled by --allow-runtime-lora-updating."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.plain_route import Routes
from cenote.api.replies import TEXT_MEDIA_TYPE, Reply
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import doc
from cenote.errors import BadRequest
from cenote.protocol.names import check_new_name

routes = Routes(Route)

MODEL_DOC = doc("Model of the adapter, if the server has several. Default: the first, or the one that has the adapter.")


class LoadAdapterBody(msgspec.Struct, kw_only=True):
    lora_name: Annotated[str | None, doc("Name of the adapter, which requests give as their model.")] = None
    lora_path: Annotated[str | None, doc("PEFT adapter folder on the server, or a hub name.")] = None
    model: Annotated[str | None, MODEL_DOC] = None
    load_inplace: Annotated[bool | None, doc("Replace the adapter of the same name.")] = None


class UnloadAdapterBody(msgspec.Struct, kw_only=True):
    lora_name: str | None = None
    model: Annotated[str | None, MODEL_DOC] = None
    lora_int_id: Annotated[int | None, doc("Accepted for compatibility, ignored.")] = None


@routes.add(
    "/v1/load_lora_adapter",
    reply_type=str,
    read_model_name=None,
    media_type=TEXT_MEDIA_TYPE,
    needs_admin=True,
    example={"lora_name": "my-adapter", "lora_path": "/adapters/mine"},
)
async def load_adapter(body: LoadAdapterBody, context: RequestContext) -> Reply:
    """Load a LoRA adapter."""
    if not body.lora_name or not body.lora_path:
        raise BadRequest("Both 'lora_name' and 'lora_path' must be provided.")
    check_new_name(body.lora_name, "lora_name")
    await context.select_model(body.model)
    if body.lora_name in context.models.by_name:
        raise BadRequest(
            f"'{body.lora_name}' is a name of the model itself; choose another lora_name", param="lora_name"
        )
    await context.load_adapter(body.lora_name, body.lora_path, in_place=bool(body.load_inplace))
    return text_reply(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@routes.add(
    "/v1/unload_lora_adapter",
    reply_type=str,
    read_model_name=None,
    media_type=TEXT_MEDIA_TYPE,
    needs_admin=True,
    example={"lora_name": "my-adapter"},
)
async def unload_adapter(body: UnloadAdapterBody, context: RequestContext) -> Reply:
    """Unload a LoRA adapter once no request in flight uses it."""
    if not body.lora_name:
        raise BadRequest("'lora_name' needs to be provided to unload a LoRA adapter.")
    found = context.models.find(body.lora_name)
    await context.select_model(found.model.name if found is not None and body.model is None else body.model)
    await context.unload_adapter(body.lora_name)
    return text_reply(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def text_reply(text: str) -> Reply:
    return Reply(text.encode(), media_type=TEXT_MEDIA_TYPE)


LORA_ADAPTERS = Dialect("adapters", routes)
