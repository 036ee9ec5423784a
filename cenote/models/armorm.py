"""ArmoRM: a Llama 3 reward model whose score is a sum of objectives, weighted by a network that reads the prompt."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import GatingSpec, HeadSpec
from cenote.models.architecture import Architecture, Head, HFConfig
from cenote.models.llama import llama
from cenote.models.weight_table import WeightTable

PROMPT_END = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"


def armorm(config: HFConfig) -> Architecture:
    gating = GatingSpec(
        num_objectives=config.get("num_objectives", 19),
        num_layers=config.get("gating_n_hidden", 3),
        hidden_size=config.get("gating_hidden_dim", 1024),
        temperature=config.get("gating_temperature", 10),
    )
    gate: WeightTable = {f"head.gate.{layer}": f"gating.layers.{layer}" for layer in range(gating.num_layers + 1)}
    head = Head(
        spec=HeadSpec(bias=False, num_labels=1, pooling="LAST_AND_PROMPT_END", gating=gating),
        weights={
            "head.classifier": "regression_layer",
            "head.transform": "reward_transform_matrix",
            "head.gate_scale": "gating.logit_scale",
            **gate,
        },
        applies_activation=False,  # a reward, not a probability
    )
    return replace(llama(config), sequence_head=head, token_head=None, prompt_end=PROMPT_END)
