"""A mixture of experts: every token is computed by the few that its router chooses, none is padded or dropped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cenote.layers.linear import ACTIVATIONS, Linear, resolve_activation
from cenote.layers.mlp import GatedMLP
from cenote.layers.spec import BackboneSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MoESpec:
    """How many experts there are, what each computes, and how a token comes to its own."""

    num_experts: int
    top_k: int  # experts for each token
    intermediate_size: int
    is_gated: bool = True  # act(gate) * up; `up` holds both, gate first
    bias: bool = False  # of every expert's two layers
    out_bias: bool = False  # one for all, added to their sum

    scoring_func: Literal["softmax", "sigmoid"] = "softmax"
    norm_topk_prob: bool = False  # the shares of the chosen experts add up to 1
    routed_scaling_factor: float = 1.0  # on the shares
    router_bias: bool = False
    has_correction_bias: bool = False  # a second bias, that counts for the choice but not for the shares
    num_groups: int = 1  # experts come in groups of equal size; a token chooses from its best groups only
    top_k_groups: int = 1

    shared_intermediate_size: int = 0  # intermediate size of one more expert, for every token; 0 is none
    has_shared_gate: bool = False  # the token itself says how much of that one it takes


class Router(nn.Module):
    float32_params = ("correction",)  # numbers around 5 whose third digit decides: no other type would do

    def __init__(self, spec: MoESpec, hidden_size: int) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.empty(spec.num_experts, hidden_size))
        self.bias = nn.Parameter(torch.empty(spec.num_experts)) if spec.router_bias else None
        self.correction = nn.Parameter(torch.empty(spec.num_experts)) if spec.has_correction_bias else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of every token, and their shares in float32: [tokens, top_k] each."""
        # a rounded score can choose another expert: scores are float32 whatever the model runs in
        scores = F.linear(x.float(), self.weight.float(), None if self.bias is None else self.bias.float())
        scores = scores.softmax(dim=-1) if self.spec.scoring_func == "softmax" else scores.sigmoid()
        wanted = scores if self.correction is None else scores + self.correction
        if self.spec.num_groups > 1:
            wanted = self._mask_other_groups(wanted)
        chosen = wanted.topk(self.spec.top_k, dim=-1).indices
        shares = scores.gather(1, chosen)
        if self.spec.norm_topk_prob:
            shares = shares / (shares.sum(dim=-1, keepdim=True) + 1e-20)  # sigmoids may all be 0
        return chosen, shares * self.spec.routed_scaling_factor

    def _mask_other_groups(self, scores: Tensor) -> Tensor:
        """A group is as good as its two best experts; those of all but the best groups are out of the choice."""
        groups = scores.view(len(scores), self.spec.num_groups, -1)
        best = groups.topk(2, dim=-1).values.sum(-1).topk(self.spec.top_k_groups, dim=-1).indices
        out = torch.ones(groups.shape[:2], dtype=torch.bool, device=scores.device).scatter(1, best, False)
        return groups.masked_fill(out[..., None], -torch.inf).flatten(1)


class Experts(nn.Module):
    """All experts' layers in one parameter each; rows come sorted by expert."""

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
        """[rows, hidden]; the expert of every row; where each expert's rows end."""
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


ExpertsFactory = Callable[[MoESpec, int, str], Experts]


class MixtureOfExperts(nn.Module):
    """sum(share * expert(x)) over a token's experts, and the shared expert where there is one"""

    def __init__(self, spec: BackboneSpec, moe_spec: MoESpec, make_experts: ExpertsFactory = Experts) -> None:
        super().__init__()
        self.top_k = moe_spec.top_k
        self.router = Router(moe_spec, spec.hidden_size)
        self.experts = make_experts(moe_spec, spec.hidden_size, spec.activation)
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
        chosen, shares = self.router(x)
        expert, order = chosen.flatten().sort(stable=True)
        numbers = torch.arange(self.experts.up.shape[0], device=x.device)
        ends = torch.searchsorted(expert, numbers, right=True, out_int32=True)  # unlike a count, waits for no device
        rows = self.experts(x[order // self.top_k], expert, ends) * shares.flatten()[order, None].to(x.dtype)
        # back in place and then summed: every token adds its own in the same order, whoever else is in the batch
        out = torch.empty_like(rows).index_copy_(0, order, rows).view(len(x), self.top_k, -1).sum(1)
        if self.bias is not None:
            out = out + self.bias
        if self.shared is None:
            return out
        every: Tensor = self.shared(x)
        return out + (every if self.shared_gate is None else self.shared_gate(x) * every)
