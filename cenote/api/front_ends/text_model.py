"""TextModel: what a front-end does with the texts of a model before and after the engine process computes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import tokenizers

from cenote.api.wire.token_messages import RendererInfo, RouteInfo
from cenote.engine.tasks.text_tasks import TaskSettings, TextTasks
from cenote.inputs.renderer import Renderer
from cenote.inputs.renderer_settings import RendererSettings, TokenizerSettings
from cenote.protocol.params import Role
from cenote.utils.bounded_executor import BoundedExecutor


class TextModel:
    def __init__(self, info: RendererInfo) -> None:
        default, *others = info.routes
        self.renderer = make_renderer(default)
        self.renderers = {
            role: renderer for route in others for renderer in [make_renderer(route)] for role in route.roles
        }
        self.tasks = TextTasks(msgspec.json.decode(info.task_settings, type=TaskSettings), self.renderer)

    def get_renderer(self, role: Role | None) -> Renderer:
        return self.renderer if role is None else self.renderers.get(role, self.renderer)


class TextModelCache:
    """The model of the last RendererInfo, for all links to engines with the same model."""

    def __init__(self) -> None:
        self.last: TextModel | None = None
        self._info: RendererInfo | None = None
        # its threads start when they are needed, and end with it
        self.executor = BoundedExecutor("scoring", num_threads=4, max_waiting=1024)

    def get(self, info: RendererInfo) -> TextModel:
        if self.last is None or self._info != info:
            self._info, self.last = info, TextModel(info)
        return self.last


def make_renderer(info: RouteInfo) -> Renderer:
    settings = msgspec.json.decode(info.tokenizer_settings, type=TokenizerSettings)
    tokenizer = settings.make_tokenizer(load_tokenizer(info))
    return msgspec.json.decode(info.renderer_settings, type=RendererSettings).make_renderer(tokenizer)


def load_tokenizer(info: RouteInfo) -> tokenizers.Tokenizer:
    if info.tokenizer:
        return tokenizers.Tokenizer.from_str(info.tokenizer.decode())
    # imported on use: hardly any model needs it
    from cenote.loading.checkpoint import Checkpoint
    from cenote.loading.tokenizer_files import load_text_tokenizer

    folders = msgspec.json.decode(info.tokenizer_checkpoint, type=Checkpoint, dec_hook=lambda _, path: Path(path))
    return load_text_tokenizer(folders, info.text_suffix)
