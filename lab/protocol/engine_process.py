"""A simulated engine process: speaks the messages of a real one, to the supervisor and to front-ends."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import numpy as np
import tokenizers

from cenote.api.engine_process.engine_server import (
    EXIT_ENGINE_FAILED,
    EXIT_LOAD_FAILED,
    EXIT_NO_SUPERVISOR,
    EXIT_STOPPED,
)
from cenote.api.wire.channel import Channel, Reply
from cenote.api.wire.codec_errors import serialize_error
from cenote.api.wire.control_messages import (
    EngineFailed,
    EngineInit,
    EngineLoaded,
    LoadFailed,
    SetAdapters,
    SupervisorToEngine,
)
from cenote.api.wire.device_table import OnDevice
from cenote.api.wire.link_messages import FrontEndMessage
from cenote.api.wire.messages import ArrayBytes, Cancel, EngineDown, EngineReady, to_json
from cenote.api.wire.token_codec import decode_inputs
from cenote.api.wire.token_messages import (
    OptionsRegistered,
    RegisterOptions,
    RendererInfo,
    RouteInfo,
    TokenBatch,
    TokenErrors,
    TokenResults,
)
from cenote.engine.tasks.text_tasks import TaskSettings
from cenote.errors import (
    DeadlineExceeded,
    EngineHung,
    EngineStopped,
    LoadError,
    NumericalError,
    Overloaded,
    PoolingError,
)
from cenote.inputs.renderer_settings import RendererSettings, TokenizerSettings
from cenote.protocol.model_info import ModelInfo
from cenote.scoring.scorer import ScoringModel
from lab.protocol.connection import End
from lab.protocol.device import CRASHES, HANGS, NOT_A_NUMBER, Batch, Item, SimulatedDevice, compute
from lab.protocol.host import Host
from lab.protocol.process import Process

MAX_TOKENS = 512
VOCAB_SIZE = 10_000
STEP_TIMEOUT_S = 2.0
FINAL_FLUSH_S = 0.3  # as that of EngineServer

MODEL_INFO = ModelInfo(
    name="simulated",
    root="simulated",
    architecture="BertModel",
    tasks=("embed",),
    default_task="embed",
    score_types=(),
    max_model_len=MAX_TOKENS,
    dtype="float32",
    device="cpu",
    embedding_size=4,
    labels=None,
    prompts={},
    instructions={},
    tokenizer_info={},
    has_chat_template=False,
)
MODEL_INFO_JSON = to_json(MODEL_INFO)


def make_renderer_info() -> RendererInfo:
    raw = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    settings = RendererSettings(vocab_size=VOCAB_SIZE, hidden_size=4)
    route = RouteInfo([], raw.to_str().encode(), b"{}", None, to_json(TokenizerSettings()), to_json(settings))
    return RendererInfo([route], to_json(TaskSettings(ScoringModel("simulated", ("embed",), 0))), STEP_TIMEOUT_S)


RENDERER_INFO = make_renderer_info()


class EngineProcess(Process):
    def __init__(self, machine: Host, control: End, *, fails_to_load: bool) -> None:
        random = machine.random
        super().__init__(machine.loop, next(machine.process_ids), random.uniform(0.0, 0.05))
        self.machine = machine
        self.random = random
        self.fails_to_load = fails_to_load
        self.is_loaded = self.is_serving = self.has_stopped = False
        self.refuses_until = 0.0  # its queue is full
        self.engine_number = 0
        self.links: list[Link] = []
        self.device = SimulatedDevice(
            random, self.call_later, machine.check_batch, self._send_results, is_async=random.random() < 0.5
        )
        self._hung_at = 0.0
        self.control: Channel[SupervisorToEngine] = Channel(
            SupervisorToEngine, lambda message, _: self._on_control(message), lambda: self.exit(EXIT_NO_SUPERVISOR)
        )
        control.give_to(self)
        self.last_read_at = lambda: control.peer.last_at
        self.call_later(random.uniform(0.01, 0.1), self._connect, self.control, control)

    def _connect(self, channel: Channel[SupervisorToEngine] | Channel[FrontEndMessage], end: End) -> None:
        self.tasks = [self.loop.create_task(channel.connect(end))]  # type: ignore[arg-type]

    def read_device(self) -> OnDevice:
        return self.device.read_table()

    def find_busy_stage(self) -> tuple[str, float]:
        return ("device", self.loop.time() - self._hung_at) if self._hung_at else ("", 0.0)

    # faults

    def hang(self) -> None:
        """The device computes no more."""
        self.device.is_hung, self._hung_at = True, self._hung_at or self.loop.time()

    def fail(self) -> None:
        """Stop as the watchdog of the engine does: with an error for every request, before the process exits."""
        if self.has_stopped or not self.is_serving:
            return
        self.device.is_hung = self.has_stopped = True
        error = EngineHung("the engine stopped: a batch did not finish")
        for item in [*self.device.waiting, *self.device.isolated, *(i for b in self.device.running for i in b.items)]:
            item.link.channel.send(TokenErrors([(item.call_id, -1, serialize_error(error))]))
        self.device.drop(lambda item: True)
        for link in self.links:
            link.channel.send(EngineDown(str(error)))
        self.control.send(EngineFailed(serialize_error(error)))
        self.call_later(FINAL_FLUSH_S, self.exit, EXIT_ENGINE_FAILED)

    # the supervisor

    def _on_control(self, message: SupervisorToEngine) -> None:
        if isinstance(message, EngineInit):
            self.engine_number = message.engine_number
            self.call_later(self.random.uniform(0.05, 0.3), self._on_loaded)
        elif isinstance(message, SetAdapters):
            self.is_serving = True
            for link in self.links:
                link.introduce()
        else:
            self.exit(EXIT_STOPPED)

    def _on_loaded(self) -> None:
        if self.fails_to_load:
            self.control.send(LoadFailed(serialize_error(LoadError("the files are away"))))
            self.call_later(0.001, self.exit, EXIT_LOAD_FAILED)
        else:
            self.is_loaded = True
            self.control.send(EngineLoaded(MODEL_INFO_JSON, {}))

    # front-ends

    def add_link(self, end: End, engine_id: int) -> None:
        link = Link(self, end)
        self.links.append(link)
        self._connect(link.channel, end)
        self.call_later(0.001, link.introduce)

    def _send_results(self, batch: Batch) -> None:
        first = {item.tokens[0] for item in batch.items}
        if CRASHES in first:
            self.exit(-signal.SIGSEGV)
        elif HANGS in first:
            self.hang()
        else:
            for link in dict.fromkeys(item.link for item in batch.items):
                link.send_results([item for item in batch.items if item.link is link])


class Link:
    """The connection to one front-end."""

    def __init__(self, process: EngineProcess, end: End) -> None:
        self.process = process
        self.end = end
        self.is_introduced = False
        self.options: set[int] = set()
        self.refused: set[int] = set()  # calls
        self.channel: Channel[FrontEndMessage] = Channel(
            FrontEndMessage,
            self._on_message,
            self._on_closed,
            lambda error: self.channel.abort(),
            lambda call, _: self._register(call),
        )

    def introduce(self) -> None:
        if self.process.is_serving and self.channel.is_open and not self.is_introduced and not self.process.has_stopped:
            self.is_introduced = True
            self.channel.send(RENDERER_INFO)
            self.channel.send(EngineReady(MODEL_INFO_JSON, self.process.engine_number))

    def send_results(self, items: Sequence[Item]) -> None:
        """Send results in one or two messages, and the errors of inputs."""
        for item in items:
            if item.tokens[0] == NOT_A_NUMBER:
                error = serialize_error(NumericalError("the result is not a number"))
                self.channel.send(TokenErrors([(item.call_id, item.number, error)]))
        items = [item for item in items if item.tokens[0] != NOT_A_NUMBER]
        middle = self.process.random.randrange(len(items) + 1)
        for part in filter(None, (items[:middle], items[middle:])):
            ids = np.array([item.call_id for item in part]), np.array([item.number for item in part])
            rows = np.stack([compute(item.tokens) for item in part])
            now = self.process.loop.time()
            self.channel.send(TokenResults(len(part), [[rows.shape[1:]]], (now,) * 6), (*ids, rows))

    def _register(self, call: RegisterOptions) -> Reply:
        if self.process.has_stopped:
            raise EngineStopped("the engine has stopped")
        self.options.add(call.options_id)
        return OptionsRegistered(MAX_TOKENS, "max_model_len", True, None, 0, True)

    def _on_message(self, message: FrontEndMessage, array_bytes: ArrayBytes) -> None:
        if isinstance(message, TokenBatch):
            try:
                self._on_batch(message, array_bytes)
            except PoolingError as error:
                self.refused.update(message.call_ids)
                self._send_errors(message.call_ids, error)
        elif isinstance(message, Cancel):
            self.process.device.drop(lambda item: item.link is self and item.call_id == message.call_id)

    def _on_batch(self, message: TokenBatch, array_bytes: ArrayBytes) -> None:
        process, now = self.process, self.process.loop.time()
        assert message.options_id in self.options and self.is_introduced, "as a real engine process does"
        if process.has_stopped:
            raise EngineStopped("the engine has stopped")
        if not message.start and now < process.refuses_until:
            raise Overloaded("the queue of the engine is full")
        if 0.0 < message.deadline_at <= now:
            raise DeadlineExceeded("the deadline of the request has passed")
        inputs = decode_inputs(message, array_bytes)
        token_ids, ends = inputs.token_ids.tolist(), inputs.cu_seqlens.tolist()
        items, row = [], 0
        for call_id, count in zip(message.call_ids, message.num_inputs, strict=True):
            for number in range(count):
                tokens = tuple(token_ids[ends[row] : ends[row + 1]])
                items.append(Item(self, call_id, message.start + number, tokens, message.deadline_at))
                row += 1
        items = [item for item in items if item.call_id not in self.refused]
        process.machine.accepted.update(item.tokens for item in items)
        process.device.add(items, message.is_isolated)

    def _send_errors(self, call_ids: Sequence[int], error: PoolingError) -> None:
        self.channel.send(TokenErrors([(call_id, -1, serialize_error(error)) for call_id in call_ids]))

    def _on_closed(self) -> None:
        self.process.links.remove(self)
        self.process.device.drop(lambda item: item.link is self)
