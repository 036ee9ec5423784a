"""TextModel: what a front-end does with the inputs of a model before and after the engine process computes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import tokenizers

from cenote.api.wire.token_messages import RendererInfo, RouteInfo
from cenote.engine.engine_executors import EngineExecutors
from cenote.engine.preprocessing.image_workers import ImageWorkerPool
from cenote.engine.tasks.text_tasks import TaskSettings, TextTasks
from cenote.inputs.renderer import Renderer
from cenote.inputs.renderer_settings import RendererSettings, TokenizerSettings
from cenote.protocol.params import Role
from cenote.utils.busy_stages import BusyStages

if TYPE_CHECKING:
    from cenote.inputs.media.loader import MediaLoader


class TextModel:
    def __init__(self, info: RendererInfo, executors: EngineExecutors) -> None:
        self.executors = executors
        self._loaders: list[MediaLoader] = []
        self.renderer = make_renderer(info.routes[0], self._loaders)
        self.renderers: dict[Role | None, Renderer] = {}  # by role, of other modules of the model
        for route in info.routes[1:]:
            self.renderers |= dict.fromkeys(route.roles, make_renderer(route, self._loaders))
        self.busy_stages = BusyStages()
        self.image_workers = ImageWorkerPool(self.renderer.multimodal, self.busy_stages)
        self.tasks = TextTasks(msgspec.json.decode(info.task_settings, type=TaskSettings), self.renderer)
        self.step_timeout_s = info.step_timeout_s

    def close(self) -> None:
        """Stop the decoders of images."""
        self.image_workers.close()
        for loader in self._loaders:
            loader.close()

    def find_hang(self) -> tuple[str, float] | None:
        """Return the stage that has been busy with one piece of work for too long, and since when."""
        busy = self.busy_stages.find_oldest()
        return None if busy is None or time.monotonic() - busy[1] <= self.step_timeout_s else busy

    def get_renderer(self, role: Role | None) -> Renderer:
        return self.renderers.get(role, self.renderer)


class TextModelCache:
    """The model of the last RendererInfo, for all links to engines with the same model."""

    def __init__(self) -> None:
        self.last: TextModel | None = None
        self._info: RendererInfo | None = None
        self.executors = EngineExecutors()  # their threads start when they are needed, and end with it

    def get(self, info: RendererInfo) -> TextModel:
        if self.last is None or self._info != info:
            self._info, self.last = info, TextModel(info, self.executors)
        return self.last

    def close(self) -> None:
        if self.last is not None:
            self.last.close()


def make_renderer(info: RouteInfo, loaders: list[MediaLoader]) -> Renderer:
    """Return the renderer; what it loads images with is added to `loaders`."""
    tokenizer_settings = msgspec.json.decode(info.tokenizer_settings, type=TokenizerSettings)
    tokenizer = tokenizer_settings.make_tokenizer(load_tokenizer(info))
    settings = msgspec.json.decode(info.renderer_settings, type=RendererSettings)
    if settings.multimodal is None:
        return Renderer(tokenizer, settings)
    from cenote.inputs.media.loader import MediaLoader  # with Pillow, which models of texts do without

    loaders.append(MediaLoader(settings.multimodal.media))
    return Renderer(tokenizer, settings, settings.multimodal.make_processor(tokenizer, loaders[-1]))


def load_tokenizer(info: RouteInfo) -> tokenizers.Tokenizer:
    if info.tokenizer:
        return tokenizers.Tokenizer.from_str(info.tokenizer.decode())
    # imported on use: hardly any model needs it
    from cenote.loading.checkpoint import Checkpoint
    from cenote.loading.tokenizer_files import load_text_tokenizer

    folders = msgspec.json.decode(info.tokenizer_checkpoint, type=Checkpoint, dec_hook=lambda _, path: Path(path))
    return load_text_tokenizer(folders, info.text_suffix)
