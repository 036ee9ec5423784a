"""Few-rows mode: which layers its kernel supports, and that its kernels give the results of the others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.kernels.activations import ACTIVATIONS
from cenote.kernels.gpu import few_rows
from cenote.kernels.gpu.few_rows import MAX_ROWS, few_rows_mode, is_few_rows_mode
from cenote.layers.backbone import Backbone
from cenote.layers.linear import Linear
from cenote.layers.spec import BackboneSpec
from cenote.packed_batch import pack_sequences
from tests.tiny import copy_to_device

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda")


def relative_error(actual: Tensor, exact: Tensor) -> float:
    return float((actual.double() - exact.double()).norm() / exact.double().norm())


def make_layer(
    inputs: int, outputs: int, activation: str | None = None, dtype: torch.dtype = torch.bfloat16, *, bias: bool = True
) -> Linear:
    torch.manual_seed(0)
    layer = Linear(inputs, outputs, bias=bias, activation=activation)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.04)
    return layer.to(GPU, dtype)


def test_layers_use_their_usual_kernel_outside_of_the_mode() -> None:
    assert few_rows.linear(torch.ones(4, 256), torch.ones(8, 256), None, None) is None


def test_many_rows_do_not_enable_the_mode() -> None:
    with few_rows_mode(MAX_ROWS + 1, torch.device("cpu")):
        assert not is_few_rows_mode()


def test_the_mode_can_be_disabled_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_rows, "can_launch_early", lambda device: True)
    monkeypatch.setattr(few_rows, "is_disabled", False)
    with few_rows_mode(1, torch.device("cpu")):
        assert is_few_rows_mode()

    assert few_rows.disable_few_rows_mode()
    assert not few_rows.disable_few_rows_mode()
    with few_rows_mode(1, torch.device("cpu")):
        assert not is_few_rows_mode()


@pytest.mark.gpu
@needs_gpu
def test_the_mode_ends_with_its_block() -> None:
    with few_rows_mode(1, GPU):
        assert is_few_rows_mode() == few_rows.can_launch_early(GPU)
    assert not is_few_rows_mode()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [1, 16, 17])
@pytest.mark.parametrize(
    "inputs, outputs, activation",
    [
        (768, 2304, None),
        (768, 3072, "gelu"),
        (3072, 768, None),
        (384, 1152, "relu"),
        (1536, 384, None),
        (128, 8, "silu"),
    ],
)
def test_linear_layer_is_as_accurate_as_that_of_cublas(
    rows: int, inputs: int, outputs: int, activation: str | None, dtype: torch.dtype
) -> None:
    layer = make_layer(inputs, outputs, activation, dtype)
    x = torch.randn(rows, inputs, device=GPU, dtype=dtype)
    with torch.inference_mode():
        exact = F.linear(x.double(), layer.weight.double(), layer.bias.double())
        exact = exact if activation is None else ACTIVATIONS[activation](exact)
        usual = layer(x)
        with few_rows_mode(rows, GPU):
            actual = layer(x)

    assert relative_error(actual, exact) <= 1.05 * relative_error(usual, exact) + 1e-4


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("inputs, outputs", [(100, 64), (256, 60), (8192, 64), (4096, 4096)])
def test_other_layers_use_their_usual_kernel(inputs: int, outputs: int) -> None:
    layer = make_layer(inputs, outputs, bias=False)
    x = torch.randn(3, inputs, device=GPU, dtype=torch.bfloat16)

    with torch.inference_mode(), few_rows_mode(3, GPU):
        assert few_rows.linear(x, layer.weight, None, None) is None
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight), rtol=0, atol=0)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("lengths", [[14], [16], [30], [5, 9]], ids=str)
def test_a_graph_of_many_layers_gives_the_result_of_the_usual_kernels(lengths: list[int]) -> None:
    torch.manual_seed(0)
    spec = BackboneSpec(
        vocab_size=50, hidden_size=384, intermediate_size=1536, num_layers=6, num_heads=6,
        num_learned_positions=64, has_embed_norm=True, norm_order="post", activation="gelu",
    )  # fmt: skip
    backbone = Backbone(spec).to(GPU, torch.bfloat16)
    for parameter in backbone.parameters():
        nn.init.normal_(parameter, std=0.05)
    batch = copy_to_device(pack_sequences([list(range(length)) for length in lengths]), "cuda")
    graph = torch.cuda.CUDAGraph()

    with torch.inference_mode():
        expected = backbone(batch).clone()
        with few_rows_mode(sum(lengths), GPU):
            backbone(batch)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                actual = backbone(batch)
    results = []
    for _ in range(20):  # early starts must never read what is not yet written
        graph.replay()
        results.append(actual.clone())

    assert relative_error(results[0], expected) < 0.03
    assert all(torch.equal(result, results[0]) for result in results)
