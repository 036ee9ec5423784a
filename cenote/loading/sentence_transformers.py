"""What the files of Sentence Transformers say: pooling, projections, normalisation, length, prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from torch import Tensor

from cenote.config import Sourced
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.weights import Weights, open_weights

# the order in which these modules must stand, which is the order in which the pooler works
STAGES = {"Transformer": 0, "Pooling": 1, "Dense": 2, "LayerNorm": 2, "Normalize": 3}
PACKAGES = ("sentence_transformers", "pylate")

# in the order in which Sentence Transformers concatenates them
POOLING_FLAGS = {
    "pooling_mode_cls_token": "CLS",
    "pooling_mode_max_tokens": "MAX",
    "pooling_mode_mean_tokens": "MEAN",
    "pooling_mode_mean_sqrt_len_tokens": "MEAN_SQRT_LEN",
    "pooling_mode_weightedmean_tokens": "WEIGHTEDMEAN",
    "pooling_mode_lasttoken": "LAST",
}
POOLING_NAMES = {
    "cls": "CLS",
    "max": "MAX",
    "mean": "MEAN",
    "mean_sqrt_len_tokens": "MEAN_SQRT_LEN",
    "mean_sqrt_len": "MEAN_SQRT_LEN",
    "weightedmean": "WEIGHTEDMEAN",
    "lasttoken": "LAST",
}
ACTIVATIONS = ("identity", "tanh", "relu", "gelu", "sigmoid", "silu")
ENCODER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


@dataclass(frozen=True, slots=True)
class DenseFile:
    """A linear layer and its activation, in a folder of their own."""

    in_features: int
    out_features: int
    bias: bool
    activation: str  # one of ACTIVATIONS
    folder: str


@dataclass(frozen=True, slots=True)
class LayerNormFile:
    """A layer norm with weight and bias and PyTorch's epsilon of 1e-5, in a folder of its own."""

    size: int
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceTransformers:
    """All of it in one place; what the files do not say is None or empty."""

    pooling: Sourced[tuple[str, ...]] | None = None  # several methods give their vectors side by side
    include_prompt: bool = True  # False: pooling leaves the prompt's tokens out
    projector: tuple[DenseFile | LayerNormFile, ...] = ()
    normalize: Sourced[bool] | None = None  # None when modules.json neither pools nor normalises
    max_length: Sourced[int] | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: str | None = None
    activation: str | None = None  # of a cross-encoder, as written in config_sentence_transformers.json


def read_modules(checkpoint: Checkpoint) -> SentenceTransformers | None:
    """What Sentence Transformers wrote into the folder; None when it wrote nothing."""
    modules = checkpoint.json("modules.json")
    encoder = next((file for file in ENCODER_FILES if checkpoint.path(file) is not None), None)
    settings = checkpoint.json_object("config_sentence_transformers.json")
    if modules is None and encoder is None and not settings:
        return None
    steps = _steps(checkpoint, [] if modules is None else modules)
    pooling = next((step for step in steps if step.kind == "Pooling"), None)
    normalizes = any(step.kind == "Normalize" for step in steps)
    projector = tuple(_projection(checkpoint, step) for step in steps if STAGES[step.kind] == STAGES["Dense"])
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        file = checkpoint.folder / "config_sentence_transformers.json"
        raise LoadError(f"{file}: prompts is {prompts!r}, not texts by name")
    return SentenceTransformers(
        pooling=None if pooling is None else _pooling(checkpoint, pooling),
        include_prompt=pooling is None or bool(_config(checkpoint, pooling).get("include_prompt", True)),
        projector=projector,
        normalize=Sourced(normalizes, "modules.json") if pooling or normalizes else None,
        max_length=_max_length(checkpoint, encoder),
        lower_case=encoder is not None and bool(checkpoint.json_object(encoder).get("do_lower_case", False)),
        prompts=prompts,
        default_prompt_name=settings.get("default_prompt_name"),
        similarity=settings.get("similarity_fn_name"),
        activation=settings.get("activation_fn"),
    )


def load_dense(checkpoint: Checkpoint, dense: DenseFile) -> tuple[Tensor, Tensor | None]:
    """[out, in] and [out], as they lie in the file."""
    weights = open_weights(checkpoint, dense.folder)
    weight = _tensor(weights, "weight", (dense.out_features, dense.in_features))
    if dense.bias:
        return weight, _tensor(weights, "bias", (dense.out_features,))
    if any(name.endswith("bias") for name in weights.names()):
        raise LoadError(f"{weights.source} has a bias, {dense.folder}/config.json says it has none; which is right?")
    return weight, None


def load_layer_norm(checkpoint: Checkpoint, norm: LayerNormFile) -> tuple[Tensor, Tensor]:
    weights = open_weights(checkpoint, norm.folder)
    return _tensor(weights, "weight", (norm.size,)), _tensor(weights, "bias", (norm.size,))


@dataclass(frozen=True, slots=True)
class _Step:
    """One line of modules.json."""

    package: str
    kind: str
    folder: str


