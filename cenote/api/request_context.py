"""Context of one request in a handler: the engine, the settings, and usage counts for the response headers."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec.structs import replace

from cenote.api.admission.cost import (
    SMALL_BYTES,
    TOKEN_BYTES,
    TOKEN_TEXT_BYTES,
    RequestCost,
    estimate_detokenize,
    estimate_entities,
    estimate_plugin,
    estimate_pool,
    estimate_score,
    estimate_tokenize,
    measure_answer,
)
from cenote.api.admission.request_admission import RequestAdmission
from cenote.api.admission.ticket import Ticket
from cenote.api.handler_thread import TO_LOOP, TO_THREAD
from cenote.api.replies import AnswerList, EntryT, TokenCounts, Usage
from cenote.api.selected_model import ModelRoute, SelectedModel
from cenote.api.server_timing import format_server_timing
from cenote.errors import BadRequest, InputTooLong
from cenote.protocol.input_types import Input
from cenote.protocol.requests import EntityRequest, PluginRequest, PoolRequest, ScoreRequest, Timing
from cenote.protocol.results import EntityResult, IOProcessorResult, PoolResult, ScoreResult, TokenizeResult
from cenote.protocol.scheduling import DEFAULT_SCHEDULING, Lane, SchedulingParams
from cenote.utils.async_utils import gather_or_cancel
from cenote.utils.request_ids import SAFE_REQUEST_ID

if TYPE_CHECKING:
    from cenote.api.app_state import AppState

T = TypeVar("T")
# adapter of a score request, or of a pool request, which may have one for each input
AdapterT = TypeVar("AdapterT", str | None, str | Sequence[str | None] | None)

RequestT = TypeVar("RequestT", PoolRequest, ScoreRequest)

# variables of a template are rendered for every conversation or document of a request: so many characters in all
MAX_VARIABLE_CHARS = 8_000_000
# a text to tokenize has no more than this times the number of tokens that it may have
MAX_TYPICAL_CHARS_PER_TOKEN = 16

# loading or unloading an adapter counts as one small request: the device computes meanwhile
ADAPTER_COST = RequestCost(1)


class RequestContext(SelectedModel):
    """The state of one request, and the calls of the engine that its handler makes."""

    def __init__(
        self,
        app_state: AppState,
        route: ModelRoute,
        request_id: str,
        admission: RequestAdmission,
        header_model: bytes | None = None,
        path_model: str | None = None,
    ) -> None:
        """`header_model`: the model that a header of the request names, for requests that name none elsewhere.

        `path_model`: the model in the path of the request, whatever the body says.
        """
        super().__init__(app_state, route, admission, header_model, path_model)
        self.auto_truncates = self.settings.auto_truncate  # too long inputs, unless the request decides it
        self.request_id = request_id
        self.is_header_id = False  # whether a header of the request sets the id, whatever the body says
        self.created = int(time.time())
        self.timing = Timing()
        self.encoding_format: str | None = None  # of the answer, if the request sets one
        self._engine_done_at = 0.0  # monotonic time of the last answer of the engine
        self.num_items = 0  # inputs, or scored documents
        self.num_tokens = 0  # processed by the model
        self.num_truncated = 0  # inputs that were truncated
        self.num_tokenized = 0  # tokens of answers that are tokens
        self.warning: str | None = None  # in the headers of the response; logged once for each client

    def read_options(self, body: object) -> None:
        """Read the fields of a parsed body that concern its admission and its id."""
        self.encoding_format = getattr(body, "encoding_format", None)
        request_id = getattr(body, "request_id", None)
        if request_id is not None and not self.is_header_id and SAFE_REQUEST_ID.fullmatch(request_id):
            self.request_id = request_id
        if (timeout_s := getattr(body, "timeout", None)) is not None:
            self.admission.set_timeout(timeout_s)

    def check_num_items(self, count: int, name: str) -> None:
        if count > self.settings.max_request_items:
            raise BadRequest(
                f"{name} has {count} items, limit {self.settings.max_request_items} per request; "
                "split the request, or raise --max-request-items",
                param=name,
            )

    async def pool(self, request: PoolRequest) -> list[PoolResult]:
        """Return all results, or raise the error of the first input that failed."""
        self.check_num_items(len(request.inputs), "input")
        adapter = self._resolve_adapter(request.adapter)
        if self.role is not None:
            request = self.add_role(request)
        if self.auto_truncates:
            request = self.add_truncation(request)
        cost = estimate_pool(request, self.model_info, self.encoding_format)
        if cost.num_variable_chars > MAX_VARIABLE_CHARS:
            raise make_variables_error(cost.num_variable_chars, len(request.inputs), "conversations")
        if moves := self.is_in_thread:
            await TO_LOOP
        ticket = self.admission.admit(cost, request.scheduling.priority)
        completed = self._complete(request.scheduling, ticket)
        request = request.replace(
            adapter=adapter, on_tokenized=ticket.set_tokens, num_chars=cost.num_chars, **completed
        )
        self._mark_parsed()
        try:  # as `_run_admitted`, without another coroutine in the route of most requests
            results = await self.engine.pool(request)
        except BaseException:
            ticket.release(is_completed=False)
            raise
        ticket.release(is_completed=True)
        if request.task != "embed" or request.extra_tasks:
            self._hold_rest(cost, results)
        if moves:
            await TO_THREAD
        return self._record_usage(results)

    def _hold_rest(self, cost: RequestCost, results: Sequence[Any]) -> None:
        """Count what an answer takes beyond its estimate: texts may have a token, with its row, for each character."""
        if (num_bytes := measure_answer(results, self.encoding_format) - cost.num_bytes) > SMALL_BYTES:
            self.admission.hold(num_bytes, "the answer")

    async def pool_all(self, requests: Sequence[PoolRequest]) -> list[list[PoolResult]]:
        """Return the results of several requests, which the engine may compute together."""
        if moves := self.is_in_thread:
            await TO_LOOP
        results = await gather_or_cancel(map(self.pool, requests))
        if moves:
            await TO_THREAD
        return results

    async def score(self, request: ScoreRequest) -> list[ScoreResult]:
        self.check_num_items(len(request.queries), "queries")
        self.check_num_items(len(request.documents), "documents")
        adapter = self._resolve_adapter(request.adapter)
        if self.auto_truncates:
            request = self.add_truncation(request)
        cost = estimate_score(request, self.model_info)
        if cost.num_variable_chars > MAX_VARIABLE_CHARS:
            raise make_variables_error(cost.num_variable_chars, len(request.documents), "documents")

        def call(ticket: Ticket) -> Awaitable[list[Any]]:
            completed = self._complete(request.scheduling, ticket)
            return self.engine.score(request.replace(adapter=adapter, on_tokenized=ticket.set_tokens, **completed))

        results = self._record_usage(await self._run_admitted(cost, call, request.scheduling))
        self.num_tokens -= sum([result.num_repeated_tokens for result in results])
        return results

    async def entities(self, request: EntityRequest) -> list[EntityResult]:
        pool = request.pool_request
        self.check_num_items(len(pool.inputs), "input")
        adapter = self._resolve_adapter(pool.adapter)

        def call(ticket: Ticket) -> Awaitable[list[EntityResult]]:
            completed = pool.replace(adapter=adapter, **self._complete(pool.scheduling, ticket))
            return self.engine.entities(request.replace(pool_request=completed))

        cost = estimate_entities(request, self.model_info)
        return self._record_usage(await self._run_admitted(cost, call, pool.scheduling))

    async def tokenize(self, prompt: Input, *, is_answer: bool = False, **options: Any) -> TokenizeResult:
        """Return the tokens of a prompt; `is_answer`: the answer has them, so that they count for the request."""
        started_at, limit = time.monotonic(), self.settings.max_tokenize_tokens
        if isinstance(prompt, str) and len(prompt) > limit * MAX_TYPICAL_CHARS_PER_TOKEN:
            raise InputTooLong(
                f"the text has {len(prompt)} characters, limit {limit * MAX_TYPICAL_CHARS_PER_TOKEN}, more than "
                f"{limit} tokens usually have; split it, or raise --max-tokenize-tokens",
                param="input_text",
                value=len(prompt),
            )
        token_bytes = TOKEN_TEXT_BYTES if options.get("return_token_strs") else TOKEN_BYTES
        num_held = self.admission.held_bytes

        async def call(ticket: Ticket) -> TokenizeResult:
            tokenized = await self.engine.tokenize(prompt, max_tokens=limit, **options)
            if is_answer:  # held until here: as many tokens as a text of this length can have
                self.admission.hold_instead(num_held + token_bytes * len(tokenized.token_ids))
            return tokenized

        cost = estimate_tokenize(prompt, limit - self.num_tokenized, token_bytes if is_answer else 0)
        tokenized = await self._run_admitted(cost, call)
        if is_answer:
            self._count_tokenized(len(tokenized.token_ids))
        self.timing.tokenize_s += time.monotonic() - started_at
        return tokenized

    async def count_tokens(self, texts: Sequence[str], name: str) -> list[int]:
        """Return the number of tokens of every text; `name`: the field that has the texts."""
        self.check_num_items(len(texts), name)
        return [len((await self.tokenize(text)).token_ids) for text in texts]

    async def detokenize(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        self._count_tokenized(len(token_ids))
        return await self._run_admitted(
            estimate_detokenize(token_ids),
            lambda ticket: self.engine.detokenize(token_ids, skip_special_tokens=skip_special_tokens),
        )

    def _count_tokenized(self, num_tokens: int) -> None:
        self.num_tokenized += num_tokens
        if self.num_tokenized > (limit := self.settings.max_tokenize_tokens):
            raise InputTooLong(
                f"the request has {self.num_tokenized} tokens or more, limit {limit}; split it, or raise "
                "--max-tokenize-tokens",
                param="input_tokens",
                value=self.num_tokenized,
            )

    async def process(self, request: PluginRequest) -> Any:
        def call(ticket: Ticket) -> Awaitable[IOProcessorResult]:
            return self.engine.process(request.replace(**self._complete(request.scheduling, ticket)))

        processed = await self._run_admitted(estimate_plugin(request), call, request.scheduling)
        self._engine_done_at = self.timing.mark_delivered()
        self.num_items += processed.num_inputs
        self.num_tokens += processed.num_tokens
        self.num_truncated += processed.num_truncated
        return processed.data

    async def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        await self._run_admitted(ADAPTER_COST, lambda ticket: self.engine.load_adapter(name, path, in_place=in_place))

    async def unload_adapter(self, name: str) -> None:
        await self._run_admitted(ADAPTER_COST, lambda ticket: self.engine.unload_adapter(name))

    async def hold_answer(self, num_bytes: int) -> None:
        """Count an answer before it is made, or refuse the request; for answers that the inputs do not bound."""
        if moves := self.is_in_thread:
            await TO_LOOP
        self.admission.hold(num_bytes, "the answer")
        if moves:
            await TO_THREAD

    async def hold_echo(self, num_copies: int = 1) -> None:
        """Count the texts of the body that the answer repeats; called before the request is admitted.

        Nothing but the body is held then, whose size bounds that of its texts.
        """
        if num_bytes := num_copies * self.admission.held_bytes:
            await self.hold_answer(num_bytes)

    async def _run_admitted(
        self,
        cost: RequestCost,
        call: Callable[[Ticket], Awaitable[T]],
        scheduling: SchedulingParams = DEFAULT_SCHEDULING,
    ) -> T:
        """Await a call of the engine, admitted with the ticket that it gets."""
        if moves := self.is_in_thread:
            await TO_LOOP
        ticket = self.admission.admit(cost, scheduling.priority)
        self._mark_parsed()
        try:
            result = await call(ticket)
        except BaseException:
            ticket.release(is_completed=False)
            raise
        ticket.release(is_completed=True)
        if moves:
            await TO_THREAD
        return result

    def add_role(self, request: PoolRequest) -> PoolRequest:
        """Add the role of the model's name, unless the request selects a prompt itself."""
        own = (request.prompt, request.prompt_name, request.role, request.input_type, request.embedding_task)
        return request.replace(role=self.role) if self.role is not None and own == (None,) * len(own) else request

    def add_truncation(self, request: RequestT) -> RequestT:
        """Truncate inputs to the model maximum, unless the request sets a length."""
        if request.tokenization.truncate_prompt_tokens is not None:
            return request
        return request.replace(tokenization=replace(request.tokenization, truncate_prompt_tokens=-1))

    def _resolve_adapter(self, requested: AdapterT) -> AdapterT:
        if self.adapter is not None and requested not in (None, self.adapter):
            raise BadRequest(
                f"model names the adapter {self.adapter!r}, but adapter is {requested!r}; set only one of them",
                param="adapter",
            )
        return requested if self.adapter is None else self.adapter

    def make_response_id(self, prefix: str) -> str:
        return f"{prefix}-{self.request_id}"

    def make_usage(self) -> Usage:
        return Usage(self.num_tokens, self.num_tokens)

    def make_result_list(self, prefix: str, data: list[EntryT]) -> AnswerList[EntryT]:
        return AnswerList(self.make_response_id(prefix), "list", self.created, self.model, data, self.make_usage())

    def make_token_counts(
        self, result: PoolResult | ScoreResult | EntityResult, is_requested: bool | None
    ) -> TokenCounts | None:
        """Return the token counts of one input, or None if the request does not ask for them."""
        if not is_requested:
            return None
        num_truncated = max(0, result.num_input_tokens - result.num_tokens)
        return TokenCounts(result.num_tokens, result.num_input_tokens, num_truncated, not result.is_input_count_exact)

    def response_headers(self) -> list[tuple[bytes, bytes]]:
        """Return the response headers with token counts and timing."""
        if self._engine_done_at:
            self.timing.encode_s = time.monotonic() - self._engine_done_at
        headers = [
            (b"x-prompt-tokens", b"%d" % self.num_tokens),
            (b"x-truncated-inputs", b"%d" % self.num_truncated),
            (b"server-timing", format_server_timing(self.timing)),
        ]
        if self.warning is not None:
            headers.append((b"warning", f'299 cenote "{self.warning}"'.encode()))
        # without a model if the request names one that does not exist
        if hasattr(self, "engine") and (fingerprint := self.model_info.fingerprint):
            headers.append((b"x-model-fingerprint", encode_fingerprint(fingerprint)))
        if self.is_model_chosen and hasattr(self, "model"):
            headers.append((b"x-model", self.model.encode("ascii", "backslashreplace")))
        if self.admission.key.max_tokens_per_minute is not None:
            headers += self.admission.rate_limit_headers()
        return headers

    def _complete(self, scheduling: SchedulingParams, ticket: Ticket) -> dict[str, Any]:
        """Return the fields of an engine request that the server adds to what the body says."""
        key = self.admission.key
        return {
            "scheduling": complete_scheduling(scheduling, key.tenant, key.weight, ticket.lane),
            "deadline_at": self.admission.deadline_at,
            "timing": self.timing,
        }

    def _mark_parsed(self) -> None:
        timing = self.timing
        if not timing.parse_s and timing.received_at:  # a handler may call the engine more than once
            timing.parse_s = time.monotonic() - timing.received_at

    def _record_usage(self, results: Sequence[Any]) -> list[Any]:
        self._engine_done_at = self.timing.mark_delivered()
        self.num_items += len(results)
        self.num_tokens += sum([result.num_tokens for result in results])
        self.num_truncated += sum([result.truncated for result in results])
        return cast("list[Any]", results)


@lru_cache(maxsize=1024)
def complete_scheduling(given: SchedulingParams, tenant: str, weight: float, lane: Lane) -> SchedulingParams:
    """Add what the server knows about a request to what its body says; requests with equal values share them."""
    return replace(given, tenant=tenant, weight=weight, lane=lane)


@lru_cache(maxsize=64)
def encode_fingerprint(fingerprint: str) -> bytes:
    return fingerprint.encode()


def make_variables_error(num_chars: int, count: int, kind: str) -> BadRequest:
    return BadRequest(
        f"chat_template_kwargs are rendered for each of the {count} {kind}, {num_chars} characters in all, limit "
        f"{MAX_VARIABLE_CHARS}; split the request",
        param="chat_template_kwargs",
    )
