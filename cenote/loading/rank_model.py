"""Load the part of a tensor-parallel model that a rank other than the first computes."""

from __future__ import annotations

from dataclasses import dataclass

from cenote.config.engine import EngineConfig
from cenote.layers.backbone import Backbone
from cenote.layers.pack_linears import prepack
from cenote.layers.parallel_group import ParallelGroup
from cenote.layers.post_load import make_quantizer
from cenote.layers.tensor_parallel import SplitLayers
from cenote.layers.torch_dtypes import to_torch_device, to_torch_dtype
from cenote.loading.backbone_loader import build_backbone, load_backbone, open_weights, use_deterministic_algorithms
from cenote.loading.describe import describe_model
from cenote.loading.heads import load_heads
from cenote.loading.tensor_parallel import split_heads
from cenote.loading.tokenizer_files import empty_tokenizer_files
from cenote.loading.torch_head_layers import TorchHeadLayers
from cenote.pooling.heads import SpladeHead


@dataclass(frozen=True, slots=True)
class RankModel:
    """The part of a tensor-parallel model that a rank other than the first computes."""

    backbone: Backbone
    splade: SpladeHead | None  # None: the first rank computes the heads alone
    num_read_bytes: int  # of the checkpoint


def load_rank(options: EngineConfig, group: ParallelGroup) -> RankModel:
    """Load the part of a rank of a tensor-parallel model, without the checks that `load_model` makes on the first."""
    description = describe_model(options)
    if description.deterministic and description.device.value.type == "cuda":
        use_deterministic_algorithms()
    device, dtype = to_torch_device(description.device.value), to_torch_dtype(description.dtype.value)
    backbone = build_backbone(description)
    split = SplitLayers(backbone, group.rank, group.num_ranks, dtype)
    weight_loader = open_weights(description, options)
    quantizer = make_quantizer(description.quantization.value, device, is_required=options.quantization is not None)
    load_backbone(backbone, description, weight_loader, split, quantizer)
    splade = None
    if description.kind.value == "sparse":
        layers = TorchHeadLayers(device)
        heads = split_heads(load_heads(description, weight_loader, empty_tokenizer_files(), layers), group)
        assert isinstance(heads.splade, SpladeHead), "static weights are refused"
        splade = heads.splade
    if group.rank:
        split.drop_biases()
    backbone.prepare_buffers(device, dtype)
    if quantizer is not None:
        quantizer.finish(backbone)
    prepack(backbone)
    split.connect(group)
    return RankModel(backbone.eval(), splade, weight_loader.weights.num_read_bytes)
