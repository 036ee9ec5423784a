"""LLM: offline inference with one loaded model."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, Unpack

from cenote.config.engine import EngineConfig
from cenote.config.llm_options import LLMOptions
from cenote.engine.offline_requests import (
    MISSING_TASK_MESSAGE,
    PoolingParamsArg,
    ScoreInputArg,
    make_documents,
    make_entity_request,
    make_generation_error,
    make_pool_request,
    make_score_request,
)
from cenote.engine.result_rows import GroupResult
from cenote.errors import BadRequest, PoolingError, Unsupported
from cenote.inputs.model_tokenizer import ModelTokenizer
from cenote.inputs.prompt_parsing import parse_tokenization_kwargs
from cenote.llm_outputs import (
    describe_late_chunks,
    make_chunk_outputs,
    make_lazy_results,
    make_sparse_output,
    make_task_output,
)
from cenote.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    EntitiesOutput,
    EntitiesRequestOutput,
    PluginRequestOutput,
    PoolingRequestOutput,
    RequestOutput,
    ScoringOutput,
    ScoringRequestOutput,
    SparseEmbeddingRequestOutput,
)
from cenote.plugins.io_processor import NO_PLUGIN_MESSAGE
from cenote.protocol.input_types import ChunkedDocument
from cenote.protocol.names import resolve_role, resolve_task_names
from cenote.protocol.params import AggregationStrategy, PoolingParams, ScoreType, Task
from cenote.utils.progress import UseTqdm, progress_bar
from cenote.utils.request_ids import RequestIdCounter

if TYPE_CHECKING:
    from cenote.engine.engine import PoolingEngine
    from cenote.loading.model_config import ModelConfig

RequestOutputT = TypeVar("RequestOutputT", bound=RequestOutput[Any])
# prompts, pooling params, LoRA request, tokenization kwargs
PromptArgs: TypeAlias = tuple[Any, PoolingParamsArg, Any, Mapping[str, Any] | None]


class LLM:
    """A loaded pooling model; without a name, the small embedding model that is installed with the package."""

    def __init__(self, model: str | None = None, **options: Unpack[LLMOptions]) -> None:
        from cenote.engine.engine import PoolingEngine  # takes long: a program may import this class and not use it

        self.config = EngineConfig.from_kwargs(model, **options)
        self.engine = PoolingEngine.load(self.config, trust_callers=True)
        self._request_ids = RequestIdCounter()
        self._finalizer = weakref.finalize(self, self.engine.stop)  # the threads must not outlive this object

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        return self.engine.plan.supported_tasks

    @property
    def pooling_task(self) -> Task:
        """The task used when none is given."""
        return self.engine.model.description.default_task

    @property
    def model_config(self) -> ModelConfig:
        return self.engine.model_config

    @property
    def labels(self) -> list[str] | None:
        """The class names of a classifier, in the order of its probabilities."""
        return self.engine.model.description.labels

    @property
    def llm_engine(self) -> PoolingEngine:
        """The engine under its name in vLLM."""
        return self.engine

    def get_tokenizer(self) -> ModelTokenizer:
        """Return a copy of the tokenizer with the methods of Transformers; changing it does not affect the engine."""
        return self.engine.make_model_tokenizer()

    def close(self) -> None:
        """Stop the engine's threads; the model is freed with this object."""
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
        late_chunking: bool = False,
        chunk_size: int | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """Return one embedding per prompt, as `outputs.embedding`.

        With a model that is restricted to `token_embed`, or with `PoolingParams(late_chunking_params=)`, the outputs
        are those of `encode` with `pooling_task="token_embed"`: a matrix per prompt, as `outputs.data`.

        `prompt` is prepended to every text. Prompts of the model's configuration are selected by `prompt_name` or by
        `input_type` ("query"). `task` selects the adapter and the prompt of models with one adapter per task.

        With `late_chunking`, the texts are consecutive chunks of one document, which is computed as one sequence: each
        chunk is embedded in the context of the others. A list of lists is several documents. With `chunk_size`, each
        text is a document and is split into chunks of at most that many characters. There is one output per chunk,
        with `outputs.document_index`, `outputs.start` and `outputs.end`.
        """
        args = (prompts, pooling_params, lora_request, tokenization_kwargs)
        selection: dict[str, Any] = {"prompt": prompt, "prompt_name": prompt_name, "input_type": input_type}
        selection["embedding_task"] = task
        is_late = late_chunking or (isinstance(pooling_params, PoolingParams) and bool(pooling_params.late_chunking))
        if is_late or chunk_size is not None:
            return self._embed_documents(make_documents(prompts, chunk_size), args, use_tqdm, **selection)
        if self._embeds_tokens(pooling_params):
            make_output = partial(make_task_output, self.engine, ("token_embed",))
            outputs: Any = self._pool(PoolingRequestOutput, make_output, ("token_embed",), args, use_tqdm, **selection)
            return outputs  # type: ignore[no-any-return]  # PoolingRequestOutput, of those who ask for matrices
        return self._pool(EmbeddingRequestOutput, EmbeddingOutput, ("embed",), args, use_tqdm, **selection)

    def classify(
        self,
        prompts: Any,
        *,
        pooling_params: PoolingParamsArg = None,
        use_tqdm: UseTqdm = True,
        lora_request: Any = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """Return the probability of every class for each prompt, as `outputs.probs`."""
        args = (prompts, pooling_params, lora_request, tokenization_kwargs)
        return self._pool(ClassificationRequestOutput, ClassificationOutput, ("classify",), args, use_tqdm)

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
        """Return a sparse vector per prompt, as `outputs.token_ids`, `outputs.weights` and `outputs.tokens`."""
        args = (prompts, pooling_params, lora_request, tokenization_kwargs)
        selection: dict[str, Any] = {"prompt": prompt, "prompt_name": prompt_name, "input_type": input_type}
        make_output = partial(make_sparse_output, self.engine)
        return self._pool(SparseEmbeddingRequestOutput, make_output, ("sparse_embed",), args, use_tqdm, **selection)

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
        """Return the tensor of a task, as `outputs.data`; of the task "plugin", the plugin's object as `outputs`.

        Combined tasks such as "embed&sparse_embed" run in one forward pass; their results are `outputs["embed"].data`
        and so on. ColBERT models encode prompts as documents unless `role` is "query" or `is_query` is true.
        """
        if isinstance(prompts, Mapping) and "data" in prompts and pooling_task != "plugin":
            raise BadRequest("The 'data' field is only supported for the 'plugin' pooling task.")
        if pooling_task is None and self.config.task is not None:
            pooling_task = self.pooling_task  # the deprecated option `task` selects it
        if pooling_task is None:
            raise BadRequest(MISSING_TASK_MESSAGE + ", ".join(self.supported_tasks))
        args = (prompts, pooling_params, lora_request, tokenization_kwargs)
        if pooling_task == "plugin":
            return [self._run_plugin(args, use_tqdm)]
        # the engine refuses names that are not tasks
        tasks: Sequence[Task] = resolve_task_names(pooling_task, self.engine.model_info)  # type: ignore[assignment]
        role = resolve_role(role=role, is_query=None if is_query is None else "query" if is_query else "document")
        selection: dict[str, Any] = {"prompt": prompt, "prompt_name": prompt_name, "input_type": input_type}
        make_output = partial(make_task_output, self.engine, tasks)
        return self._pool(PoolingRequestOutput, make_output, tasks, args, use_tqdm, role=role, **selection)

    def reward(
        self,
        prompts: Any,
        *,
        pooling_params: PoolingParamsArg = None,
        use_tqdm: UseTqdm = True,
        lora_request: Any = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput]:
        """Return the output of a reward model for every token, as `outputs.data`.

        Models converted to reward models without a reward head return their hidden states.
        """
        kwargs = {"use_tqdm": use_tqdm, "lora_request": lora_request, "tokenization_kwargs": tokenization_kwargs}
        return self.encode(prompts, pooling_params, pooling_task="token_classify", **kwargs)

    def entities(
        self,
        texts: str | Sequence[str],
        *,
        aggregation_strategy: AggregationStrategy = "simple",
        ignore_labels: Sequence[str] = ("O",),
        stride: int | None = None,
        labels: Sequence[str] | None = None,
        threshold: float | None = None,
        use_tqdm: UseTqdm = True,
        lora_request: Any = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[EntitiesRequestOutput]:
        """Return the named entities of each text, as `outputs.entities`; aggregated as in Transformers' pipeline.

        Texts longer than max_model_len are truncated (`outputs.truncated`), or with `stride` processed in windows
        that overlap by that many tokens. GLiNER models find the `labels` of the call, with scores above `threshold`
        (0.5).
        """
        request = make_entity_request(
            self.engine,
            texts,
            lora_request,
            tokenization_kwargs,
            aggregation_strategy=aggregation_strategy,
            ignore_labels=ignore_labels,
            stride=stride,
            labels=labels,
            threshold=threshold,
        )
        with progress_bar(use_tqdm) as on_progress:
            results = self.engine.entities_sync(request, on_progress)
        return [
            EntitiesRequestOutput(
                self._request_ids.next_id(),
                EntitiesOutput(result.entities, result.truncated),
                result.token_ids,
                result.num_input_tokens,
            )
            for result in results
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
        """Return the score of every pair, as `outputs.score`; inputs are 1:1, 1:N or N:N.

        `instruction` is for instruction-aware rerankers.
        """
        args = (pooling_params, lora_request, tokenization_kwargs, chat_template, score_type, instruction)
        request = make_score_request(self.engine, data_1, data_2, *args)
        request = request.replace(return_exceptions="computed")
        with progress_bar(use_tqdm) as on_progress:
            results = self.engine.score_sync(request, on_progress)
        native_type = self.engine.scoring_model.score_types[0]
        is_listwise = native_type == "listwise"
        request_ids = self._request_ids.score_ids(
            len(request.queries),
            len(request.documents),
            is_joint=is_listwise or (request.score_type or native_type) == "cross-encoder",
            is_single_prompt=is_listwise and len(request.queries) == 1,
        )
        return [
            ScoringRequestOutput(request_id, result)
            if isinstance(result, PoolingError)
            else ScoringRequestOutput(request_id, ScoringOutput(result.score), result.token_ids)
            for request_id, result in zip(request_ids, results, strict=True)
        ]

    def _embeds_tokens(self, params: PoolingParamsArg) -> bool:
        """Return whether `embed` gives matrices: for lack of the task `embed`, or for chunks of a number of tokens."""
        tasks = self.engine.plan.tasks
        if "token_embed" in tasks and "embed" not in tasks:
            return self.engine.scoring_model.preferred_score_type != "listwise"
        items = params if isinstance(params, list | tuple) else [params]
        return any(getattr(item, "late_chunking_params", None) is not None for item in items)

    def generate(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise: for programs that were written for a generative model."""
        raise make_generation_error(self.engine, "LLM.generate")

    def chat(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise, as `generate` does; conversations are inputs of `embed`, `classify` and `encode`."""
        raise make_generation_error(self.engine, "LLM.chat")

    def _pool(
        self,
        output_type: type[RequestOutputT],
        make_output: Callable[..., Any],
        tasks: Sequence[Task],
        args: PromptArgs,
        use_tqdm: UseTqdm,
        **request_kwargs: Any,
    ) -> list[RequestOutputT]:
        """Run a request; results are wrapped in output objects while others are still computed."""
        request = make_pool_request(self.engine, tasks, *args, return_exceptions="computed", **request_kwargs)
        first_ids: list[int] = []  # of the request, or of its consecutive sub-requests

        def make_wrapper(num_inputs: int) -> Callable[[GroupResult], list[RequestOutputT]]:
            first_id = self._request_ids.reserve(num_inputs)
            first_ids.append(first_id)

            def wrap(result: GroupResult) -> list[RequestOutputT]:
                return output_type.from_lazy(
                    make_lazy_results(make_output, result), (result.indices + first_id).tolist()
                )

            return wrap

        with progress_bar(use_tqdm) as on_progress:
            results = self.engine.pool_as(request, make_wrapper, on_progress)
        outputs = [
            output_type(str(first_ids[0] + position), result) if isinstance(result, PoolingError) else result
            for position, result in enumerate(results)
        ]
        describe_late_chunks(self.engine, request, outputs)
        return outputs

    def _embed_documents(
        self, documents: list[ChunkedDocument], args: PromptArgs, use_tqdm: UseTqdm, **request_kwargs: Any
    ) -> list[EmbeddingRequestOutput]:
        """Return one output per chunk of all documents."""
        _, params, lora_request, tokenization_kwargs = args
        if params is not None and not isinstance(params, PoolingParams):
            raise BadRequest(f"late_chunking takes one PoolingParams for all chunks, got {type(params).__name__}")
        params = replace(params or PoolingParams(), late_chunking=True)
        args = (documents, params, lora_request, tokenization_kwargs)
        request = make_pool_request(self.engine, ("embed",), *args, return_exceptions="computed", **request_kwargs)
        with progress_bar(use_tqdm) as on_progress:
            results = self.engine.pool_as(request, lambda _: partial(make_chunk_outputs, documents), on_progress)
        outputs: list[EmbeddingRequestOutput] = []
        for document, result in zip(documents, results, strict=True):
            if isinstance(result, PoolingError):
                outputs += [EmbeddingRequestOutput("", result) for _ in document.chunks]
            else:
                outputs += result
        first_id = self._request_ids.reserve(len(outputs))
        for number, output in enumerate(outputs):
            output.request_id = str(first_id + number)
        return outputs

    def _run_plugin(self, args: PromptArgs, use_tqdm: UseTqdm) -> PluginRequestOutput:
        prompts, params, lora_request, tokenization_kwargs = args
        if lora_request is not None:
            raise Unsupported("IO processor plugins do not support lora_request", param="lora_request")
        if self.engine.io_processor is None:
            raise Unsupported(NO_PLUGIN_MESSAGE)
        data = prompts.get("data") if isinstance(prompts, Mapping) else None
        tokenization = parse_tokenization_kwargs(tokenization_kwargs) if tokenization_kwargs else None
        with progress_bar(use_tqdm) as on_progress:
            pool = partial(self.engine.pool_sync, on_progress=on_progress)
            result = self.engine.io_processor.process_sync(data, pool, params=params, tokenization=tokenization)
        return PluginRequestOutput(result)
