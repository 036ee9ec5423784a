"""The activation of classifiers: the fields of config.json that set it, in order of precedence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from cenote import LLM
from cenote.errors import LoadError
from cenote.pooling.activation_names import resolve_classification_activation
from cenote.pooling.activations import activate_logits
from cenote.pooling.torch_ops import TorchOps
from tests.tiny import SEQUENCES, change_config, compute_logits, tiny_bert_classifier

TORCH = "torch.nn.modules."
IDENTITY, TANH = f"{TORCH}linear.Identity", f"{TORCH}activation.Tanh"
SIGMOID, SOFTMAX = f"{TORCH}activation.Sigmoid", f"{TORCH}activation.Softmax"
WIDTHS = (1, 2, 5)


def identity(x: Tensor) -> Tensor:
    return x


def sigmoid_or_softmax(x: Tensor) -> Tensor:
    return x.sigmoid() if x.shape[-1] == 1 else x.softmax(-1)


TABLE: list[tuple[dict[str, Any], Callable[[Tensor], Tensor]]] = [
    ({}, sigmoid_or_softmax),
    ({"problem_type": None}, sigmoid_or_softmax),
    ({"problem_type": "regression"}, identity),
    ({"problem_type": "single_label_classification"}, sigmoid_or_softmax),
    ({"problem_type": "multi_label_classification"}, torch.sigmoid),
    ({"sentence_transformers": {"activation_fn": IDENTITY}}, identity),
    ({"sentence_transformers": {"activation_fn": SIGMOID}}, sigmoid_or_softmax),
    ({"sentence_transformers": {"activation_fn": SOFTMAX}}, sigmoid_or_softmax),
    ({"sentence_transformers": {"activation_fn": TANH}}, torch.tanh),
    ({"sentence_transformers": {"version": "5.0"}}, sigmoid_or_softmax),
    ({"sbert_ce_default_activation_function": IDENTITY}, identity),
    ({"sbert_ce_default_activation_function": SIGMOID}, sigmoid_or_softmax),
    ({"sbert_ce_default_activation_function": TANH}, torch.tanh),
    # an earlier rule beats a later one
    ({"problem_type": "regression", "sentence_transformers": {"activation_fn": TANH}}, identity),
    ({"problem_type": "multi_label_classification", "sbert_ce_default_activation_function": IDENTITY}, torch.sigmoid),
    ({"sentence_transformers": {"activation_fn": TANH}, "sbert_ce_default_activation_function": IDENTITY}, torch.tanh),
    ({"num_labels": 0}, torch.sigmoid),
]


@pytest.mark.parametrize(("config", "expected"), TABLE)
def test_the_config_names_the_activation(config: dict[str, Any], expected: Callable[[Tensor], Tensor]) -> None:
    activation = resolve_classification_activation(config).value

    for width in WIDTHS:
        x = torch.randn(3, width, generator=torch.Generator().manual_seed(width)) * 3
        assert_close(activate_logits(TorchOps(), x, activation), expected(x))


@pytest.mark.parametrize(
    "name", ["os.system", "mymodels.Softplus", "torch.hub.load", "torch.nn.functional.tanh", "Sigmoid", ""]
)
@pytest.mark.parametrize("place", ["sentence_transformers", "sbert_ce_default_activation_function"])
def test_only_modules_of_torch_are_activations(place: str, name: str) -> None:
    config = {place: {"activation_fn": name} if place == "sentence_transformers" else name}

    with pytest.raises(LoadError, match=r"restricted to torch\.nn\.modules for security reasons"):
        resolve_classification_activation(config)


def test_an_unsupported_torch_module_is_refused() -> None:
    with pytest.raises(LoadError, match=r"Bilinear.* expected one of: .*tanh"):
        resolve_classification_activation({"sbert_ce_default_activation_function": f"{TORCH}linear.Bilinear"})


def test_the_activation_has_its_source() -> None:
    assert "problem_type" in resolve_classification_activation({"problem_type": "regression"}).source
    assert resolve_classification_activation({}).source == "number of labels"


def test_zero_labels_log_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    resolve_classification_activation({"num_labels": 0})

    assert "num_labels" in caplog.text


def test_normalised_vectors_have_length_one_and_zero_stays_zero() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1e-6, 0.0]])

    assert_close(TorchOps().normalize(rows), torch.tensor([[0.6, 0.8], [0.0, 0.0], [1.0, 0.0]]))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, identity),
        ({"sbert_ce_default_activation_function": SOFTMAX}, torch.sigmoid),
        ({"sbert_ce_default_activation_function": TANH}, torch.tanh),
    ],
)
def test_a_cross_encoder_applies_its_configured_activation(
    change: dict[str, Any], expected: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    reference = tiny_bert_classifier(tmp_path, num_labels=1)
    change_config(tmp_path, **change)

    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        ours = torch.stack([output.outputs.data for output in llm.classify(SEQUENCES, use_tqdm=False)])

    assert_close(ours, expected(torch.stack(compute_logits(reference))), atol=1e-4, rtol=0)


def test_a_model_with_an_activation_outside_torch_is_refused(tmp_path: Path) -> None:
    tiny_bert_classifier(tmp_path, num_labels=1)
    change_config(tmp_path, sbert_ce_default_activation_function="builtins.exec")

    with pytest.raises(LoadError, match="security"):
        LLM(str(tmp_path), device="cpu")
