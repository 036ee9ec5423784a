"""NomicBERT: a rotary BERT, mostly with a gated MLP and without biases; v2 has experts in every other layer."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import BackboneSpec, MoESpec, RopeSpec
from cenote.models.architecture import Architecture, Head, HFConfig, rope_from_config
from cenote.models.bert import bert, make_masked_head, with_rotary
from cenote.models.checkpoint_names import FLASH_NAMES, GATED_MLP_NAMES
from cenote.models.moe import make_experts
from cenote.models.weight_table import DerivedWeight, WeightTable
from cenote.utils.arrays import Array

# its config.json uses the keys of GPT-2
CONFIG_KEYS = {
    "n_embd": "hidden_size",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
}
GATE_ACTIVATIONS = {"swiglu": "silu", "geglu": "gelu", "glu": "sigmoid"}


def nomic_bert(config: HFConfig) -> Architecture:
    own = {new: config.values[key] for key, new in CONFIG_KEYS.items() if key in config and new not in config}
    name = config.get("activation_function", "swiglu")
    own["hidden_act"] = (
        GATE_ACTIVATIONS.get(name, name) if "activation_function" in config else config.get("hidden_act", "silu")
    )
    config = HFConfig({**config.values, **own}, config.source)
    base = with_rotary(bert(config), config, rope_spec(config))
    every, experts = config.get("moe_every_n_layers", 0), config.get("num_experts", 0)
    moe_layers = [layer for layer in range(config.num_hidden_layers) if every and layer % every == 1]
    return replace(
        base,
        backbone=replace(
            base.backbone,
            qkv_bias=config.get("qkv_proj_bias", False),
            out_bias=config.get("qkv_proj_bias", False),
            mlp_bias=config.get("mlp_fc1_bias", False),
            is_gated_mlp=name in GATE_ACTIVATIONS,
        ),
        weights=GATED_MLP_NAMES,
        alternative_weights=(published_names(gated=name in GATE_ACTIVATIONS, num_experts=experts),),
        prefixes=("nomic_bert.", "bert.", "model.", ""),
        masked_head=make_vocabulary_head(base.backbone, bias=config.get("mlp_fc1_bias", True)),
        make_mlp=make_experts(_moe_spec(config, experts), moe_layers) if moe_layers else None,
    )


def _moe_spec(config: HFConfig, num_experts: int) -> MoESpec:
    return MoESpec(
        num_experts=num_experts,
        top_k=config.moe_top_k,
        intermediate_size=config.intermediate_size,
        is_gated=False,
        out_bias=True,
    )


def rope_spec(config: HFConfig) -> RopeSpec:
    """Return the rope; `rotary_scaling_factor` is dynamic NTK scaling beyond `max_trained_positions`."""
    spec = rope_from_config(config, theta=1000.0)
    scaling = dict(spec.scaling or {})
    trained = config.get("max_trained_positions") or config.max_position_embeddings
    if (scaling.get("rope_type") or scaling.get("type")) == "dynamic":
        scaling = {"max_trained_positions": trained, **scaling}
    elif factor := config.get("rotary_scaling_factor"):
        scaling = {"rope_type": "dynamic", "factor": factor, "max_position_embeddings": trained}
    return replace(spec, scaling=scaling)


def published_names(*, gated: bool, num_experts: int) -> WeightTable:
    layer = "encoder.layers.*.mlp"
    return {
        **{name: stored.replace(".mixer.", ".attn.") for name, stored in FLASH_NAMES.items()},
        "layers.*.mlp.up": [f"{layer}.fc12", f"{layer}.fc11"] if gated else f"{layer}.fc1",
        "layers.*.mlp.router": f"{layer}.router.layer",
        "layers.*.mlp.experts.up": DerivedWeight((f"{layer}.experts.mlp.w1",), lambda w: _by_expert(w, num_experts)),
        "layers.*.mlp.experts.down": DerivedWeight(
            (f"{layer}.experts.mlp.w2",), lambda w: _by_expert(w, num_experts).swapaxes(1, 2)
        ),
        "layers.*.mlp.bias": f"{layer}.experts.bias",
    }


def _by_expert(stored: Array, num_experts: int) -> Array:
    return stored.reshape(num_experts, -1, *stored.shape[1:])


def make_vocabulary_head(spec: BackboneSpec, *, bias: bool) -> Head:
    transform = "cls.predictions.transform"
    head = make_masked_head(
        f"{transform}.dense",
        f"{transform}.layer_norm",
        "cls.predictions.decoder",
        "cls.predictions.bias",
        activation=spec.activation,
        eps=spec.norm_eps,
    )
    if bias:
        return head
    tables = [
        {name: stored for name, stored in table.items() if name != "head.classifier.bias"}
        for table in (head.weights, *head.alternative_weights)
    ]
    return replace(
        head,
        spec=replace(head.spec, dense_bias=False, bias=False),
        weights=tables[0],
        alternative_weights=tuple(tables[1:]),
    )
