"""TextTasks: what the process that tokenizes computes besides inputs: token ids of prompts, scores and entities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cenote.engine.tasks.engine_calls import EngineCalls
from cenote.engine.tasks.entity_settings import EntitySettings
from cenote.engine.tasks.scoring import ScoringService
from cenote.errors import Unsupported
from cenote.inputs.renderer import Renderer
from cenote.protocol.input_types import Input
from cenote.protocol.requests import EntityRequest, ScoreRequest
from cenote.protocol.results import EntityResult, TokenizeResult
from cenote.scoring.scorer import ScoreResults, ScoringModel

if TYPE_CHECKING:
    from cenote.engine.tasks.entity_recognizer import EntityRecognizer
    from cenote.engine.tasks.span_recognizer import SpanRecognizer
    from cenote.inputs.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Everything about a model that its tasks need besides the renderer, as plain values."""

    scoring: ScoringModel
    entities: EntitySettings | None = None  # None: the model finds none


class TextTasks:
    def __init__(self, settings: TaskSettings, renderer: Renderer) -> None:
        self.renderer = renderer
        self.scoring = ScoringService(settings.scoring, renderer)
        self.recognizer: EntityRecognizer | SpanRecognizer | None = None
        if settings.entities is not None:
            self.recognizer = _make_recognizer(settings.entities, renderer.tokenizer)

    def tokenize(
        self,
        prompt: Input,
        add_special_tokens: bool,
        return_token_strs: bool,
        return_offsets: bool,
        max_tokens: int | None,
    ) -> TokenizeResult:
        """Return the token ids of a prompt whose images are preprocessed; takes long for a long text."""
        tokenizer = self.renderer.tokenizer
        ids = self.renderer.tokenize(prompt, add_special_tokens=add_special_tokens, max_tokens=max_tokens)
        token_strs = tokenizer.convert_ids_to_tokens(ids) if return_token_strs else None
        offsets = tokenizer.find_offsets(prompt, ids) if return_offsets and isinstance(prompt, str) else None
        return TokenizeResult(ids, token_strs, offsets)

    async def score(self, request: ScoreRequest, calls: EngineCalls) -> ScoreResults:
        """Return a score for every pair, in the order of the documents."""
        return await self.scoring.score(request, calls)

    async def find_entities(self, request: EntityRequest, calls: EngineCalls) -> list[EntityResult]:
        """Return the entities of every text, in the order of the texts."""
        if self.recognizer is None:
            raise Unsupported(
                f"{self.scoring.model.name} does not support entities: load a token classification model "
                "(...ForTokenClassification) with token pooling ALL, or a GLiNER model",
                param="task",
            )
        return await self.recognizer.recognize(request, calls)


def _make_recognizer(settings: EntitySettings, tokenizer: Tokenizer) -> EntityRecognizer | SpanRecognizer:
    # imported on use: most models find no entities
    if settings.span_head is None:
        from cenote.engine.tasks.entity_recognizer import EntityRecognizer

        return EntityRecognizer(settings, tokenizer)
    from cenote.engine.tasks.span_recognizer import SpanRecognizer

    return SpanRecognizer(settings, tokenizer)
