"""The Triton kernel for short convolutions equals plain torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from cenote.layers.convolution import ShortConvolution
from cenote.packed_batch import pack_sequences

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

LENGTHS = [5, 1, 2, 90, 1, 1, 3, 40]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("width", [1, 3, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_columns_of_a_wider_matrix_are_convolved_as_on_a_cpu(dtype: torch.dtype, width: int, bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = ShortConvolution(200, width, bias=bias).requires_grad_(False)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator))
    layer, matrix = layer.to(dtype), torch.randn(sum(LENGTHS), 333, generator=generator).to(dtype)
    batch = pack_sequences([[0] * length for length in LENGTHS])
    cuda_batch = replace(
        batch, **{name: getattr(batch, name).cuda() for name in ("token_ids", "positions", "cu_seqlens")}
    )
    expected = layer(matrix[:, 60:260], batch)

    ours = layer.cuda()(matrix.cuda()[:, 60:260], cuda_batch)

    assert_close(ours.cpu(), expected, atol=1e-5, rtol=2**-7 if dtype == torch.bfloat16 else 1e-5)
