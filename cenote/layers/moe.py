"""Mixture of experts: every token runs through its top-k experts, without padding or dropped tokens."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.kernels.activations import ACTIVATIONS
from cenote.layers.activation_names import resolve_activation
from cenote.layers.linear import Linear
from cenote.layers.mlp import GatedMLP
from cenote.layers.spec import BackboneSpec, MoESpec


class ExpertRouter(nn.Module):
    float32_params = ("correction",)  # values around 5 whose third digit matters: bfloat16 is too coarse

    def __init__(self, spec: MoESpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.empty(spec.num_experts, hidden_size))
        self.bias = nn.Parameter(torch.empty(spec.num_experts)) if spec.router_bias else None
        self.correction = nn.Parameter(torch.empty(spec.num_experts)) if spec.has_correction_bias else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the selected experts and their weights in float32: [tokens, top_k] each."""
        # rounding could change the selected experts: scores are float32 for every model dtype
        scores = F.linear(x.float(), self.weight.float(), None if self.bias is None else self.bias.float())
        scores = scores.softmax(dim=-1) if self.spec.scoring_func == "softmax" else scores.sigmoid()
        selection_scores = scores if self.correction is None else scores + self.correction
        if self.spec.num_groups > 1:
            selection_scores = self._mask_other_groups(selection_scores)
        selected = selection_scores.topk(self.spec.top_k, dim=-1).indices
        weights = scores.gather(1, selected)
        if self.spec.norm_topk_prob:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)  # sigmoids may all be 0
        return selected, weights * self.spec.routed_scaling_factor

    def _mask_other_groups(self, scores: Tensor) -> Tensor:
        """Mask the experts outside the best groups; the score of a group is the sum of its two best experts."""
        groups = scores.view(len(scores), self.spec.num_groups, -1)
        best = groups.topk(2, dim=-1).values.sum(-1).topk(self.spec.top_k_groups, dim=-1).indices
        masked = torch.ones(groups.shape[:2], dtype=torch.bool, device=scores.device).scatter(1, best, False)
        return groups.masked_fill(masked[..., None], -torch.inf).flatten(1)


class Experts(nn.Module):
    """The layers of all experts, stacked in one parameter each; input rows are sorted by expert."""

    def __init__(self, spec: MoESpec, hidden_size: int, activation: str) -> None:
        super().__init__()
        count, size = spec.num_experts, spec.intermediate_size
        width = 2 * size if spec.is_gated else size
        self.is_gated = spec.is_gated
        self.activation = ACTIVATIONS[resolve_activation(activation)]
        self.up = nn.Parameter(torch.empty(count, width, hidden_size))
        self.down = nn.Parameter(torch.empty(count, hidden_size, size))
        self.up_bias = nn.Parameter(torch.empty(count, width)) if spec.bias else None
        self.down_bias = nn.Parameter(torch.empty(count, hidden_size)) if spec.bias else None

    def forward(self, x: Tensor, expert: Tensor, group_ends: Tensor) -> Tensor:
        """Compute x [rows, hidden], given the expert of every row and the end of the rows of each expert."""
        up = F.grouped_mm(x, self.up.transpose(1, 2), offs=group_ends)
        if self.up_bias is not None:
            up = up + self.up_bias[expert]
        out = F.grouped_mm(self.activate(up), self.down.transpose(1, 2), offs=group_ends)
        return out if self.down_bias is None else out + self.down_bias[expert]

    def activate(self, up: Tensor) -> Tensor:
        if not self.is_gated:
            return self.activation(up)
        gate, up = up.chunk(2, dim=-1)
        return self.activation(gate) * up


class ClampedExperts(Experts):
    """Experts with clamped SwiGLU, as in gpt-oss."""

    def __init__(self, spec: MoESpec, hidden_size: int, activation: str) -> None:
        super().__init__(spec, hidden_size, activation)
        assert spec.swiglu_limit is not None
        self.alpha, self.limit = spec.swiglu_alpha, spec.swiglu_limit

    def activate(self, up: Tensor) -> Tensor:
        gate, up = up.chunk(2, dim=-1)
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (up + 1) * gate * torch.sigmoid(self.alpha * gate)


class MixtureOfExperts(nn.Module):
    """Weighted sum of the selected experts of each token, plus the shared expert if there is one."""

    def __init__(self, spec: BackboneSpec, moe_spec: MoESpec) -> None:
        super().__init__()
        self.top_k = moe_spec.top_k
        self.router = ExpertRouter(moe_spec, spec.hidden_size)
        experts_class = Experts if moe_spec.swiglu_limit is None else ClampedExperts
        self.experts = experts_class(moe_spec, spec.hidden_size, spec.activation)
        self.bias = nn.Parameter(torch.empty(spec.hidden_size)) if moe_spec.out_bias else None
        shared = (
            replace(spec, intermediate_size=moe_spec.shared_intermediate_size)
            if moe_spec.shared_intermediate_size
            else None
        )
        self.shared = None if shared is None else GatedMLP(shared)
        self.shared_gate = (
            Linear(spec.hidden_size, 1, bias=False, activation="sigmoid") if moe_spec.has_shared_gate else None
        )

    def forward(self, x: Tensor) -> Tensor:
        selected, weights = self.router(x)
        expert, order = selected.flatten().sort(stable=True)
        indices = torch.arange(self.experts.up.shape[0], device=x.device)
        ends = torch.searchsorted(expert, indices, right=True, out_int32=True)  # unlike bincount, without a device sync
        rows = self.experts(x[order // self.top_k], expert, ends) * weights.flatten()[order, None].to(x.dtype)
        # restored to token order before the sum: the order of additions does not depend on the rest of the batch
        out = torch.empty_like(rows).index_copy_(0, order, rows).view(len(x), self.top_k, -1).sum(1)
        if self.bias is not None:
            out = out + self.bias
        if self.shared is None:
            return out
        shared: Tensor = self.shared(x)
        return out + (shared if self.shared_gate is None else self.shared_gate(x) * shared)
