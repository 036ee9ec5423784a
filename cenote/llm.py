"""Offline use: one loaded model, every task it supports."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import Any, TypeVar

import tokenizers
from torch import Tensor

from cenote.config.engine import EngineConfig
from cenote.engine.engine import PoolingEngine
from cenote.engine.sequence_group import GroupResult
from cenote.engine.tasks.io_processor import NO_PLUGIN_MESSAGE
from cenote.errors import BadRequest, PoolingError, Unsupported
from cenote.inputs.prompt_parsing import parse_prompts, parse_tokenization_kwargs
from cenote.loading.describe import ModelConfig
from cenote.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    CombinedOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    EntitiesOutput,
    EntitiesRequestOutput,
    LazyResults,
    PluginRequestOutput,
    PoolingOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
    SparseEmbeddingOutput,
    SparseEmbeddingRequestOutput,
)
from cenote.protocol.names import resolve_role, resolve_task_names
from cenote.protocol.params import AggregationStrategy, PoolingParams, ScoreType, Task, TokenizationParams
from cenote.protocol.requests import EntityRequest, PoolRequest, ScoreRequest
from cenote.protocol.score_inputs import parse_score_inputs
from cenote.utils.progress import UseTqdm, progress_bar

logger = logging.getLogger("cenote")

ResultT = TypeVar("ResultT")
RequestOutputT = TypeVar("RequestOutputT", bound=RequestOutput[Any])
PoolingParamsArg = PoolingParams | Sequence[PoolingParams] | None


ScoreInputArg = str | Mapping[str, Any]  # a text, or an object whose content is texts and images

# what `score` reads from the extra_kwargs of PoolingParams
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
  - LLM.sparse_embed(...) or pooling_task="sparse_embed": a weight for every word that matters
  - several at once:                                      pooling_task="embed&token_embed"
This model supports: """


