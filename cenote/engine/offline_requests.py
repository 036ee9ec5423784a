"""Build engine requests from the arguments of the methods of `LLM`."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cenote.errors import BadRequest, PoolingError, Unsupported, explain_no_generation
from cenote.inputs.prompt_parsing import parse_cache_salt, parse_prompts, parse_tokenization_kwargs
from cenote.protocol.input_types import ChunkedDocument
from cenote.protocol.late_chunking import make_document, split_document
from cenote.protocol.params import AggregationStrategy, PoolingParams, ScoreType, Task, TokenizationParams
from cenote.protocol.requests import EntityRequest, PoolRequest, ScoreRequest
from cenote.protocol.scheduling import DEFAULT_SCHEDULING, SchedulingParams, hash_cache_salt
from cenote.protocol.score_inputs import parse_score_inputs

if TYPE_CHECKING:
    from cenote.engine.engine import PoolingEngine

logger = logging.getLogger("cenote")

PoolingParamsArg = PoolingParams | Sequence[PoolingParams] | None  # one for all prompts, or one per prompt
ScoreInputArg = str | Mapping[str, Any]  # a text, or an object whose content is texts and images

# what `LLM.score` reads from the extra_kwargs of PoolingParams
SCORE_EXTRA_KWARGS = (
    *("max_tokens_per_query", "max_tokens_per_doc"),
    *("chat_template_kwargs", "instruction", "mm_processor_kwargs"),
)

MISSING_TASK_MESSAGE = """pooling_task required for `LLM.encode`.
Use one of the specific methods, or name a task:
  - LLM.embed(...)     or pooling_task="embed":           one vector per prompt
  - LLM.classify(...)  or pooling_task="classify":        a probability per class
  - LLM.score(...):                                       the similarity of two texts
  - LLM.reward(...)    or pooling_task="token_classify":  a probability per class for every token
  - pooling_task="token_embed":                           a vector for every token
  - LLM.sparse_embed(...) or pooling_task="sparse_embed": a weight for every token of the vocabulary that matters
  - pooling_task="plugin":                                data for an IO processor plugin
  - several at once:                                      pooling_task="embed&token_embed"