def _steps(checkpoint: Checkpoint, modules: Any) -> list[_Step]:
    source = checkpoint.folder / "modules.json"
    if not isinstance(modules, list):
        raise LoadError(f"{source} holds a {type(modules).__name__}, not a list of modules")
    steps = [_step(source.as_posix(), module) for module in modules]
    for one, other in zip(steps, steps[1:], strict=False):
        if STAGES[one.kind] > STAGES[other.kind] or one.kind == other.kind in ("Transformer", "Pooling"):
            order = "Transformer, Pooling, Dense or LayerNorm, Normalize"
            raise LoadError(f"{source}: {other.kind} comes after {one.kind}; the order that can be run is {order}")
    for step in steps:
        if step.kind == "Transformer" and step.folder not in ("", "."):
            raise LoadError(f"{source}: the Transformer lies in {step.folder!r}; give that folder as the model")
    return steps


def _step(source: str, module: Any) -> _Step:
    if not isinstance(module, dict) or not isinstance(module.get("type"), str):
        raise LoadError(f"{source}: {module!r} is no module; each has a type and a path")
    package, _, rest = module["type"].partition(".")
    kind = rest.rpartition(".")[2]
    if package not in PACKAGES or kind not in STAGES:
        raise LoadError(
            f"{source}: module type {module['type']!r} cannot be run; "
            f"there are: {', '.join(STAGES)} of {' and '.join(PACKAGES)}"
        )
    return _Step(package, kind, str(module.get("path") or ""))


def _config(checkpoint: Checkpoint, step: _Step) -> dict[str, Any]:
    file = str(PurePosixPath(step.folder) / "config.json")
    checkpoint.require(file)
    return checkpoint.json_object(file)


def _pooling(checkpoint: Checkpoint, step: _Step) -> Sourced[tuple[str, ...]]:
    config, source = _config(checkpoint, step), f"{step.folder}/config.json"
    names = config.get("pooling_mode")
    if names is not None:
        chosen = [names] if isinstance(names, str) else names
        if not isinstance(chosen, list) or not chosen or any(name not in POOLING_NAMES for name in chosen):
            known = ", ".join(POOLING_NAMES)
            raise LoadError(f"{checkpoint.folder / source}: pooling_mode {names!r} is unknown; there are: {known}")
        return Sourced(tuple(POOLING_NAMES[name] for name in chosen), source)
    flags = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    for flag in flags:
        if flag not in POOLING_FLAGS:
            known = ", ".join(POOLING_FLAGS)
            raise LoadError(f"{checkpoint.folder / source}: {flag} is unknown; there are: {known}")
    methods = tuple(method for flag, method in POOLING_FLAGS.items() if flag in flags)
    return Sourced(methods or ("MEAN",), source)  # without any flag Sentence Transformers takes the mean


def _projection(checkpoint: Checkpoint, step: _Step) -> DenseFile | LayerNormFile:
    config, source = _config(checkpoint, step), checkpoint.folder / step.folder / "config.json"
    sizes = ("dimension",) if step.kind == "LayerNorm" else ("in_features", "out_features")
    for key in sizes:
        if not isinstance(config.get(key), int):
            raise LoadError(f"{source}: {key} is {config.get(key)!r}, not a number")
    if step.kind == "LayerNorm":
        return LayerNormFile(config["dimension"], step.folder)
    if config.get("use_residual"):
        raise LoadError(f"{source}: use_residual=true cannot be run; only plain dense layers can")
    # left out, it means what the package's own constructor takes
    default = "Tanh" if step.package == "sentence_transformers" else "Identity"
    return DenseFile(
        in_features=config["in_features"],
        out_features=config["out_features"],
        bias=bool(config.get("bias", True)),
        activation=_activation(str(source), config.get("activation_function") or default),
        folder=step.folder,
    )


def _activation(source: str, name: Any) -> str:
    """The short name of an activation that is written as a class of torch.nn; other classes are never imported."""
    where, _, short = str(name).rpartition(".")
    if (where and not where.startswith("torch.nn")) or short.lower() not in ACTIVATIONS:
        raise LoadError(f"{source}: activation_function {name!r} is unknown; there are: {', '.join(ACTIVATIONS)}")
    return short.lower()


def _max_length(checkpoint: Checkpoint, file: str | None) -> Sourced[int] | None:
    length = None if file is None else checkpoint.json_object(file).get("max_seq_length")
    if file is None or length is None:
        return None
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise LoadError(f"{checkpoint.folder / file}: max_seq_length is {length!r}, not a number of tokens")
    return Sourced(length, file)


def _tensor(weights: Weights, leaf: str, shape: tuple[int, ...]) -> Tensor:
    for name in (leaf, f"linear.{leaf}", f"dense.{leaf}", f"norm.{leaf}"):
        if name in weights:
            tensor = weights.get(name)
            if tuple(tensor.shape) != shape:
                found = list(tensor.shape)
                raise LoadError(f"{weights.source}: {name} has shape {found}, its config.json asks for {list(shape)}")
            return tensor
    has = ", ".join(weights.names()[:5]) or "nothing"
    raise LoadError(f"{weights.source}: nothing called {leaf}, linear.{leaf} or dense.{leaf}; it has {has}")
