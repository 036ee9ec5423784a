"""Encode and decode the requests that front-ends send to the engine process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from cenote.api.wire.messages import (
    EncodedConversation,
    EncodedDocument,
    EncodedInput,
    EncodedPair,
    EncodedParts,
    OutOfRangeIds,
    PoolCall,
    ProcessCall,
    from_json,
    to_json,
)
from cenote.api.wire.token_codec import decode_operands, encode_operands
from cenote.protocol.input_types import (
    ChunkedDocument,
    ContentParts,
    Conversation,
    Input,
    InvalidInput,
    ListwiseInput,
    MultimodalPair,
    MultimodalPrompt,
    PromptEmbeds,
    ScoreInput,
    TensorInput,
    TextPair,
)
from cenote.protocol.params import PoolingParams
from cenote.protocol.requests import CallRef, PluginRequest, PoolRequest, Timing

MAX_INT64 = 2**63 - 1


def encode_pool(call_id: int, request: PoolRequest, isolated: Sequence[int] = ()) -> PoolCall:
    params = request.params
    return PoolCall(
        call_id=call_id,
        task=request.task,
        extra_tasks=request.extra_tasks,
        inputs=encode_inputs(request.inputs),
        params=params if params is None or isinstance(params, PoolingParams) else list(params),
        tokenization=request.tokenization,
        prompt=request.prompt,
        prompt_name=request.prompt_name,
        role=request.role,
        input_type=request.input_type,
        embedding_task=request.embedding_task,
        adapter=request.adapter if request.adapter is None or isinstance(request.adapter, str) else [*request.adapter],
        mm_processor_kwargs=to_json(request.mm_processor_kwargs),
        scheduling=request.scheduling,
        deadline_at=request.deadline_at,
        return_exceptions=request.return_exceptions is True,
        operands=encode_operands(request.operands),
        isolated=list(isolated),
    )


def decode_pool(message: PoolCall, timing: Timing) -> PoolRequest:
    return PoolRequest(
        task=message.task,
        extra_tasks=message.extra_tasks,
        inputs=decode_inputs(message.inputs),
        params=message.params,
        tokenization=message.tokenization,
        prompt=message.prompt,
        prompt_name=message.prompt_name,
        role=message.role,
        input_type=message.input_type,
        embedding_task=message.embedding_task,
        adapter=message.adapter,
        mm_processor_kwargs=from_json(message.mm_processor_kwargs),
        scheduling=message.scheduling,
        deadline_at=message.deadline_at,
        return_exceptions=message.return_exceptions,
        operands=decode_operands(message.operands),
        call=CallRef(message.call_id, frozenset(message.isolated)),
        timing=timing,
    )


def decode_plugin(message: ProcessCall, timing: Timing) -> PluginRequest:
    return PluginRequest(
        data=from_json(message.data),
        request_id=message.request_id,
        tokenization=message.tokenization,
        scheduling=message.scheduling,
        deadline_at=message.deadline_at,
        timing=timing,
    )


def encode_inputs(inputs: Sequence[Input]) -> list[EncodedInput]:
    """Encode the inputs of a request; what its conversations share is in the message once."""
    if are_all_texts(inputs):
        return inputs
    encoded: list[EncodedInput] = []
    variables: Mapping[str, Any] | None = None
    for item in inputs:
        if isinstance(item, Conversation):
            encoded.append(encode_conversation(item, is_like_previous=item.template_kwargs is variables))
            variables = item.template_kwargs
        else:
            encoded.append(encode_input(item))
    return encoded


def decode_inputs(items: list[EncodedInput]) -> list[Input]:
    if are_all_texts(items):
        return items
    inputs: list[Input] = []
    variables: Mapping[str, Any] = {}
    for item in items:
        if isinstance(item, EncodedConversation):
            conversation = decode_conversation(item, variables)
            variables = conversation.template_kwargs
            inputs.append(conversation)
        else:
            inputs.append(decode_input(item))
    return inputs


def are_all_texts(inputs: Sequence[object]) -> TypeGuard[list[Any]]:
    return isinstance(inputs, list) and all(type(item) is str for item in inputs)


def encode_input(item: Input) -> EncodedInput:
    if isinstance(item, str):
        return item
    if isinstance(item, TextPair | MultimodalPair):
        return EncodedPair(
            _encode_text(item.query), _encode_text(item.document), item.template, to_json(item.template_kwargs)
        )
    if isinstance(item, ChunkedDocument):
        return EncodedDocument(item.chunks)
    if isinstance(item, Conversation):
        return encode_conversation(item)
    if isinstance(item, ContentParts):
        return _encode_parts(item)
    assert not isinstance(item, ListwiseInput | MultimodalPrompt | InvalidInput | TensorInput | PromptEmbeds), (
        "no HTTP route makes inputs of these types"
    )
    return encode_token_ids(item)


def encode_conversation(item: Conversation, *, is_like_previous: bool = False) -> EncodedConversation:
    return EncodedConversation(
        to_json(item.messages),
        item.template,
        None if is_like_previous else to_json(item.template_kwargs),
        item.add_generation_prompt,
        item.continue_final_message,
        item.image_names,
    )


def decode_conversation(item: EncodedConversation, variables: Mapping[str, Any]) -> Conversation:
    """Decode a conversation; `variables`: those of the one before it, which it may share."""
    return Conversation(
        from_json(item.messages),
        item.template,
        variables if item.template_kwargs is None else from_json(item.template_kwargs),
        item.add_generation_prompt,
        item.continue_final_message,
        item.image_names,
    )


def _encode_text(item: ScoreInput) -> str | EncodedParts:
    return item if isinstance(item, str) else _encode_parts(item)


def _decode_text(item: str | EncodedParts) -> ScoreInput:
    return item if isinstance(item, str) else ContentParts(from_json(item.content), item.param_path)


def _encode_parts(content_parts: ContentParts) -> EncodedParts:
    return EncodedParts(to_json(content_parts.content), content_parts.param_path)


def encode_token_ids(token_ids: Sequence[int]) -> list[int] | OutOfRangeIds:
    ids = [int(token) for token in token_ids]
    large = bool(ids) and (max(ids) > MAX_INT64 or min(ids) < -MAX_INT64)
    return OutOfRangeIds(to_json(ids)) if large else ids


def decode_token_ids(token_ids: list[int] | OutOfRangeIds) -> list[int]:
    return token_ids if isinstance(token_ids, list) else from_json(token_ids.token_ids, type=list[int])


def decode_input(item: EncodedInput) -> Input:
    if isinstance(item, str | list):
        return item
    if isinstance(item, EncodedPair):
        query, document, variables = item.query, item.document, from_json(item.template_kwargs)
        if isinstance(query, str) and isinstance(document, str):
            return TextPair(query, document, item.template, variables)
        return MultimodalPair(_decode_text(query), _decode_text(document), item.template, variables)
    if isinstance(item, EncodedDocument):
        return ChunkedDocument(item.chunks)
    if isinstance(item, EncodedConversation):
        return decode_conversation(item, {})
    if isinstance(item, EncodedParts):
        return _decode_text(item)
    return decode_token_ids(item)
