"""Adapters that come and go while the server runs, as the reference has it; served only where that is allowed."""

from __future__ import annotations

from typing import Annotated

import msgspec

from cenote.api.dialects.dialect import Dialect, Route
from cenote.api.replies import TEXT, Reply
from cenote.api.request_context import Call
from cenote.api.request_fields import says
from cenote.errors import BadRequest


class LoadBody(msgspec.Struct, kw_only=True):
    lora_name: Annotated[str | None, says("what requests call it, as their model")] = None
    lora_path: Annotated[str | None, says("a folder that PEFT saved, on the server's machine, or a hub name")] = None
    load_inplace: Annotated[bool | None, says("instead of the one of that name")] = None


class UnloadBody(msgspec.Struct, kw_only=True):
    lora_name: str | None = None
    lora_int_id: Annotated[int | None, says("accepted; the name tells adapters apart")] = None


async def load_adapter(body: LoadBody, call: Call) -> Reply:
    if not body.lora_name or not body.lora_path:
        raise BadRequest("Both 'lora_name' and 'lora_path' must be provided.")
    if body.lora_name in call.names:
        raise BadRequest(f"'{body.lora_name}' is what the model itself is called; give another", param="lora_name")
    await call.engine.load_adapter(body.lora_name, body.lora_path, in_place=bool(body.load_inplace))
    return said(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


async def unload_adapter(body: UnloadBody, call: Call) -> Reply:
    if not body.lora_name:
        raise BadRequest("'lora_name' needs to be provided to unload a LoRA adapter.")
    await call.engine.unload_adapter(body.lora_name)
    return said(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def said(text: str) -> Reply:
    return Reply(text.encode(), media_type=TEXT)


ADAPTERS = Dialect(
    "adapters",
    [
        Route(
            paths=("/v1/load_lora_adapter",),
            body=LoadBody,
            handler=load_adapter,
            summary="Let requests name one more adapter as their model",
            reply=str,
            media=TEXT,
            example={"lora_name": "my-adapter", "lora_path": "/adapters/mine"},
        ),
        Route(
            paths=("/v1/unload_lora_adapter",),
            body=UnloadBody,
            handler=unload_adapter,
            summary="Forget an adapter when all requests that name it are answered",
            reply=str,
            media=TEXT,
            example={"lora_name": "my-adapter"},
        ),
    ],
)
