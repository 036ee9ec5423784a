"""An engine process without a model, which does what a file says, and a ModelManager that starts such processes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from cenote.api.admission.counters import Counters
from cenote.api.supervisor.model_manager import ModelManager
from cenote.api.wire.channel import ALIGNMENT, FRAME_HEADER, MESSAGE, WIRE_VERSION
from cenote.api.wire.codec_errors import serialize_error
from cenote.api.wire.control_messages import EngineExited, EngineLoaded, EngineState, LoadFailed, ModelStates
from cenote.api.wire.messages import Message
from cenote.config.model_table import ModelTable
from cenote.config.server import ServerConfig
from cenote.errors import LoadError
from cenote.protocol.model_info import ModelInfo

MODEL_INFO = ModelInfo(
    name="tiny",
    root="tiny",
    architecture="BertModel",
    tasks=("embed",),
    default_task="embed",
    score_types=(),
    max_model_len=512,
    dtype="float32",
    device="cpu",
    embedding_size=32,
    labels=None,
    prompts={},
    instructions={},
    tokenizer_info={},
    has_chat_template=False,
)

CODE = """
import os, pathlib, socket, sys, time
plan = pathlib.Path(sys.argv[1])
control = socket.socket(fileno=int(sys.argv[2]))
action = plan.read_text()
if action == "fail to load":
    control.sendall(plan.with_name("failed").read_bytes())
    sys.exit(78)
if action == "crash":
    os.abort()
control.sendall(plan.with_name("loaded").read_bytes())
control.setblocking(False)
while plan.read_text() == action:
    time.sleep(0.01)
    try:
        if b"stopengine" in control.recv(65536):
            sys.exit(0)
    except BlockingIOError:
        pass
os.abort()
"""


def encode_frame(message: Message) -> bytes:
    encoded = msgspec.msgpack.encode(message)
    size = -(-(FRAME_HEADER.size + len(encoded)) // ALIGNMENT) * ALIGNMENT
    return (FRAME_HEADER.pack(WIRE_VERSION, MESSAGE, len(encoded), 0, 0) + encoded).ljust(size, b"\0")


class StubEngines:
    """What engine processes do: "load" and serve until that changes, "fail to load" or "crash"."""

    def __init__(self, folder: Path, action: str) -> None:
        self.plan = folder / "plan"
        (folder / "loaded").write_bytes(encode_frame(EngineLoaded(msgspec.json.encode(MODEL_INFO), {})))
        (folder / "failed").write_bytes(encode_frame(LoadFailed(serialize_error(LoadError("the bucket is away")))))
        self.do(action)

    def do(self, action: str) -> None:
        part = self.plan.with_name("part")
        part.write_text(action)
        part.replace(self.plan)

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-S", "-c", CODE, str(self.plan)]


class RecordingFrontEnds:
    """Implement FrontEnds: keep what the supervisor sends."""

    def __init__(self) -> None:
        self.states: ModelStates | None = None
        self.error: Exception | None = None  # raised instead

    def connect_engine(self, engine_id: int) -> None:
        if self.error is not None:
            raise self.error

    def set_engine_state(self, state: EngineState) -> None: ...

    def report_exit(self, exited: EngineExited) -> None: ...

    def set_models(self, states: ModelStates) -> None:
        self.states = states

    async def release_engine(self, engine_id: int) -> None: ...

    def forget_engine(self, engine_id: int) -> None: ...


def make_models(table: ModelTable, engines: StubEngines, failures: list[Any] | None = None) -> ModelManager:
    failures = [] if failures is None else failures
    models = ModelManager(ServerConfig(), table, Counters(), failures.append, engines.command)
    models.front_ends = RecordingFrontEnds()
    return models
