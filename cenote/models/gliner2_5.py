"""GLiNER2.5 (GLiNER2 with the boundary architecture): entities of any length, of the labels in a request."""

from __future__ import annotations

from dataclasses import replace

from cenote.layers.spec import BoundaryHeadSpec
from cenote.models.architecture import Architecture, HFConfig
from cenote.models.gliner2 import PROMPT, gliner2
from cenote.models.weight_table import WeightTable

HEAD = "boundary_head"
ENCODER, SCORES = f"{HEAD}.boundary_encoder", f"{HEAD}.boundary_query_head"
POOL, SCORER = f"{HEAD}.shared_pool_builder", f"{HEAD}.shared_pool_scorer"
# (our layers, layers in the checkpoint) -> the names of their parts; MLPs have a dropout before their second matrix
MLP = {"norm": "norm1", "mlp_norm": "norm2", "mlp.0": "ffn.0", "mlp.2": "ffn.3"}
LAYERS = {
    ("boundary.attention", f"{ENCODER}.attention_blocks"): {
        **{"norm": "norm", "attention.qkv": "qkv_projection", "attention.output": "output_projection"},
    },
    ("boundary.mlp", f"{ENCODER}.refinement_blocks"): {
        **{"norm": "norm", "input": "input_projection", "output": "output_projection"},
    },
    ("candidate.candidate_layers", f"{SCORER}.candidate_layers"): {
        **{"attention.qkv": "qkv", "attention.output": "output", "bias": "relative_bias", **MLP},
    },
    ("candidate.label_layers", f"{SCORER}.query_layers"): {
        **{"label": "query_in", "evidence": "evidence_in", "attention.output": "attention.out_proj", **MLP},
        **{f"attention.qkv.{name}": f"attention.in_proj_{name}" for name in ("weight", "bias")},
    },
}
SPAN_WEIGHTS: WeightTable = {
    "boundary.before_first": f"{ENCODER}.bos_state",
    "boundary.after_last": f"{ENCODER}.eos_state",
    "boundary.norm": f"{ENCODER}.layer_norm",
    "boundary.merge": f"{ENCODER}.output_projection",
    **{f"boundary.{side}": f"{ENCODER}.{side}_projection" for side in ("left", "right")},
    **{f"{name}.state": f"{SCORES}.{name}_boundary_projection" for name in ("start", "end")},
    "inside.state": f"{SCORES}.inside_text_projection",
    **{f"{name}.label": f"{SCORES}.{name}_query_projection" for name in ("start", "end", "inside")},
    **{f"pair_{name}": f"{POOL}.{name}_projection" for name in ("start", "end")},
    **{f"candidate.{name}": f"{SCORER}.{name}_projection" for name in ("start", "end", "length", "content")},
    "candidate.proposal": f"{SCORER}.prior_projection",
    "candidate.word": f"{SCORER}.content_pooler.value_projection",
    "candidate.content_norm": f"{SCORER}.content_pooler.layer_norm",
    "candidate.norm": f"{SCORER}.candidate_norm",
    "candidate.label": f"{SCORER}.query_projection",
    "candidate.film": f"{SCORER}.film",
    **{f"candidate.film_score.{ours}": f"{SCORER}.film_output.{theirs}" for ours, theirs in ((0, 0), (2, 3))},
    "no_entity": f"{HEAD}.null_projection",
    **{
        f"{ours}.*.{part}": f"{stored}.*.{name}"
        for (ours, stored), parts in LAYERS.items()
        for part, name in parts.items()
    },
}
UNUSED = (
    *("classifier.*", "record_decoder.*", "relation_scorer.*", f"{HEAD}.candidate_encoder.*"),  # of other tasks
    *(f"{HEAD}.boundary_proposer.*", f"{HEAD}.pair_scorer.*"),  # for candidates of each label
    *(f"{HEAD}.count_head.*", f"{SCORES}.inside_*"),  # that some settings need
)


def gliner2_5(config: HFConfig) -> Architecture:
    """`gliner` of the config holds boundary_head of config.json with its defaults; the rest is that of the encoder."""
    settings = config.sub_config("gliner")
    max_length = settings.get("max_len", 2048)  # of words in training; without one, as for GLiNER2
    spec = BoundaryHeadSpec(
        input_size=config.hidden_size,
        size=config.hidden_size,
        max_width=None,
        num_rnn_layers=0,
        prompt=replace(PROMPT, context_word=None),
        max_words=max_length,
        separates_labels=True,
        maximizes_total_score=True,
        num_layers=max(value for key, value in settings.values.items() if key.endswith("_layers")),
        boundary_size=settings.boundary_dim,
        candidate_size=settings.pair_dim,
        content_size=settings.content_dim if settings.enable_span_content else None,
        mlp_size=max(1, int(settings.boundary_dim * settings.boundary_ffn_multiplier)),
        num_attention_layers=settings.boundary_attention_layers,
        num_attention_heads=settings.boundary_attention_heads,
        attention_window=settings.boundary_attention_window,
        num_mlp_layers=settings.boundary_refinement_layers,
        num_candidate_layers=settings.candidate_attention_layers,
        num_label_layers=settings.query_attention_layers,
        num_candidate_heads=settings.candidate_attention_heads,
        scores_inside=settings.use_inside_evidence,
        num_starts=settings.pool_boundary_top_k,
        max_candidates=settings.pool_size,
        min_candidates=settings.min_pool_per_query,
        abstention_threshold=settings.abstention_threshold if settings.enable_abstention else None,
        temperature=settings.pair_temperature,
    )
    return replace(
        gliner2(config), span_head=spec, span_weights=SPAN_WEIGHTS, unused_weights=UNUSED, max_length=max_length
    )
