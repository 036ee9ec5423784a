"""nomic-embed-vision: an EVA-02 image encoder in the vector space of nomic-embed-text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cenote.layers.spec import BackboneSpec
from cenote.models.architecture import Architecture, HFConfig, makes
from cenote.models.clip import single_image_spec
from cenote.models.eva import check_values, image_rope
from cenote.models.vision_spec import VisionSpec
from cenote.models.weight_table import DerivedWeight, WeightTable

if TYPE_CHECKING:
    from cenote.layers.backbone import Backbone, VisionTower

# values of both published models; the code of the authors does something else for others
FIXED_VALUES = {
    "activation_function": "swiglu",
    "norm_mlp": True,
    "prenorm": True,
    "use_rotary_pos_emb": True,
    "rotary_emb_fraction": 0,
    "no_cls_token": False,
    "no_embed_class": False,
    "register_tokens": 0,
    "global_pool": None,
    "sinusoidal_pos_embedding": False,
}
MLP_NORM_EPS = 1e-5  # not in config.json


def nomic_vision(config: HFConfig) -> Architecture:
    side, grid = config.img_size, config.img_size // config.patch_size
    trained_grid = config.get("ref_feat_shape", [grid])[0]
    check_values(config, FIXED_VALUES | {"ref_feat_shape": [trained_grid] * 2})
    spec = BackboneSpec(
        vocab_size=1,
        hidden_size=config.n_embd,
        intermediate_size=-(-int(config.n_inner) // 256) * 256,  # rounded up by the code of the authors
        num_layers=config.n_layer,
        num_heads=config.n_head,
        num_learned_positions=grid**2 + 1,
        rope=image_rope(config.n_embd // config.n_head, grid, trained_grid),
        activation="silu",
        is_gated_mlp=True,
        norm_eps=config.layer_norm_epsilon,
        has_final_norm=False,
        qkv_bias=config.qkv_proj_bias,
        out_bias=config.qkv_proj_bias,
        mlp_bias=config.mlp_fc1_bias,
    )
    patch_dim = config.get("num_channels", 3) * config.patch_size**2

    def make_tower() -> VisionTower:
        from cenote.layers.patch_encoders import make_eva_encoder
        from cenote.layers.pooling_towers import PooledResidualTower

        bias = config.patch_embed_bias
        return PooledResidualTower(
            make_eva_encoder(spec, patch_dim, patch_bias=bias, mlp_norm_eps=MLP_NORM_EPS, norms_attention=False)
        )

    return Architecture(
        backbone=spec,
        weights={},
        prefixes=("",),
        backbone_class=_image_encoder,
        vision=VisionSpec(
            make_tower=make_tower,
            weights=WEIGHTS,
            num_layers=spec.num_layers,
            image_spec=single_image_spec(
                "nomic-embed-vision",
                config.patch_size,
                {"image_size": side, "size": {"height": side, "width": side}},
                text_model="nomic-ai/nomic-embed-text of the same version",
            ),
        ),
    )


@makes("vision tower")
def _image_encoder(*arguments: Any) -> Backbone:
    from cenote.layers.two_towers import ImageEncoder

    return ImageEncoder(*arguments)


WEIGHTS: WeightTable = {
    "encoder.embed.first": DerivedWeight(("embeddings.cls_token",), np.ravel),
    "encoder.embed.patches": "embeddings.proj",
    "encoder.embed.positions.weight": DerivedWeight(("embeddings.pos_embed",), lambda stored: stored[0]),
    "encoder.layers.*.mixer.qkv": "layers.*.attn.Wqkv",
    "encoder.layers.*.mixer.out": "layers.*.attn.out_proj",
    "encoder.layers.*.mixer_norm": "layers.*.norm1",
    "encoder.layers.*.mlp.up": ["layers.*.mlp.fc12", "layers.*.mlp.fc11"],  # the gate is stored second
    "encoder.layers.*.mlp.norm": "layers.*.mlp.norm",
    "encoder.layers.*.mlp.down": "layers.*.mlp.fc2",
    "encoder.layers.*.mlp_norm": "layers.*.norm2",
    "pool.probe": DerivedWeight(("selector.attn.latent",), np.ravel),
    "pool.query": "selector.attn.Wq",
    "pool.key_value": "selector.attn.Wkv",
    "pool.out": "selector.attn.out_proj",
    "pool.norm": "selector.norm1",
    "pool.mlp.up": ["selector.mlp.fc12", "selector.mlp.fc11"],
    "pool.mlp.down": "selector.mlp.fc2",
}