This model supports: """


def make_pool_request(
    engine: PoolingEngine,
    tasks: Sequence[Task],
    prompts: Any,
    params: PoolingParamsArg,
    lora_request: Any,
    tokenization_kwargs: Mapping[str, Any] | None,
    **request_kwargs: Any,
) -> PoolRequest:
    """Build the request of `embed`, `classify`, `encode` and the like; load new adapters."""
    for task in tasks:
        engine.request_checks.check_task(task)
    for item in params if isinstance(params, list | tuple) else [params]:
        if isinstance(item, PoolingParams) and "compressed_token_type_ids" in (item.extra_kwargs or {}):
            raise Unsupported(
                "compressed_token_type_ids is not supported; use LLM.score for pairs of texts", param="extra_kwargs"
            )
    if isinstance(prompts, Iterator):
        prompts = list(prompts)
    salt = parse_cache_salt(prompts)
    return PoolRequest(
        task=tasks[0],
        extra_tasks=tuple(tasks[1:]),
        inputs=parse_prompts(prompts),
        params=params,
        tokenization=_parse_tokenization(tokenization_kwargs, params),
        adapter=_resolve_adapters(engine, lora_request),
        scheduling=DEFAULT_SCHEDULING if salt is None else SchedulingParams(cache_salt=hash_cache_salt(salt)),
        **request_kwargs,
    )


def make_documents(prompts: Any, chunk_size: int | None) -> list[ChunkedDocument]:
    """Return the documents of `embed` with late chunking: texts to split, or lists of chunks."""
    if isinstance(prompts, Iterator):
        prompts = list(prompts)
    if chunk_size is not None:
        return [
            split_document(text, chunk_size, "prompts") for text in ([prompts] if isinstance(prompts, str) else prompts)
        ]
    if not isinstance(prompts, list | tuple):
        raise BadRequest(
            f"late_chunking needs a list of texts, the chunks of a document, got {type(prompts).__name__}; chunk_size "
            "splits a text into chunks",
            param="prompts",
        )
    is_nested = bool(prompts) and all(isinstance(item, list | tuple) for item in prompts)
    return [make_document(chunks, "prompts") for chunks in (prompts if is_nested else [prompts])]


def make_score_request(
    engine: PoolingEngine,
    data_1: ScoreInputArg | Sequence[ScoreInputArg],
    data_2: ScoreInputArg | Sequence[ScoreInputArg],
    params: PoolingParams | None,
    lora_request: Any,
    tokenization_kwargs: Mapping[str, Any] | None,
    template: str | None,
    score_type: ScoreType | None,
    instruction: str | None,
) -> ScoreRequest:
    """Build the request of `score`; options without an argument come from `params.extra_kwargs`, as in vLLM."""
    if params is not None and not isinstance(params, PoolingParams):
        raise BadRequest(f"score takes one PoolingParams for all pairs, got {type(params).__name__}")
    extra = (params.extra_kwargs if params else None) or {}
    if unknown := [name for name in extra if name not in SCORE_EXTRA_KWARGS]:
        logger.warning("score ignores %r in extra_kwargs; known: %s", unknown[0], ", ".join(SCORE_EXTRA_KWARGS))
    return ScoreRequest(
        queries=parse_score_inputs(data_1, "data_1", engine.model_info),
        documents=parse_score_inputs(data_2, "data_2", engine.model_info),
        score_type=score_type,
        params=params,
        tokenization=_parse_tokenization(tokenization_kwargs, params),
        max_tokens_per_query=extra.get("max_tokens_per_query") or 0,
        max_tokens_per_doc=extra.get("max_tokens_per_doc") or 0,
        template=template,
        template_kwargs=extra.get("chat_template_kwargs") or {},
        instruction=instruction if instruction is not None else extra.get("instruction"),
        adapter=_resolve_adapter(engine, lora_request),
        mm_processor_kwargs=extra.get("mm_processor_kwargs") or {},
    )


def make_entity_request(
    engine: PoolingEngine,
    texts: str | Sequence[str],
    lora_request: Any,
    tokenization_kwargs: Mapping[str, Any] | None,
    *,
    aggregation_strategy: AggregationStrategy,
    ignore_labels: Sequence[str],
    stride: int | None,
    labels: Sequence[str] | None,
    threshold: float | None,
) -> EntityRequest:
    """Build the request of `entities`."""
    pool_request = PoolRequest(
        task="token_classify",
        inputs=parse_prompts(texts),
        tokenization=_parse_tokenization(tokenization_kwargs, None),
        adapter=_resolve_adapters(engine, lora_request),
    )
    return EntityRequest(
        pool_request=pool_request,
        aggregation_strategy=aggregation_strategy,
        ignore_labels=ignore_labels,
        stride=stride,
        labels=labels,
        threshold=threshold,
    )


def _parse_tokenization(kwargs: Mapping[str, Any] | None, params: PoolingParamsArg) -> TokenizationParams:
    """Merge tokenization_kwargs with the `truncate_prompt_tokens` of (the first of) the PoolingParams."""
    first = params[0] if isinstance(params, list | tuple) and params else params
    truncate = getattr(first, "truncate_prompt_tokens", None)
    if truncate is not None:
        kwargs = {"truncate_prompt_tokens": truncate, **(kwargs or {})}
    return parse_tokenization_kwargs(kwargs)


def _resolve_adapters(engine: PoolingEngine, lora_request: Any) -> str | list[str | None] | None:
    """Return the name of the requested adapter, or one name per prompt; load adapters that are new."""
    if isinstance(lora_request, list | tuple):
        names = [_resolve_adapter(engine, item) for item in lora_request]
        return names if any(names) else None
    return _resolve_adapter(engine, lora_request)


def _resolve_adapter(engine: PoolingEngine, lora_request: Any) -> str | None:
    if lora_request is None or isinstance(lora_request, str):
        return lora_request
    if not hasattr(lora_request, "lora_name"):
        raise BadRequest(f"lora_request must be a LoRARequest or a name, got {lora_request!r}", param="lora_request")
    engine.add_adapter(lora_request.lora_name, lora_request.lora_path)
    return str(lora_request.lora_name)


def make_generation_error(engine: PoolingEngine, method: str) -> PoolingError:
    """Return the error of a method for generative models, which names those that this model has."""
    tasks = engine.plan.supported_tasks
    methods = [f"LLM.{name}" for name in ("embed", "classify", "sparse_embed") if name in tasks]
    methods += ["LLM.score"] if engine.model_info.score_types else []
    advice = f"{engine.model_info.name} supports the tasks {', '.join(tasks)}; call {', '.join(methods)} or "
    return Unsupported(f"{method}: {explain_no_generation(advice)}LLM.encode(prompts, pooling_task=...)")