class LLM:
    """A pooling model, loaded. Without a name it is the small embedding model that comes with the install."""

    def __init__(self, model: str | None = None, **options: Any) -> None:
        self.config = EngineConfig.from_kwargs(model, **options)
        self.engine = PoolingEngine.load(self.config, trust_callers=True)
        self._next_request_number = 0  # of a request
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, self.engine.stop)  # the threads must not outlive their owner

    @property
    def supported_tasks(self) -> tuple[Task, ...]:
        return self.engine.plan.tasks

    @property
    def pooling_task(self) -> Task:
        """The task used where a caller names none."""
        return self.engine.model.description.default_task

    @property
    def model_config(self) -> ModelConfig:
        return self.engine.model.description.model_config

    @property
    def labels(self) -> list[str] | None:
        """The names of a classifier's classes, in the order of their probabilities."""
        return self.engine.model.description.labels

    def get_tokenizer(self) -> tokenizers.Tokenizer:
        """A copy, so that what a caller does to it does nothing to the engine."""
        return tokenizers.Tokenizer.from_str(self.engine.tokenizer.raw.to_str())

    def close(self) -> None:
        """Stop the engine's threads; the model is freed with the object."""
        self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def embed(
        self,
        prompts: Any,
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParamsArg = None,
        lora_request: Any = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        input_type: str | None = None,
        task: str | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """One vector per prompt, as `outputs.embedding`. `prompt` is put before every text.

        Or a prompt of the model's own: by its name, or by what texts are (`input_type="query"`). `task` is for models
        with an adapter for each: it chooses that and the prompt for it.
        """
        asked = (prompts, pooling_params, use_tqdm, lora_request, tokenization_kwargs)
        more: dict[str, Any] = {"prompt": prompt, "prompt_name": prompt_name, "input_type": input_type, "embedding_task": task}
        return self._pool(EmbeddingRequestOutput, EmbeddingOutput, "embed", *asked, **more)

    def classify(
        self,
        prompts: Any,
        *,
        pooling_params: PoolingParamsArg = None,
        use_tqdm: UseTqdm = True,
        lora_request: Any = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """A probability for every class, as `outputs.probs`."""
        asked = (prompts, pooling_params, use_tqdm, lora_request, tokenization_kwargs)
        return self._pool(ClassificationRequestOutput, ClassificationOutput, "classify", *asked)

    def sparse_embed(
        self,
        prompts: Any,
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParamsArg = None,
        lora_request: Any = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        input_type: str | None = None,
    ) -> list[SparseEmbeddingRequestOutput]:
        """The words that matter and how much, as `outputs.token_ids`, `outputs.weights` and `outputs.tokens`."""
        asked = (prompts, pooling_params, use_tqdm, lora_request, tokenization_kwargs)
        more: dict[str, Any] = {"prompt": prompt, "prompt_name": prompt_name, "input_type": input_type}
        return self._pool(SparseEmbeddingRequestOutput, self._make_sparse_output, "sparse_embed", *asked, **more)

    def encode(
        self,
        prompts: Any,
        pooling_params: PoolingParamsArg = None,
        *,
        use_tqdm: UseTqdm = True,
        lora_request: Any = None,
        pooling_task: str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        role: str | None = None,
        is_query: bool | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        input_type: str | None = None,
    ) -> list[PoolingRequestOutput]:
        """The tensor that a task gives, as `outputs.data`; with the task `plugin`, its own object as `outputs`.

        Tasks joined as in `embed&sparse_embed` are answered from one pass through the model, each under its name:
        `outputs["embed"].data`. A ColBERT reads prompts as documents unless `role` is "query", or `is_query` is true.
        """
        if isinstance(prompts, Mapping) and "data" in prompts and pooling_task != "plugin":
            raise BadRequest("The 'data' field is only supported for the 'plugin' pooling task.")
        if pooling_task is None:
            raise BadRequest(MISSING_TASK_MESSAGE + ", ".join(self.supported_tasks))
        if pooling_task == "plugin":
            return [self._run_plugin(prompts, pooling_params, use_tqdm, lora_request, tokenization_kwargs)]
        task, *also = self._resolve_tasks(pooling_task)
        meant = resolve_role(role=role, is_query=None if is_query is None else "query" if is_query else "document")
        asked = (prompts, pooling_params, use_tqdm, lora_request, tokenization_kwargs)
        more: dict[str, Any] = {"prompt": prompt, "prompt_name": prompt_name, "input_type": input_type, "role": meant}
        make = partial(self._make_output, (task, *also))
        return self._pool(PoolingRequestOutput, make, task, *asked, extra_tasks=tuple(also), **more)

    def reward(
        self,
        prompts: Any,
        *,
        pooling_params: PoolingParamsArg = None,
        use_tqdm: UseTqdm = True,
        lora_request: Any = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput]:
        """What a reward model says of every token, as `outputs.data`."""
        return self.encode(
            prompts,
            pooling_params,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
            pooling_task="token_classify",
            tokenization_kwargs=tokenization_kwargs,
        )

    def entities(
        self,
        texts: str | Sequence[str],
        *,
        aggregation_strategy: AggregationStrategy = "simple",
        ignore_labels: Sequence[str] = ("O",),
        stride: int | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: Any = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[EntitiesRequestOutput]:
        """The parts of texts that a token classifier has a class for, as `outputs.entities`; merged as in pipelines.

        A text that is longer than the model reads is cut, and `outputs.truncated` says so; with `stride` it is read in
        windows that share so many tokens.
        """
        request = EntityRequest(
            pool_request=PoolRequest(
                task="token_classify",
                inputs=parse_prompts(texts),
                tokenization=self._parse_tokenization(tokenization_kwargs, None),
                adapter=self._resolve_adapters(lora_request),
            ),
            aggregation_strategy=aggregation_strategy,
            ignore_labels=ignore_labels,
            stride=stride,
        )
        with progress_bar(use_tqdm) as on_progress:
            tagged = self.engine.entities_sync(request, on_progress)
        return [
            EntitiesRequestOutput(
                self._next_request_id(),
                EntitiesOutput(item.entities, item.truncated),
                item.token_ids,
                item.num_input_tokens,
            )
            for item in tagged
        ]

    def score(
        self,
        data_1: ScoreInputArg | Sequence[ScoreInputArg],
        data_2: ScoreInputArg | Sequence[ScoreInputArg],
        /,
        *,
        use_tqdm: UseTqdm = True,
        pooling_params: PoolingParams | None = None,
        lora_request: Any = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
        score_type: ScoreType | None = None,
        instruction: str | None = None,
    ) -> list[ScoringRequestOutput]:
        """How well texts match, 1:1, 1:N or N:N, as `outputs.score`. Some rerankers are told by `instruction` how."""
        if pooling_params is not None and not isinstance(pooling_params, PoolingParams):
            raise BadRequest("score takes one PoolingParams for all pairs")
        extra = (pooling_params.extra_kwargs if pooling_params else None) or {}
        if unknown := [name for name in extra if name not in SCORE_EXTRA_KWARGS]:
            known = ", ".join(SCORE_EXTRA_KWARGS)
            logger.warning("score reads nothing called %r from extra_kwargs; there are: %s", unknown[0], known)
        request = ScoreRequest(
            queries=parse_score_inputs(data_1, "data_1", self.engine.model_info),
            documents=parse_score_inputs(data_2, "data_2", self.engine.model_info),
            score_type=score_type,
            params=pooling_params,
            tokenization=self._parse_tokenization(tokenization_kwargs, pooling_params),
            max_tokens_per_query=extra.get("max_tokens_per_query") or 0,
            max_tokens_per_doc=extra.get("max_tokens_per_doc") or 0,
            template=chat_template,
            template_kwargs=extra.get("chat_template_kwargs") or {},
            instruction=instruction if instruction is not None else extra.get("instruction"),
            adapter=self._resolve_adapter(lora_request),
            mm_processor_kwargs=extra.get("mm_processor_kwargs") or {},
        )
        with progress_bar(use_tqdm) as on_progress:
            scores = _drop_errors(self.engine.score_sync(request, on_progress))
        return [
            ScoringRequestOutput(name, ScoringOutput(item.score), item.token_ids)
            for name, item in zip(self._make_score_ids(request), scores, strict=True)
        ]

    def _pool(
        self,
        output_type: type[RequestOutputT],
        make_output: Callable[..., Any],
        task: Task,
        prompts: Any,
        params: PoolingParamsArg,
        use_tqdm: UseTqdm,
        lora_request: Any,
        tokenization_kwargs: Mapping[str, Any] | None,
        *,
        extra_tasks: tuple[Task, ...] = (),
        **request_kwargs: Any,
    ) -> list[RequestOutputT]:
        """Ask, and wrap answers while others are still being computed; `more` is for the request."""
        for each in (task, *extra_tasks):
            self.engine.check_task(each)
        request = PoolRequest(
            task=task,
            extra_tasks=extra_tasks,
            inputs=parse_prompts(prompts),
            params=params,
            tokenization=self._parse_tokenization(tokenization_kwargs, params),
            adapter=self._resolve_adapters(lora_request),
            **request_kwargs,
        )
        with progress_bar(use_tqdm) as on_progress:

            def wrapped(first: int, answered: GroupResult) -> list[RequestOutputT]:
                strip = answered.inputs
                if strip.images is not None:  # what was seen is far larger than what came of it
                    answered = answered._replace(inputs=replace(strip, images=None))
                totals = strip.metadata["num_input_tokens"]
                answers = LazyResults(make_output, answered.unbind, strip.token_ids, strip.cu_seqlens, totals)
                return output_type.from_lazy(answers, (answered.indices + first).tolist())

            found: list[RequestOutputT] = []
            for portion, pending in self.engine.submit_sub_requests(request):
                make_all = partial(wrapped, self._reserve_request_numbers(pending.num_inputs))
                with portion.error_index_scope():
                    found += _drop_errors(pending.collect(make_all, on_progress))
            return found

    def _run_plugin(
        self,
        prompts: Any,
        params: PoolingParamsArg,
        use_tqdm: UseTqdm,
        lora_request: Any,
        tokenization_kwargs: Mapping[str, Any] | None,
    ) -> PluginRequestOutput:
        if lora_request is not None:
            raise Unsupported("IO processor plugins take no lora_request", param="lora_request")
        if self.engine.io_processor is None:
            raise Unsupported(NO_PLUGIN_MESSAGE)
        data = prompts.get("data") if isinstance(prompts, Mapping) else None
        how = parse_tokenization_kwargs(tokenization_kwargs, self.engine.max_model_len) if tokenization_kwargs else None
        with progress_bar(use_tqdm) as on_progress:
            result = self.engine.io_processor.process_sync(
                data, lambda request: self.engine.pool_sync(request, on_progress), params=params, tokenization=how
            )
        return PluginRequestOutput(result)

    def _parse_tokenization(self, kwargs: Mapping[str, Any] | None, params: PoolingParamsArg) -> TokenizationParams:
        first = params[0] if isinstance(params, list | tuple) and params else params
        older = getattr(first, "truncate_prompt_tokens", None)
        if older is not None:
            kwargs = {"truncate_prompt_tokens": older, **(kwargs or {})}
        return parse_tokenization_kwargs(kwargs, self.engine.max_model_len)

    def _resolve_adapters(self, lora_request: Any) -> str | list[str | None] | None:
        """The names of the adapters asked for, one for all prompts or one each; new ones are loaded."""
        if isinstance(lora_request, list | tuple):
            names = [self._resolve_adapter(each) for each in lora_request]
            return names if any(names) else None
        return self._resolve_adapter(lora_request)

    def _resolve_adapter(self, lora_request: Any) -> str | None:
        if lora_request is None or isinstance(lora_request, str):
            return lora_request
        if not hasattr(lora_request, "lora_name"):
            raise BadRequest(f"lora_request is a LoRARequest or a name, got {lora_request!r}", param="lora_request")
        self.engine.add_adapter(lora_request.lora_name, lora_request.lora_path)
        return str(lora_request.lora_name)

    def _make_output(self, tasks: Sequence[Task], *tensors: Tensor) -> PoolingOutput:
        outputs: dict[str, PoolingOutput] = {
            task: self._make_sparse_output(data) if task == "sparse_embed" else PoolingOutput(data)
            for task, data in zip(tasks, tensors, strict=True)
        }
        return CombinedOutput(outputs) if len(outputs) > 1 else outputs[tasks[0]]

    def _make_sparse_output(self, data: Tensor) -> SparseEmbeddingOutput:
        return SparseEmbeddingOutput(data, self.engine.tokenizer.convert_ids_to_tokens)

    def _resolve_tasks(self, name: str) -> Sequence[Task]:
        return resolve_task_names(name, self.engine.model_info)  # type: ignore[return-value]  # the engine refuses what is no task

    def _make_score_ids(self, request: ScoreRequest) -> list[str]:
        """Two texts that were read apart are two requests, and both their numbers name the score."""
        own = self.engine.scoring_model.score_types[0]
        if own == "listwise" and len(request.queries) == 1:
            return [self._next_request_id()] * len(request.documents)  # all were read at once
        joint = own if own == "listwise" else request.score_type or own
        queries = (
            [] if joint in ("cross-encoder", "listwise") else [f"{self._next_request_id()}_" for _ in request.queries]
        )
        return [
            query + self._next_request_id() for query, _ in zip(cycle(queries or [""]), request.documents, strict=False)
        ]

    def _next_request_id(self) -> str:
        return str(self._reserve_request_numbers(1))

    def _reserve_request_numbers(self, num_requests: int) -> int:
        """So many numbers that no other request has, from this one on."""
        with self._lock:
            first = self._next_request_number
            self._next_request_number += num_requests
        return first


def _drop_errors(results: Sequence[ResultT | PoolingError]) -> list[ResultT]:
    """The answers of a request in which the first error would have failed all."""
    return [answer for answer in results if not isinstance(answer, PoolingError)]
