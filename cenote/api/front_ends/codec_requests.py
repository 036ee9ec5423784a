"""From requests and answers to what goes over the wire, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeGuard, cast

import msgspec
import numpy as np

from cenote import errors
from cenote.api.encoding import Floats, as_array
from cenote.api.front_ends.messages import (
    ChatItem,
    Fault,
    Item,
    LargeIds,
    Lengths,
    PairItem,
    PartsItem,
    Pool,
    Process,
    RankingItem,
    Ready,
    Renewed,
    Score,
    Scores,
    Shapes,
    Tag,
    Tags,
    Times,
    Vectors,
)
from cenote.errors import PoolingError, Unsupported
from cenote.protocol.input_types import (
    Chat,
    Embeds,
    Input,
    Pair,
    Parts,
    PartsPair,
    Pictured,
    Ranking,
    Refused,
    Side,
    Tensors,
)
from cenote.protocol.requests import (
    About,
    EntityRequest,
    PluginRequest,
    Pooled,
    PoolingParams,
    PoolRequest,
    Scored,
    ScoreRequest,
    Stacked,
    Tagged,
    Timing,
)

NO_IDS = np.zeros(0, dtype=np.int32)
KINDS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, PoolingError)}
LARGEST = 2**63 - 1
SMALL_BYTES = 64 * 1024

as_json = msgspec.json.encode
from_json = msgspec.json.decode


def pool_message(number: int, request: PoolRequest) -> Pool:
    params = request.params
    return Pool(
        number=number,
        task=request.task,
        also=request.also,
        inputs=as_items(request.inputs),
        params=params if params is None or isinstance(params, PoolingParams) else list(params),
        tokenization=request.tokenization,
        prompt=request.prompt,
        prompt_name=request.prompt_name,
        role=request.role,
        input_type=request.input_type,
        purpose=request.purpose,
        adapter=request.adapter if request.adapter is None or isinstance(request.adapter, str) else [*request.adapter],
        media_kwargs=as_json(request.media_kwargs),
        priority=request.priority,
        tenant=request.tenant,
        keep_going=request.keep_going,
    )


def pool_request(message: Pool, timing: Timing) -> PoolRequest:
    return PoolRequest(
        task=message.task,
        also=message.also,
        inputs=as_inputs(message.inputs),
        params=message.params,
        tokenization=message.tokenization,
        prompt=message.prompt,
        prompt_name=message.prompt_name,
        role=message.role,
        input_type=message.input_type,
        purpose=message.purpose,
        adapter=message.adapter,
        media_kwargs=from_json(message.media_kwargs),
        priority=message.priority,
        tenant=message.tenant,
        keep_going=message.keep_going,
        timing=timing,
    )


def plugin_request(message: Process, timing: Timing) -> PluginRequest:
    return PluginRequest(
        data=from_json(message.data),
        request_id=message.request_id,
        tokenization=message.tokenization,
        priority=message.priority,
        tenant=message.tenant,
        timing=timing,
    )


def score_message(number: int, request: ScoreRequest) -> Score:
    return Score(
        number=number,
        queries=list(map(_side_item, request.queries)),
        documents=list(map(_side_item, request.documents)),
        score_type=request.score_type,
        params=request.params,
        tokenization=request.tokenization,
        max_tokens_per_query=request.max_tokens_per_query,
        max_tokens_per_doc=request.max_tokens_per_doc,
        template=request.template,
        template_kwargs=as_json(request.template_kwargs),
        instruction=request.instruction,
        adapter=request.adapter,
        media_kwargs=as_json(request.media_kwargs),
        priority=request.priority,
        tenant=request.tenant,
        keep_going=request.keep_going,
    )


def score_request(message: Score, timing: Timing) -> ScoreRequest:
    return ScoreRequest(
        queries=list(map(_side, message.queries)),
        documents=list(map(_side, message.documents)),
        score_type=cast("Any", message.score_type),  # the engine refuses a name it does not know
        params=message.params,
        tokenization=message.tokenization,
        max_tokens_per_query=message.max_tokens_per_query,
        max_tokens_per_doc=message.max_tokens_per_doc,
        template=message.template,
        template_kwargs=from_json(message.template_kwargs),
        instruction=message.instruction,
        adapter=message.adapter,
        media_kwargs=from_json(message.media_kwargs),
        priority=message.priority,
        tenant=message.tenant,
        keep_going=message.keep_going,
        timing=timing,
    )


def tag_message(number: int, request: EntityRequest) -> Tag:
    return Tag(
        number=number,
        pool=pool_message(number, request.pool),
        aggregation_strategy=request.aggregation_strategy,
        ignore_labels=list(request.ignore_labels),
        stride=request.stride,
    )


def entity_request(message: Tag, timing: Timing) -> EntityRequest:
    return EntityRequest(
        pool=pool_request(message.pool, timing),
        aggregation_strategy=message.aggregation_strategy,
        ignore_labels=message.ignore_labels,
        stride=message.stride,
    )


def as_items(inputs: Sequence[Input]) -> list[Item]:
    return inputs if only_texts(inputs) else [as_item(item) for item in inputs]


def as_inputs(items: list[Item]) -> list[Input]:
    return items if only_texts(items) else [as_input(item) for item in items]


def only_texts(inputs: Sequence[object]) -> TypeGuard[list[Any]]:
    return isinstance(inputs, list) and all(type(item) is str for item in inputs)


def as_item(item: Input) -> Item:
    if isinstance(item, str):
        return item
    if isinstance(item, Pair):
        return PairItem(item.query, item.document, item.template, as_json(item.template_kwargs))
    if isinstance(item, Ranking):
        return RankingItem(item.query, list(item.documents), item.instruction)
    if isinstance(item, Chat):
        return ChatItem(
            as_json(item.messages),
            item.template,
            as_json(item.template_kwargs),
            item.add_generation_prompt,
            item.continue_final_message,
            item.names,
        )
    if isinstance(item, Parts):
        return _parts_item(item)
    if isinstance(item, Embeds):
        raise Unsupported(
            "prompt_embeds cannot be sent to a server with several front-ends; use --api-server-count 1",
            param="prompt_embeds",
        )
    assert not isinstance(item, PartsPair | Pictured | Refused | Tensors), "no route asks with these"
    return as_ids(item)


def _side_item(side: Side) -> str | PartsItem:
    return side if isinstance(side, str) else _parts_item(side)


def _side(item: str | PartsItem) -> Side:
    return item if isinstance(item, str) else Parts(from_json(item.content), item.where)


def _parts_item(parts: Parts) -> PartsItem:
    return PartsItem(as_json(parts.content), parts.where)


def as_ids(given: Sequence[int]) -> list[int] | LargeIds:
    ids = [int(token) for token in given]
    large = bool(ids) and (max(ids) > LARGEST or min(ids) < -LARGEST)
    return LargeIds(as_json(ids)) if large else ids


def plain_ids(ids: list[int] | LargeIds) -> list[int]:
    return ids if isinstance(ids, list) else from_json(ids.token_ids, type=list[int])


def as_input(item: Item) -> Input:
    if isinstance(item, str | list):
        return item
    if isinstance(item, PairItem):
        return Pair(item.query, item.document, item.template, from_json(item.template_kwargs))
    if isinstance(item, RankingItem):
        return Ranking(item.query, item.documents, item.instruction)
    if isinstance(item, ChatItem):
        return Chat(
            from_json(item.messages),
            item.template,
            from_json(item.template_kwargs),
            item.add_generation_prompt,
            item.continue_final_message,
            item.names,
        )
    if isinstance(item, PartsItem):
        return _side(item)
    return plain_ids(item)


def vectors_message(
    number: int, timing: Timing, answers: Sequence[Pooled | PoolingError]
) -> tuple[Vectors, list[Floats]]:
    """The words, and the numbers that follow them."""
    pooled = [each for each in answers if isinstance(each, Pooled)]
    if isinstance(answers, Stacked):
        rows = as_array(answers.rows)
        return Vectors(number, times(timing), [rows.shape[1:]], [], lengths(pooled), []), [rows]
    shapes, numbers = _laid([each.data for each in pooled])
    others = []
    for task in pooled[0].others if pooled else ():
        shapes_of_task, more = _laid([each.others[task] for each in pooled])
        others.append((task, shapes_of_task))
        numbers += more
    return Vectors(number, times(timing), shapes, others, lengths(pooled), faults(answers)), numbers


def _laid(answers: Sequence[Any]) -> tuple[Shapes, list[Floats]]:
    arrays = [as_array(each) for each in answers]
    shapes = [tuple(each.shape) for each in answers]
    same = len(set(shapes)) == 1
    if same and arrays[0].nbytes < SMALL_BYTES:
        arrays = [np.concatenate(arrays, axis=None)]  # cheaper than to hand over many small pieces
    return shapes[:1] if same else shapes, arrays


def pooled(message: Vectors, numbers: bytes | memoryview) -> list[Pooled | PoolingError]:
    """What `vectors_message` was made of, as views of the numbers; the token ids stayed behind."""
    flat = np.frombuffer(numbers, dtype=np.float32)
    count = len(message.lengths.num_tokens)
    arrays, flat = _taken(flat, message.shapes, count)
    columns = zip(arrays, message.lengths.num_tokens, message.lengths.num_input_tokens, strict=True)
    answers = [Pooled(array, NO_IDS, num_tokens, given) for array, num_tokens, given in columns]
    if isinstance(arrays, np.ndarray) and arrays.ndim == 2 and not message.others and not message.faults:
        return merged(Stacked(answers, arrays), message.lengths.inexact, [])
    for task, shapes in message.others:
        arrays, flat = _taken(flat, shapes, count)
        for answer, array in zip(answers, arrays, strict=True):
            answer.others = {**answer.others, task: array}
    return merged(answers, message.lengths.inexact, message.faults)


def _taken(flat: Floats, shapes: Shapes, count: int) -> tuple[Floats | list[Floats], Floats]:
    """So many answers from the front of the numbers, and the rest."""
    if len(shapes) == 1:
        end = count * math.prod(shapes[0])
        return flat[:end].reshape(count, *shapes[0]), flat[end:]
    ends = np.cumsum([0, *(math.prod(shape) for shape in shapes)])
    arrays = [flat[start:end].reshape(shape) for start, end, shape in zip(ends, ends[1:], shapes, strict=False)]
    return arrays, flat[ends[-1] :]


def scores_message(number: int, timing: Timing, answers: Sequence[Scored | PoolingError]) -> Scores:
    scored = [each for each in answers if isinstance(each, Scored)]
    return Scores(number, times(timing), [each.score for each in scored], lengths(scored), faults(answers))


def scored(message: Scores) -> list[Scored | PoolingError]:
    columns = zip(message.scores, message.lengths.num_tokens, message.lengths.num_input_tokens, strict=True)
    answers = [Scored(score, NO_IDS, num_tokens, given) for score, num_tokens, given in columns]
    return merged(answers, message.lengths.inexact, message.faults)


def tags_message(number: int, timing: Timing, answers: Sequence[Tagged]) -> Tags:
    return Tags(number, times(timing), [each.entities for each in answers], lengths(answers))


def tagged(message: Tags) -> list[Tagged]:
    columns = zip(message.entities, message.lengths.num_tokens, message.lengths.num_input_tokens, strict=True)
    answers = [Tagged(entities, NO_IDS, num_tokens, given) for entities, num_tokens, given in columns]
    return merged(answers, message.lengths.inexact, [])


def lengths(answers: Sequence[Pooled | Scored | Tagged]) -> Lengths:
    return Lengths(
        [each.num_tokens for each in answers],
        [each.num_input_tokens for each in answers],
        [place for place, each in enumerate(answers) if not each.input_tokens_exact],
    )


def faults(answers: Sequence[Any]) -> list[tuple[int, Fault]]:
    return [(place, as_fault(each)) for place, each in enumerate(answers) if isinstance(each, PoolingError)]


def merged(answers: list[Any], inexact: list[int], faults: list[tuple[int, Fault]]) -> list[Any]:
    for place in inexact:
        answers[place].input_tokens_exact = False
    for place, fault in faults:
        answers.insert(place, as_error(fault))
    return answers


def as_fault(error: BaseException) -> Fault:
    if not isinstance(error, PoolingError):
        return Fault("", unicode(f"{type(error).__name__}: {error}"))
    kind = next(base.__name__ for base in type(error).__mro__ if KINDS.get(base.__name__) is base)
    value = None if error.value is None else unicode(str(error.value))
    return Fault(kind, unicode(error.message), error.param, value, error.index)


def unicode(text: str) -> str:
    """The text with what is no character written as an escape: a message about a bad text may quote it."""
    return text.encode(errors="backslashreplace").decode()


def as_error(fault: Fault) -> Exception:
    """The same error again, so that it is answered with the same words and status."""
    if not fault.kind:
        return RuntimeError(f"the engine's process failed: {fault.message}")
    error = KINDS[fault.kind](fault.message, param=fault.param, value=fault.value)
    error.index = fault.index
    return error


def times(timing: Timing) -> Times:
    return (timing.queue, timing.tokenize, timing.inference)


def about_of(message: Ready | Renewed) -> About:
    return from_json(message.about, type=About)
