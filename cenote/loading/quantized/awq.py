"""AWQ in the gemm layout: 4-bit integers packed along the outputs in an interleaved order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cenote.errors import LoadError
from cenote.loading.quantized.tensor_groups import Tensors, check_bits, check_shape, replace_groups, unpack_integers
from cenote.loading.weights import CheckpointWeights

# the output, of the eight of a word, that is stored at each position from the lowest bits
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def add_awq_weights(weights: CheckpointWeights, config: Mapping[str, Any], device: torch.device) -> None:
    check_bits(f"{weights.source}: quantization_config", config.get("bits", config.get("w_bit")), (4,))
    version = str(config.get("version") or "gemm").lower()
    if version != "gemm":
        raise LoadError(f"{weights.source}: AWQ version {version!r} is not supported; supported are: gemm")
    replace_groups(weights, device, marker="qweight", parts=("qweight", "qzeros", "scales"), dequantize=_dequantize)


def _dequantize(module: str, parts: Tensors) -> Tensor:
    """Return [outputs, inputs]; stored are qweight [inputs, outputs / 8] and qzeros [groups, outputs / 8]."""
    values, zeros = _unpack(parts["qweight"]), _unpack(parts["qzeros"])
    scales = parts["scales"].float()
    (num_inputs, num_outputs), num_groups = values.shape, scales.shape[0]
    check_shape(module, "scales", scales, (num_groups, num_outputs))
    check_shape(module, "qzeros", zeros, (num_groups, num_outputs))
    if num_inputs % num_groups:
        raise LoadError(
            f"{module}: {num_inputs} inputs do not divide into {num_groups} groups; download the model again"
        )
    grouped = values.view(num_groups, -1, num_outputs)
    exact = (grouped - zeros[:, None]).float() * scales[:, None]
    return exact.view(num_inputs, num_outputs).T.contiguous()


def _unpack(packed: Tensor) -> Tensor:
    positions = torch.tensor([ORDER.index(output) for output in range(8)], device=packed.device)
    words = unpack_integers(packed, 4, dim=1).view(len(packed), -1, 8)
    return words[..., positions].flatten(1)
