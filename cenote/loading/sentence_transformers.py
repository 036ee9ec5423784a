"""What the files of Sentence Transformers say: pooling, projections, normalisation, length, prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from torch import Tensor

from cenote.config.engine import Sourced
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.weights import Weights, open_weights

# the order in which these modules must stand, which is the order in which the pooler works
STAGES = {
    "Transformer": 0,
    "Pooling": 1,
    "Dense": 2,
    "LayerNorm": 2,
    "Normalize": 3,
    "MLMTransformer": 0,
    "SpladePooling": 1,
    "MultiVectorMask": 3,
    "LogitScore": 3,
}
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
# how often log(1 + x) is taken of logits over the vocabulary
SPLADE_LOGS = {"relu": 1, "log1p_relu": 2}
SPLADE_STRATEGIES = ("max", "sum")
ACTIVATIONS = ("identity", "tanh", "relu", "gelu", "sigmoid", "silu")
SETTINGS = "config_sentence_transformers.json"
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
    residual: bool = False  # what goes in is added to what comes out, through a matrix of its own if sizes differ


@dataclass(frozen=True, slots=True)
class LayerNormFile:
    """A layer norm with weight and bias and PyTorch's epsilon of 1e-5, in a folder of its own."""

    size: int
    folder: str


@dataclass(frozen=True, slots=True)
class SpladeFile:
    """How the logits of all tokens become one weight for every entry of the vocabulary."""

    strategy: str  # one of SPLADE_STRATEGIES
    num_logs: int
    source: str


@dataclass(frozen=True, slots=True)
class MessagesFile:
    """That inputs go through the chat template as messages, and how."""

    in_parts: bool  # contents are lists of parts
    variables: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceTransformers:
    """All of it in one place; what the files do not say is None or empty."""

    pooling: Sourced[tuple[str, ...]] | None = None  # several methods give their vectors side by side
    splade: SpladeFile | None = None
    multi_vector: Sourced[Literal["PyLate", "Sentence Transformers"]] | None = None  # whose ColBERT it is, if it is one
    mask: str | None = None  # the folder with the list of tokens that a ColBERT has no vector for
    include_prompt: bool = True  # False: pooling leaves the prompt's tokens out
    projector: tuple[DenseFile | LayerNormFile, ...] = ()
    normalize: Sourced[bool] | None = None  # None when modules.json neither pools nor normalises
    max_length: Sourced[int] | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: str | None = None
    activation: str | None = None  # of a cross-encoder, as written in config_sentence_transformers.json
    logit_score: Sourced[tuple[int, int | None]] | None = None  # ids of the tokens for yes and, if there is one, no
    messages: Sourced[MessagesFile] | None = None


