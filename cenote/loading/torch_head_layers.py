"""Make the layers of heads in torch, which share the parameters that the backbone has."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from cenote.layers.torch_dtypes import to_torch_dtype
from cenote.loading.head_layers import Shapes
from cenote.loading.module_loader import load_module
from cenote.loading.weight_loader import WeightLoader
from cenote.models.weight_table import WeightTable
from cenote.pooling.torch_layers import TorchLayers
from cenote.utils.dtypes import Dtype


class TorchHeadLayers(TorchLayers):
    """Makes layers on a device; see `HeadLayers`."""

    def load_parameters(
        self, weight_loader: WeightLoader, table: WeightTable, shapes: Shapes, dtype: Dtype
    ) -> Mapping[str, Tensor]:
        # the loader shares parameters of modules: a vocabulary that is tied to the embeddings is on the device once
        holder = nn.Module()
        for path, shape in shapes.items():
            *owners, leaf = path.split(".")
            module = holder
            for name in owners:
                if name not in module._modules:
                    module.add_module(name, nn.Module())
                module = module.get_submodule(name)
            module.register_parameter(leaf, nn.Parameter(torch.empty(shape, device="meta"), requires_grad=False))
        dtype_of_all = to_torch_dtype(dtype)
        load_module(weight_loader, holder, table, num_layers=0, dtype=dtype_of_all, device=self.device)
        return dict(holder.named_parameters(remove_duplicate=False))
