"""Adapters that come and go while the server runs, as the reference has it; served only where that is allowed."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.replies import TEXT_MEDIA_TYPE, Reply
from cenote.api.request_context import RequestContext
from cenote.api.request_fields import doc
from cenote.errors import BadRequest


class LoadBody(msgspec.Struct, kw_only=True):
    lora_name: Annotated[str | None, doc("what requests call it, as their model")] = None
    lora_path: Annotated[str | None, doc("a folder that PEFT saved, on the server's machine, or a hub name")] = None
    load_inplace: Annotated[bool | None, doc("instead of the one of that name")] = None


class UnloadBody(msgspec.Struct, kw_only=True):
    lora_name: str | None = None
    lora_int_id: Annotated[int | None, doc("accepted; the name tells adapters apart")] = None


async def load_adapter(body: LoadBody, context: RequestContext) -> Reply:
    if not body.lora_name or not body.lora_path:
        raise BadRequest("Both 'lora_name' and 'lora_path' must be provided.")
    if body.lora_name in context.model_names:
        raise BadRequest(f"'{body.lora_name}' is what the model itself is called; give another", param="lora_name")
    await context.engine.load_adapter(body.lora_name, body.lora_path, in_place=bool(body.load_inplace))
    return text_reply(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(body: UnloadBody, context: RequestContext) -> Reply:
    if not body.lora_name:
        raise BadRequest("'lora_name' needs to be provided to unload a LoRA adapter.")
    await context.engine.unload_adapter(body.lora_name)
    return text_reply(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def text_reply(text: str) -> Reply:
    return Reply(text.encode(), media_type=TEXT_MEDIA_TYPE)


LORA_ADAPTERS = Dialect(
    "adapters",
    [
        Route(
            paths=("/v1/load_lora_adapter",),
            body_type=LoadBody,
            handler=load_adapter,
            summary="Let requests name one more adapter as their model",
            reply_type=str,
            media_type=TEXT_MEDIA_TYPE,
            example={"lora_name": "my-adapter", "lora_path": "/adapters/mine"},
        ),
        Route(
            paths=("/v1/unload_lora_adapter",),
            body_type=UnloadBody,
            handler=unload_adapter,
            summary="Forget an adapter when all requests that name it are answered",
            reply_type=str,
            media_type=TEXT_MEDIA_TYPE,
            example={"lora_name": "my-adapter"},
        ),
    ],
)