def read_modules(checkpoint: Checkpoint) -> SentenceTransformers | None:
    """What Sentence Transformers wrote into the folder; None when it wrote nothing."""
    modules = checkpoint.json("modules.json")
    encoder = next((file for file in ENCODER_FILES if checkpoint.path(file) is not None), None)
    settings = checkpoint.json_object(SETTINGS)
    if modules is None and encoder is None and not settings:
        return None
    steps = _steps(checkpoint, [] if modules is None else modules)
    pooling = next((step for step in steps if step.kind == "Pooling"), None)
    splade = next((step for step in steps if step.kind == "SpladePooling"), None)
    mask = next((step for step in steps if step.kind == "MultiVectorMask"), None)
    normalizes = any(step.kind == "Normalize" for step in steps)
    projector = tuple(_projection(checkpoint, step) for step in steps if STAGES[step.kind] == STAGES["Dense"])
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        file = checkpoint.folder / SETTINGS
        raise LoadError(f"{file}: prompts is {prompts!r}, not texts by name")
    return SentenceTransformers(
        pooling=None if pooling is None else _pooling(checkpoint, pooling),
        splade=None if splade is None else _splade(checkpoint, splade),
        multi_vector=None if pooling else _multi_vector(settings, steps),
        mask=None if mask is None else mask.folder,
        include_prompt=pooling is None or bool(_config(checkpoint, pooling).get("include_prompt", True)),
        projector=projector,
        normalize=Sourced(normalizes, "modules.json") if pooling or mask or normalizes else None,
        max_length=_max_length(checkpoint, encoder),
        lower_case=encoder is not None and bool(checkpoint.json_object(encoder).get("do_lower_case", False)),
        prompts=prompts,
        default_prompt_name=settings.get("default_prompt_name"),
        similarity=settings.get("similarity_fn_name"),
        activation=settings.get("activation_fn"),
        logit_score=_logit_score(checkpoint, steps),
        messages=None if encoder is None else _messages(checkpoint, encoder),
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


def load_residual(checkpoint: Checkpoint, dense: DenseFile) -> Tensor | None:
    """[out, in], where sizes differ."""
    if not dense.residual or dense.in_features == dense.out_features:
        return None
    return _tensor(open_weights(checkpoint, dense.folder), "residual.weight", (dense.out_features, dense.in_features))


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
    if {"MLMTransformer", "SpladePooling"} & {step.kind for step in steps}:
        kinds = [step.kind for step in steps]
        if len(kinds) != 2 or kinds[1] != "SpladePooling":
            can = "a SPLADE model is MLMTransformer or Transformer, then SpladePooling, and no more"
            raise LoadError(f"{source}: {', '.join(kinds)} cannot be run; {can}")
    for step in steps:
        if STAGES[step.kind] == STAGES["Transformer"] and step.folder not in ("", "."):
            raise LoadError(f"{source}: the Transformer lies in {step.folder!r}; give that folder as the model")
    return steps


def _step(source: str, module: Any) -> _Step:
    if not isinstance(module, dict) or not isinstance(module.get("type"), str):
        raise LoadError(f"{source}: {module!r} is no module; each has a type and a path")
    package, _, rest = module["type"].partition(".")
    kind = rest.rpartition(".")[2]
    # Jina's own: a Transformer whose adapter is chosen by a task, which is done here without running its code
    chooses_adapter = (package, kind) == ("custom_st", "Transformer") and "task" in (module.get("kwargs") or ())
    if not chooses_adapter and (package not in PACKAGES or kind not in STAGES):
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


def _multi_vector(
    settings: Mapping[str, Any], steps: list[_Step]
) -> Sourced[Literal["PyLate", "Sentence Transformers"]] | None:
    """Who says that there is a vector for every token, where somebody does."""
    if any(step.kind == "MultiVectorMask" for step in steps):
        return Sourced("Sentence Transformers", "modules.json")
    if any(step.package == "pylate" for step in steps):
        return Sourced("PyLate", "modules.json")
    if settings.get("model_type") == "MultiVectorEncoder":
        return Sourced("Sentence Transformers", SETTINGS)
    if settings.get("model_type") == "ColBERT" or settings.get("similarity_fn_name") == "MaxSim":
        return Sourced("PyLate", SETTINGS)
    return None


def _logit_score(checkpoint: Checkpoint, steps: list[_Step]) -> Sourced[tuple[int, int | None]] | None:
    step = next((step for step in steps if step.kind == "LogitScore"), None)
    if step is None:
        return None
    config, source = _config(checkpoint, step), f"{step.folder}/config.json"
    true, false = config.get("true_token_id"), config.get("false_token_id")
    if not isinstance(true, int) or not isinstance(false, int | None):
        raise LoadError(f"{checkpoint.folder / source}: the ids of the answers are {true!r} and {false!r}, not numbers")
    return Sourced((true, false), source)


def _messages(checkpoint: Checkpoint, file: str) -> Sourced[MessagesFile] | None:
    config = checkpoint.json_object(file)
    message = config.get("modality_config", {}).get("message")
    if not isinstance(message, dict):
        return None
    variables = config.get("processing_kwargs", {}).get("chat_template", {})
    return Sourced(MessagesFile(message.get("format") == "structured", variables), f"{file} modality_config")


def _splade(checkpoint: Checkpoint, step: _Step) -> SpladeFile:
    config, source = _config(checkpoint, step), f"{step.folder}/config.json"
    strategy, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    for key, value, known in (
        ("pooling_strategy", strategy, SPLADE_STRATEGIES),
        ("activation_function", activation, tuple(SPLADE_LOGS)),
    ):
        if value not in known:
            raise LoadError(f"{checkpoint.folder / source}: {key} {value!r} is unknown; there are: {', '.join(known)}")
    return SpladeFile(strategy, SPLADE_LOGS[activation], source)


def _projection(checkpoint: Checkpoint, step: _Step) -> DenseFile | LayerNormFile:
    config, source = _config(checkpoint, step), checkpoint.folder / step.folder / "config.json"
    sizes = ("dimension",) if step.kind == "LayerNorm" else ("in_features", "out_features")
    for key in sizes:
        if not isinstance(config.get(key), int):
            raise LoadError(f"{source}: {key} is {config.get(key)!r}, not a number")
    if step.kind == "LayerNorm":
        return LayerNormFile(config["dimension"], step.folder)
    # left out, it means what the package's own constructor takes
    default = "Tanh" if step.package == "sentence_transformers" else "Identity"
    return DenseFile(
        in_features=config["in_features"],
        out_features=config["out_features"],
        bias=bool(config.get("bias", True)),
        activation=_activation(str(source), config.get("activation_function") or default),
        folder=step.folder,
        residual=bool(config.get("use_residual", False)),
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
