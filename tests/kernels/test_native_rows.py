"""The native row-wise kernels equal torch: residual add with norm, gated activations, QK norm with rotary embedding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from cenote.kernels import native_library, native_rows
from cenote.kernels.activations import ACTIVATIONS, act_and_mul
from cenote.kernels.cpu.library import ACTIVATION_CODES
from cenote.kernels.norm import add_norm
from cenote.layers.rotary import CosSin, apply_rotary

pytestmark = pytest.mark.skipif(
    not native_library.is_available(), reason="needs a CPU with AMX and the compiled native kernels"
)


def random_rows(*shape: int, seed: int = 0, shift: float = 0.0) -> Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + shift).bfloat16()


@pytest.mark.parametrize("shape", [(1, 32), (3, 2, 48), (700, 384), (0, 16)])
@pytest.mark.parametrize("has_branch", [True, False])
@pytest.mark.parametrize("rms", [True, False])
def test_add_and_norm(rms: bool, has_branch: bool, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, bias = random_rows(*shape, shift=3.0), random_rows(shape[-1], seed=2), random_rows(shape[-1], seed=3)
    branch = random_rows(*shape, seed=1) if has_branch else None

    def run(*parts: Tensor | None) -> tuple[Tensor, Tensor]:
        first, second, third, fourth = parts
        return add_norm(first, second, third, None if rms else fourth, 1e-6, rms=rms, offset=float(rms))  # type: ignore[arg-type]

    assert native_rows.supports(x, branch, weight, bias)
    total, normed = run(x, branch, weight, bias)
    exact_total, exact = run(*(None if part is None else part.double() for part in (x, branch, weight, bias)))

    assert_close(total.double(), exact_total, rtol=2**-8, atol=0)
    assert_close(normed.double(), exact, rtol=2**-8, atol=1e-5 if not rms else 0)


def test_a_norm_without_weights() -> None:
    x = random_rows(5, 64, shift=-2.0)

    _, normed = add_norm(x, None, None, None, 1e-6, rms=False)

    exact = add_norm(x.double(), None, None, None, 1e-6, rms=False)[1]
    assert_close(normed.double(), exact, rtol=2**-8, atol=1e-5)


@pytest.mark.parametrize("activation", [name for name in ACTIVATION_CODES if name])
@pytest.mark.parametrize("rows", [0, 1, 700])
def test_gated_activations(rows: int, activation: str) -> None:
    both = random_rows(rows, 2 * 48)

    ours = act_and_mul(both, activation, ACTIVATIONS[activation])

    exact = act_and_mul(both.double(), activation, ACTIVATIONS[activation])
    assert_close(ours.double(), exact, rtol=2**-8, atol=3e-5)


def test_unsupported_tensors_are_computed_by_torch() -> None:
    assert not native_rows.supports(random_rows(4, 24))
    assert not native_rows.supports(random_rows(4, 32), random_rows(4, 32).float())
    assert not native_rows.supports(random_rows(4, 64)[:, ::2])


@pytest.mark.parametrize(("dim", "half"), [(64, 32), (72, 36), (80, 40), (128, 64), (96, 24)])
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("tokens", [1, 90])
def test_qk_norm_and_rope_are_applied_in_place(tokens: int, normed: bool, dim: int, half: int) -> None:
    qkv = random_rows(tokens, 7, dim)  # four queries, two keys and one value
    angles = torch.randn(tokens, 1, half, generator=torch.Generator().manual_seed(1))
    cos_sin = CosSin(angles.cos().bfloat16(), angles.sin().bfloat16())
    weights = [random_rows(dim, seed=seed, shift=1.0) for seed in (2, 3)]
    before = qkv.clone()

    native_rows.qk_norm_rope_(qkv[:, :6], cos_sin.cos, cos_sin.sin, 4, *(weights if normed else ()), eps=1e-6)

    exact_cos_sin = CosSin(cos_sin.cos.double(), cos_sin.sin.double())
    for heads, weight in ((slice(0, 4), weights[0]), (slice(4, 6), weights[1])):
        exact = before[:, heads].double()
        exact = add_norm(exact, None, weight.double(), None, 1e-6, rms=True)[1] if normed else exact
        assert_close(qkv[:, heads].double(), apply_rotary(exact, exact_cos_sin), rtol=2**-7, atol=2**-5)
    assert torch.equal(qkv[:, 6], before[:, 6])
