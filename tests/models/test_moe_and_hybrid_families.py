"""Mixture-of-experts, convolution, Mamba and latent-attention families equal Transformers, alone and batched."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import PreTrainedModel
from transformers.models.lfm2 import modeling_lfm2

from cenote import PoolingParams
from cenote.config.engine import EngineConfig
from cenote.kernels.cpu_features import CPUFeatures
from cenote.layers.moe import MixtureOfExperts
from cenote.loading import number_formats
from cenote.loading.load import load_model
from cenote.packed_batch import pack_sequences
from tests.models.parity import TOLERANCE, YARN, assert_same, assert_states, classified, loaded, opened, run
from tests.tiny import SEQUENCES, change_config, compute_hidden_states, compute_logits, save_tiny

WINDOW = {"use_sliding_window": True, "sliding_window": 4}
STRETCHED = YARN | {"mscale": 0.7, "mscale_all_dim": 1.3}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2-moe": ("Qwen2MoeModel", {}),
    "qwen2-moe, language model": ("Qwen2MoeForCausalLM", {"mlp_only_layers": [0], "norm_topk_prob": True}),
    "qwen2-moe, no biases": ("Qwen2MoeModel", {"qkv_bias": False, "num_hidden_layers": 3, "decoder_sparse_step": 2}),
    "qwen2-moe, window": ("Qwen2MoeModel", WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}),
    "qwen3-moe": ("Qwen3MoeModel", {}),
    "qwen3-moe, language model": ("Qwen3MoeForCausalLM", {"norm_topk_prob": True, "decoder_sparse_step": 2}),
    "qwen3-moe, window, biases": ("Qwen3MoeModel", WINDOW | {"attention_bias": True}),
    "mixtral": ("MixtralModel", {}),
    "mixtral, language model": ("MixtralForCausalLM", {"sliding_window": 4}),
    "lfm2": ("Lfm2Model", {}),
    "lfm2, language model": ("Lfm2ForCausalLM", {"conv_bias": True, "conv_L_cache": 4, "norm_eps": 1e-2}),
    "lfm2, older config": (
        "Lfm2Model",
        {"layer_types": None, "full_attn_idxs": [0, 2], "block_ff_dim": 40, "block_auto_adjust_ff_dim": False},
    ),
    "jamba": ("JambaModel", {}),
    "jamba, language model": (
        "JambaForCausalLM",
        {"mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_d_conv": 3, "mamba_dt_rank": 7}
        | {"expert_layer_period": 3, "expert_layer_offset": 2},
    ),
    "jamba, no experts": ("JambaModel", {"num_experts": 1, "num_experts_per_tok": 1, "mamba_expand": 3}),
    "deepseek": ("DeepseekV3Model", {}),
    "deepseek, language model": ("DeepseekV3ForCausalLM", {"n_shared_experts": 2, "norm_topk_prob": False}),
    "deepseek, whole queries": ("DeepseekV3Model", {"q_lora_rank": None, "rope_interleave": False}),
    "deepseek, one group, biases": ("DeepseekV3Model", {"n_group": 1, "topk_group": 1, "attention_bias": True}),
    "deepseek, yarn": ("DeepseekV3Model", {"rope_parameters": STRETCHED}),
    "deepseek, yarn, one stretch": ("DeepseekV3Model", {"rope_parameters": STRETCHED | {"mscale": 1.3}}),
    "deepseek, yarn, no stretch of the products": ("DeepseekV3Model", {"rope_parameters": YARN}),
    "privacy filter": ("OpenAIPrivacyFilterModel", {}),
    "privacy filter, no biases": ("OpenAIPrivacyFilterModel", {"attention_bias": False, "swiglu_limit": 7.0}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_family_matches_transformers(name: str, tmp_path: Path) -> None:
    model, changes = CASES[name]

    assert_states(tmp_path, save_tiny(tmp_path, model, **changes))


FUSED = {
    "Qwen2MoeForCausalLM": {"mlp_only_layers": [0]},
    "Qwen3MoeModel": {},
    "MixtralForCausalLM": {},
    "JambaModel": {},
    "DeepseekV3ForCausalLM": {},
}


@pytest.mark.parametrize("model", FUSED)
def test_experts_may_be_stored_in_one_tensor(model: str, tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, model, **FUSED[model])
    reference.save_pretrained(tmp_path, save_original_format=False)
    assert any(name.endswith("experts.gate_up_proj") for name in load_file(tmp_path / "model.safetensors"))

    assert_states(tmp_path, reference)


ODD = ("Qwen2MoeModel", "Qwen3MoeModel", "Lfm2Model", "JambaModel", "DeepseekV3Model", "OpenAIPrivacyFilterModel")


@pytest.mark.parametrize("model", ODD)
def test_a_sequence_gets_the_same_in_any_batch(model: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, model)
    backbone = loaded(tmp_path).backbone

    with torch.inference_mode():
        alone = torch.cat([backbone(pack_sequences([ids])) for ids in SEQUENCES])
        turned = backbone(pack_sequences(SEQUENCES[::-1]))

    assert_close(run(backbone), alone, atol=TOLERANCE, rtol=0)
    back = torch.cat(turned.split([len(ids) for ids in SEQUENCES[::-1]])[::-1])
    assert_close(back, alone, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("model", ODD)
def test_a_sequence_that_overflows_spoils_no_other(model: str, tmp_path: Path) -> None:
    save_tiny(tmp_path, model)
    backbone = loaded(tmp_path).backbone
    sound, broken = [[7, 8, 9, 10], [20, 21]], [30, 31, 32]
    wanted = backbone(pack_sequences(sound))
    backbone.get_parameter("embed.tokens.weight")[30:33] = torch.inf

    with torch.inference_mode():
        actual = backbone(pack_sequences([sound[0], broken, sound[1]]))

    assert actual[4:7].isnan().all()
    assert_close(torch.cat((actual[:4], actual[7:])), wanted, atol=TOLERANCE, rtol=0)


# changes of config.json after saving; each gives a different model
MISTAKES: dict[str, tuple[str, dict[str, Any]]] = {
    "shares add up to 1": ("Qwen2MoeModel", {"norm_topk_prob": True}),
    "one expert for each token": ("Qwen3MoeModel", {"num_experts_per_tok": 1}),
    "window off by one": ("OpenAIPrivacyFilterModel", {"sliding_window": 4}),
    "higher limit": ("OpenAIPrivacyFilterModel", {"swiglu_limit": 0.6}),
    "other slope": ("OpenAIPrivacyFilterModel", {"swiglu_alpha": 1.0}),
    "fewer groups": ("DeepseekV3Model", {"topk_group": 1}),
    "other scaling": ("DeepseekV3Model", {"routed_scaling_factor": 1.0}),
    "halves turn": ("DeepseekV3Model", {"rope_interleave": False}),
    "no stretch of the products": ("DeepseekV3Model", {"rope_parameters": STRETCHED | {"mscale_all_dim": None}}),
    "fewer experts than were trained": ("JambaModel", {"num_experts_per_tok": 1}),
    "other norm": ("Lfm2Model", {"norm_eps": 1e-2}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_the_comparison_detects_a_wrong_spec(name: str, tmp_path: Path) -> None:
    model, mistake = MISTAKES[name]
    save_tiny(tmp_path, model, **({"rope_parameters": STRETCHED} if "rope_parameters" in mistake else {}))
    right = run(loaded(tmp_path).backbone)

    change_config(tmp_path, **mistake)

    assert (run(loaded(tmp_path).backbone) - right).abs().max() > 5 * TOLERANCE


def masked(reference: PreTrainedModel, ids: list[int], mask: Any) -> Tensor:
    with torch.inference_mode():
        out = reference(input_ids=torch.tensor([ids]), attention_mask=mask, use_cache=False)
    states: Tensor = out.last_hidden_state[0]
    return states


def hides_nothing(ids: list[int]) -> Tensor:
    return torch.zeros(1, 1, len(ids), len(ids))


def test_deepseek_as_an_encoder_looks_both_ways(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "DeepseekV3Model")
    change_config(tmp_path, architectures=["DeepseekV3BidirectionalModel"])

    actual = run(loaded(tmp_path).backbone)

    wanted = [masked(reference, ids, hides_nothing(ids)) for ids in SEQUENCES]
    assert_close(actual, torch.cat(wanted), atol=TOLERANCE, rtol=0)
    assert (actual - torch.cat(compute_hidden_states(reference))).abs().max() > 5 * TOLERANCE


def test_lfm2_as_an_encoder_looks_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = save_tiny(tmp_path, "Lfm2Model")
    causal = torch.cat(compute_hidden_states(reference))
    change_config(tmp_path, architectures=["Lfm2BidirectionalModel"])

    def centred(x: Tensor, weight: Tensor, bias: Tensor | None = None, **_: Any) -> Tensor:
        return F.conv1d(x, weight[:, None], bias, padding=weight.shape[-1] // 2, groups=len(weight))

    monkeypatch.setattr(modeling_lfm2, "causal_conv1d_fn", centred)
    wanted = [masked(reference, ids, {"full_attention": hides_nothing(ids), "conv": None}) for ids in SEQUENCES]

    actual = run(loaded(tmp_path).backbone)

    assert_close(actual, torch.cat(wanted), atol=TOLERANCE, rtol=0)
    assert (actual - causal).abs().max() > 5 * TOLERANCE


def test_a_convolution_does_not_see_unattended_tokens(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "Lfm2Model")
    seen = tuple(max(1, len(ids) - 2) for ids in SEQUENCES)
    wanted = [
        masked(reference, ids, (torch.arange(len(ids)) < count).long()[None])
        for ids, count in zip(SEQUENCES, seen, strict=True)
    ]

    with torch.inference_mode():
        actual = loaded(tmp_path).backbone(replace(pack_sequences(SEQUENCES), attended_lens_cpu=seen))

    assert_close(actual, torch.cat(wanted), atol=TOLERANCE, rtol=0)
    assert (actual - torch.cat(compute_hidden_states(reference))).abs().max() > 5 * TOLERANCE


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_reward_of_jamba_is_its_logit(with_bias: bool, tmp_path: Path) -> None:
    expected = compute_logits(save_tiny(tmp_path, "JambaForSequenceClassification", num_labels=1))
    if with_bias:
        file = tmp_path / "model.safetensors"
        save_file(load_file(file) | {"score.bias": torch.tensor([0.5])}, file, metadata={"format": "pt"})
        change_config(tmp_path, score_bias=True)
        expected = [logit + 0.5 for logit in expected]

    with opened(tmp_path) as llm:
        assert_same(classified(llm), expected)
        assert_same(classified(llm, PoolingParams(use_activation=True)), [logit.sigmoid() for logit in expected])


def test_the_bias_that_chooses_experts_keeps_its_digits_in_bfloat16(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = save_tiny(tmp_path, "DeepseekV3Model")
    # only loading: works on any CPU
    monkeypatch.setattr(number_formats, "cpu_features", lambda: CPUFeatures("x86", frozenset({"avx512_bf16"})))

    model = load_model(EngineConfig.from_kwargs(str(tmp_path), dtype="bfloat16", device="cpu"))

    mixture = model.backbone.get_submodule("layers.1.mlp")
    assert isinstance(mixture, MixtureOfExperts) and mixture.router.correction is not None
    assert mixture.router.weight.dtype == torch.bfloat16
    exact = reference.get_buffer("layers.1.mlp.gate.e_score_correction_bias")
    assert torch.equal(mixture.router.correction, exact)
    assert not torch.equal(exact.bfloat16().float(), exact)


def test_the_multi_token_prediction_layer_is_ignored(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "DeepseekV3ForCausalLM")
    file = tmp_path / "model.safetensors"
    extra = {
        "model.layers.3.eh_proj.weight": torch.zeros(32, 64),
        "model.layers.3.self_attn.o_proj.weight": torch.ones(1),
    }
    save_file(load_file(file) | extra, file, metadata={"format": "pt"})

    assert_states(tmp_path, reference)


def test_an_older_qwen2_moe_has_its_window_in_every_other_layer(tmp_path: Path) -> None:
    reference = save_tiny(tmp_path, "Qwen2MoeModel", num_hidden_layers=4, max_window_layers=3, **WINDOW)
    change_config(tmp_path, drop=("layer_types",))

    assert_states(tmp_path, reference)
