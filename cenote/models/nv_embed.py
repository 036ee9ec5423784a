"""NV-Embed: a bidirectional Mistral whose states attend to learned latent vectors before they are pooled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cenote.layers.spec import LatentSpec
from cenote.models.architecture import Architecture, HFConfig, makes
from cenote.models.llama import bidirectional, mistral
from cenote.models.weight_table import DerivedWeight, swap_gate_first

if TYPE_CHECKING:
    from cenote.layers.backbone import Backbone

LATENTS = "latent_attention_model"
ATTENTION, MLP = f"{LATENTS}.cross_attend_blocks.0", f"{LATENTS}.cross_attend_blocks.1"


def nv_embed(config: HFConfig) -> Architecture:
    """NV-Embed v1 and v2; the tokens of an instruction are attended to but not pooled."""
    sizes = HFConfig(config.get("latent_attention_config", {}), f"{config.source}: latent_attention_config")
    latents = LatentSpec(
        num_latents=sizes.get("num_latents_value", 512),
        num_heads=sizes.get("num_cross_heads", 8),
        head_dim=sizes.get("cross_dim_head", 4096),
    )

    @makes("attention to latent vectors")
    def backbone(*arguments: Any) -> Backbone:
        from cenote.layers.latent_vectors import LatentBackbone

        return LatentBackbone(latents, *arguments)

    base = bidirectional(mistral(config))
    return replace(
        base,
        pooling="MEAN",
        weights={
            **{name: _prefixed(stored) for name, stored in base.weights.items()},
            "latents.vectors": f"{LATENTS}.latents",
            "latents.norm": f"{ATTENTION}.norm",
            "latents.latent_norm": f"{ATTENTION}.norm_context",
            "latents.query": f"{ATTENTION}.fn.to_q",
            "latents.key_value": f"{ATTENTION}.fn.to_kv",
            "latents.out": f"{ATTENTION}.fn.to_out",
            "latents.mlp_norm": f"{MLP}.norm",
            "latents.up": DerivedWeight((f"{MLP}.fn.net.0",), swap_gate_first),
            "latents.down": f"{MLP}.fn.net.2",
        },
        prefixes=("",),
        backbone_class=backbone,
        appends_eos=bool(config.get("add_eos", True)),
    )


def _prefixed(stored: Any) -> Any:
    return [f"embedding_model.{name}" for name in stored] if isinstance(stored, list) else f"embedding_model.{stored}"
