"""TextTasks: what the process that tokenizes computes besides inputs: token ids of prompts, scores and entities."""

from __future__ import annotations

from dataclasses import dataclass

from cenote.engine.tasks.engine_calls import EngineCalls
from cenote.engine.tasks.entity_recognizer import EntityRecognizer, EntitySettings
from cenote.engine.tasks.scoring import ScoringService
from cenote.engine.tasks.span_recognizer import SpanRecognizer
from cenote.errors import Unsupported
from cenote.inputs.renderer import Renderer
from cenote.protocol.input_types import Input
from cenote.protocol.requests import EntityRequest, ScoreRequest
from cenote.protocol.results import EntityResult, TokenizeResult
from cenote.scoring.scorer import ScoreResults, ScoringModel


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
            recognizer_class = EntityRecognizer if settings.entities.span_head is None else SpanRecognizer
            self.recognizer = recognizer_class(settings.entities, renderer.tokenizer)

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
