"""Fill torch modules with the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cenote.kernels.quantized_linear import WeightQuantizer
from cenote.layers.torch_dtypes import to_tensor
from cenote.loading.weight_loader import NO_SHARDS, StoredParameter, WeightLoader
from cenote.models.weight_table import WeightTable

if TYPE_CHECKING:
    from cenote.layers.sharding import Shard


def load_module(
    weight_loader: WeightLoader,
    module: nn.Module,
    table: WeightTable,
    *,
    num_layers: int,
    dtype: torch.dtype,
    device: torch.device,
    module_prefix: str = "",
    shards: Mapping[str, Shard] = NO_SHARDS,
    quantizer: WeightQuantizer | None = None,
) -> None:
    """Load all parameters of a module built on the meta device; `module_prefix` is its path in the backbone.

    `shards`: of the parameters, by path, of which this process has a part. Layers that the quantizer selects are
    replaced one by one, so that only one weight at a time is in memory as it is stored.
    """
    shapes = {path: tuple(parameter.shape) for path, parameter in module.named_parameters()}
    selected = {} if quantizer is None else quantizer.select(module)
    to_quantize: dict[str, StoredParameter] = {}
    for parameter in weight_loader.find_parameters(
        shapes, table, num_layers=num_layers, module_prefix=module_prefix, shards=shards
    ):
        owner, _, leaf = parameter.path.rpartition(".")
        holder = module.get_submodule(owner)
        if owner in selected and leaf == "weight":
            to_quantize[owner] = parameter
            continue
        # some modules keep parameters in float32 whatever the dtype of the model
        param_dtype = torch.float32 if leaf in getattr(holder, "float32_params", ()) else dtype
        key = (*parameter.key, param_dtype)
        if key not in weight_loader.made:
            tensor = _make_tensor(parameter, param_dtype, device)
            weight_loader.made[key] = nn.Parameter(tensor, requires_grad=False)
        setattr(holder, leaf, weight_loader.made[key])
    if quantizer is not None:  # biases are loaded now
        for path, parameter in to_quantize.items():
            linear = selected[path]
            key = (*parameter.key, "quantized", getattr(linear, "activation", None))
            if key not in weight_loader.made:
                weight_loader.made[key] = quantizer.quantize(linear, _piece_reader(parameter), device, dtype)
            module.set_submodule(path, weight_loader.made[key])


def _make_tensor(parameter: StoredParameter, dtype: torch.dtype, device: torch.device) -> Tensor:
    pieces = _piece_reader(parameter)()
    if len(pieces) == 1:
        return pieces[0].to(device, dtype)  # no copy if dtype and device match: the parameter is the mapped file
    concatenated = torch.empty(parameter.shape, dtype=dtype, device=device)
    row = 0
    for piece in pieces:
        concatenated[row : row + piece.shape[0]].copy_(piece)
        row += piece.shape[0]
    return concatenated


def _piece_reader(parameter: StoredParameter) -> Callable[[], list[Tensor]]:
    return lambda: [to_tensor(piece).contiguous() for piece in parameter.read_pieces()]
