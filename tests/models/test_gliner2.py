"""GLiNER2: entities of the labels in a request, against a plain implementation on Transformers' DeBERTa."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from cenote import LLM
from cenote.errors import LoadError
from tests.layouts.builders.gliner2 import save_gliner2
from tests.models.gliner_checks import LABELS, TAGGED, TEXTS, Found, assert_entities_equal, encode_prompt, split
from tests.tiny import change_config

TAGGED_WORDS = ["Mail", "a.b@city.org", "or", "@Who", ",", "see", "https://what.is/deep?a=1", "now", "!"]


MAX_WIDTH = 8


def test_the_pattern_of_this_file_finds_the_words_of_a_text() -> None:
    assert [TAGGED[slice(*word)] for word in split(TAGGED)] == TAGGED_WORDS


def count_lstm(layer: Any, labels: Tensor) -> Tensor:
    steps = layer["gru"](layer["pos_embedding"].weight[:3, None].expand(-1, len(labels), -1), labels[None])[0]
    projected: Tensor = layer["projector"](torch.cat((steps, labels.expand_as(steps)), dim=-1))
    return projected[0]


def count_lstm_v2(layer: Any, labels: Tensor) -> Tensor:
    steps = layer["gru"](layer["pos_embedding"].weight[:3, None].expand(-1, len(labels), -1), labels[None])[0] + labels
    inner = layer["transformer"]
    mixed: Tensor = inner["out_projector"](
        torch.cat((inner["transformer"](inner["in_projector"](steps)), steps), dim=-1)
    )
    return mixed[0]


def count_lstm_moe(layer: Any, labels: Tensor) -> Tensor:
    rows = []
    for label in labels:
        state = layer["gru"](layer["pos_embedding"].weight[:1], label[None])[0][0]
        weights = layer["router"](state)
        rows.append(
            sum(
                weights[n] * (torch.nn.functional.gelu(state @ layer.w1[n] + layer.b1[n]) @ layer.w2[n] + layer.b2[n])
                for n in range(4)
            )
        )
    return torch.stack(rows)


COUNTING: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "count_lstm": count_lstm,
    "count_lstm_v2": count_lstm_v2,
    "count_lstm_moe": count_lstm_moe,
}


class Saved:
    """A saved model and its parts."""

    def __init__(self, folder: Path, counting_layer: str = "count_lstm") -> None:
        self.folder, self.counting_layer = folder, counting_layer
        self.encoder, self.heads = save_gliner2(folder, counting_layer)
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)

    def opened(self) -> LLM:
        return LLM(str(self.folder), dtype="float32", device="cpu")

    @cache  # noqa: B019  # a test asks for the same text with several thresholds
    @torch.no_grad()
    def score_spans(self, text: str, labels: tuple[str, ...]) -> tuple[Any, list[list[tuple[float, int, int]]]]:
        """Return the words, and by label the score, first and last word of each span, one span after another."""
        words, task, label_states, contexts = encode_prompt(self.tokenizer, self.encoder, text, labels)
        if self.heads["count_pred"](task).argmax() == 0:
            return words, []
        targets = COUNTING[self.counting_layer](self.heads["count_embed"], label_states)
        layers = self.heads["span_rep"]["span_rep_layer"]
        spans = [
            (first, last) for first in range(len(words)) for last in range(first, min(first + MAX_WIDTH, len(words)))
        ]
        return words, [
            [
                (float((target @ self.score(layers, contexts[first], contexts[last])).sigmoid()), first, last)
                for first, last in spans
            ]
            for target in targets
        ]

    def find(self, text: str, labels: Sequence[str], threshold: float) -> Found:
        """Return the best spans of each label that do not overlap."""
        if not text:
            return []
        words, scores = self.score_spans(text, tuple(labels))
        found = []
        for label, scored in enumerate(scores):
            chosen: list[tuple[float, int, int]] = []
            for item in sorted((item for item in scored if item[0] >= threshold), key=lambda item: -item[0]):
                if all(item[1] > last or item[2] < first for _, first, last in chosen):
                    chosen.append(item)
            found += [
                (first, last, label, (words[first][0], min(words[last][1], len(text)), labels[label], score))
                for score, first, last in chosen
                if words[first][0] < len(text)
            ]
        return [item[3] for item in sorted(found, key=lambda item: item[:3])]

    @staticmethod
    def score(layers: Any, first: Tensor, last: Tensor) -> Tensor:
        ends = torch.cat((layers["project_start"](first), layers["project_end"](last)))
        span: Tensor = layers["out_project"](ends.relu())
        return span


@pytest.mark.parametrize("counting_layer", COUNTING)
def test_entities_equal_those_of_a_plain_implementation(counting_layer: str, tmp_path: Path) -> None:
    saved = Saved(tmp_path, counting_layer)
    texts = [*TEXTS, TAGGED, "DEEP Water"]

    with saved.opened() as llm:
        assert_entities_equal(llm, lambda text, least: saved.find(text, LABELS, least), texts, (0.1, 0.5, 0.9))


def test_a_count_of_zero_means_no_entities(tmp_path: Path) -> None:
    saved = Saved(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["count_pred.2.bias"][0] = 99.0
    save_file(weights, tmp_path / "model.safetensors")

    with saved.opened() as llm:
        (output,) = llm.entities(TEXTS[0], labels=LABELS, threshold=0.0, use_tqdm=False)

    assert output.outputs.entities == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"counting_layer": "count_gru"}, "counting_layer 'count_gru' is not supported, only 'count_lstm' or"),
        ({"token_pooling": "mean"}, "token_pooling 'mean' is not supported, only 'first'"),
        ({"architecture": "other"}, "architecture 'other' is not supported, only 'span' or 'boundary'"),
    ],
)
def test_other_settings_are_refused(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_gliner2(tmp_path)
    change_config(tmp_path, **settings)

    with pytest.raises(LoadError, match=rf"config.json: {message}.*use a model such as .*fastino/gliner2-base-v1"):
        LLM(str(tmp_path), device="cpu")


def test_another_encoder_is_refused(tmp_path: Path) -> None:
    save_gliner2(tmp_path)
    change_config(tmp_path, file="encoder_config/config.json", model_type="modernbert")

    with pytest.raises(LoadError, match="the encoder modernbert is not supported, only deberta-v2"):
        LLM(str(tmp_path), device="cpu")
