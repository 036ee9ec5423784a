"""Read Sentence Transformers files: pooling, projections, normalisation, maximum length, prompts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Literal

from torch import Tensor

from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.weights import CheckpointWeights, open_weights
from cenote.models.refused_models import REFUSED_MODULES

# stage of each module type; modules must be in the order in which the pooler applies them
MODULE_STAGES = {
    "Transformer": 0,
    "Pooling": 1,
    "Dense": 2,
    "LayerNorm": 2,
    "Normalize": 3,
    "MLMTransformer": 0,
    "SpladePooling": 1,
    "MultiVectorMask": 3,
    "LogitScore": 3,
    "FlexibleQuantizer": 3,
}
MODULE_PACKAGES = ("sentence_transformers", "pylate")
# modules of repositories with their own code; supported without running it
CUSTOM_MODULES = (("st_quantize", "FlexibleQuantizer"),)  # pplx-embed: tanh, then int8

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
# how many times log(1 + x) is applied to the logits
SPLADE_NUM_LOGS = {"relu": 1, "log1p_relu": 2}
SPLADE_STRATEGIES = ("max", "sum")
DENSE_ACTIVATIONS = ("identity", "tanh", "relu", "gelu", "sigmoid", "silu")
SETTINGS_FILE = "config_sentence_transformers.json"
ENCODER_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


@dataclass(frozen=True, slots=True)
class DenseModule:
    """A Dense module: a linear layer with activation, stored in its own folder."""

    in_features: int
    out_features: int
    bias: bool
    activation: str  # one of DENSE_ACTIVATIONS
    folder: str
    has_residual: bool = False  # adds the input to the output, projected if sizes differ


@dataclass(frozen=True, slots=True)
class LayerNormModule:
    """A LayerNorm module with weight, bias and epsilon 1e-5, stored in its own folder."""

    size: int
    folder: str


@dataclass(frozen=True, slots=True)
class SpladePoolingModule:
    """How the logits of all tokens become one weight per vocabulary entry."""

    strategy: str  # one of SPLADE_STRATEGIES
    num_logs: int
    source: str


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """How inputs are passed to the chat template as messages."""

    uses_content_parts: bool  # message content is a list of parts
    variables: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceTransformersFiles:
    """Settings of all Sentence Transformers files; missing ones are None or empty."""

    pooling: Sourced[tuple[str, ...]] | None = None  # outputs of several methods are concatenated
    splade: SpladePoolingModule | None = None
    multi_vector: Sourced[Literal["PyLate", "Sentence Transformers"]] | None = None  # format of a ColBERT
    mask_folder: str | None = None  # folder of the MultiVectorMask module, with the skiplist
    includes_prompt: bool = True  # False: pooling excludes prompt tokens
    projector: tuple[DenseModule | LayerNormModule, ...] = ()
    has_int8_output: bool = False  # embeddings are quantized by tanh
    normalize: Sourced[bool] | None = None  # None if modules.json neither pools nor normalises
    max_length: Sourced[int] | None = None
    do_lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity_fn_name: str | None = None
    activation: str | None = None  # of a cross-encoder, in config_sentence_transformers.json
    logit_score: Sourced[tuple[int, int | None]] | None = None  # token ids of yes and no (or None)
    messages: Sourced[MessageFormat] | None = None


def read_sentence_transformers_files(checkpoint: Checkpoint) -> SentenceTransformersFiles | None:
    """Return the settings of Sentence Transformers files; None if there are none."""
    modules = checkpoint.read_json("modules.json")
    encoder = next((file for file in ENCODER_FILES if checkpoint.find_file(file) is not None), None)
    settings = checkpoint.read_json_object(SETTINGS_FILE)
    if modules is None and encoder is None and not settings:
        return None
    steps = _read_module_list(checkpoint, [] if modules is None else modules)
    pooling = next((step for step in steps if step.kind == "Pooling"), None)
    splade = next((step for step in steps if step.kind == "SpladePooling"), None)
    mask = next((step for step in steps if step.kind == "MultiVectorMask"), None)
    normalizes = any(step.kind == "Normalize" for step in steps)
    projector = tuple(
        _read_projection(checkpoint, step) for step in steps if MODULE_STAGES[step.kind] == MODULE_STAGES["Dense"]
    )
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        file = checkpoint.folder / SETTINGS_FILE
        raise LoadError(f"{file}: prompts is {prompts!r}; expected a mapping of names to strings")
    return SentenceTransformersFiles(
        pooling=None if pooling is None else _read_pooling(checkpoint, pooling),
        splade=None if splade is None else _read_splade(checkpoint, splade),
        multi_vector=None if pooling else _detect_multi_vector(settings, steps),
        mask_folder=None if mask is None else mask.folder,
        includes_prompt=pooling is None or bool(_read_module_config(checkpoint, pooling).get("include_prompt", True)),
        projector=projector,
        has_int8_output=any(step.kind == "FlexibleQuantizer" for step in steps),
        normalize=Sourced(normalizes, "modules.json") if pooling or mask or normalizes else None,
        max_length=_read_max_length(checkpoint, encoder),
        do_lower_case=encoder is not None and bool(checkpoint.read_json_object(encoder).get("do_lower_case", False)),
        prompts=prompts,
        default_prompt_name=settings.get("default_prompt_name"),
        similarity_fn_name=settings.get("similarity_fn_name"),
        activation=settings.get("activation_fn"),
        logit_score=_read_logit_score(checkpoint, steps),
        messages=None if encoder is None else _read_message_format(checkpoint, encoder),
    )


def load_dense(checkpoint: Checkpoint, dense: DenseModule) -> tuple[Tensor, Tensor | None]:
    """Return weight [out, in] and bias [out] in their stored dtype."""
    weights = open_weights(checkpoint, dense.folder)
    weight = _read_tensor(weights, "weight", (dense.out_features, dense.in_features))
    if dense.bias:
        return weight, _read_tensor(weights, "bias", (dense.out_features,))
    if any(name.endswith("bias") for name in weights.names()):
        raise LoadError(f"{weights.source} has a bias, but {dense.folder}/config.json has bias: false")
    return weight, None


def load_residual(checkpoint: Checkpoint, dense: DenseModule) -> Tensor | None:
    """Return the residual projection [out, in]; None if there is none or sizes are equal."""
    if not dense.has_residual or dense.in_features == dense.out_features:
        return None
    return _read_tensor(
        open_weights(checkpoint, dense.folder), "residual.weight", (dense.out_features, dense.in_features)
    )


def load_layer_norm(checkpoint: Checkpoint, norm: LayerNormModule) -> tuple[Tensor, Tensor]:
    weights = open_weights(checkpoint, norm.folder)
    return _read_tensor(weights, "weight", (norm.size,)), _read_tensor(weights, "bias", (norm.size,))


@dataclass(frozen=True, slots=True)
class _Module:
    """One entry of modules.json."""

    package: str
    kind: str
    folder: str


def _read_module_list(checkpoint: Checkpoint, modules: Any) -> list[_Module]:
    source = checkpoint.folder / "modules.json"
    if not isinstance(modules, list):
        raise LoadError(f"{source} contains a {type(modules).__name__}; expected a list of modules")
    steps = [_parse_module(source.as_posix(), module) for module in modules]
    for previous, step in zip(steps, steps[1:], strict=False):
        if MODULE_STAGES[previous.kind] > MODULE_STAGES[step.kind] or previous.kind == step.kind in (
            "Transformer",
            "Pooling",
        ):
            order = "Transformer, Pooling, Dense or LayerNorm, Normalize"
            raise LoadError(f"{source}: {step.kind} comes after {previous.kind}; the supported order is {order}")
    if {"MLMTransformer", "SpladePooling"} & {step.kind for step in steps}:
        kinds = [step.kind for step in steps]
        if len(kinds) != 2 or kinds[1] != "SpladePooling":
            expected = "a SPLADE model must be MLMTransformer or Transformer, then SpladePooling"
            raise LoadError(f"{source}: {', '.join(kinds)} is not supported; {expected}")
    for step in steps:
        if MODULE_STAGES[step.kind] == MODULE_STAGES["Transformer"] and step.folder not in ("", "."):
            raise LoadError(f"{source}: the Transformer is in {step.folder!r}; pass that folder as the model")
    return steps


def _parse_module(source: str, module: Any) -> _Module:
    if not isinstance(module, dict) or not isinstance(module.get("type"), str):
        raise LoadError(f"{source}: invalid module {module!r}; expected an object with type and path")
    package, _, rest = module["type"].partition(".")
    kind = rest.rpartition(".")[2]
    # Jina: a custom Transformer that selects an adapter by task; supported without running its code
    selects_adapter = (package, kind) == ("custom_st", "Transformer") and "task" in (module.get("kwargs") or ())
    is_known = (package in MODULE_PACKAGES and kind in MODULE_STAGES) or (package, kind) in CUSTOM_MODULES
    if (reason := REFUSED_MODULES.get(module["type"])) is not None:
        raise LoadError(f"{source}: {module['type']} is not supported: {reason}")
    if not selects_adapter and not is_known:
        raise LoadError(
            f"{source}: module type {module['type']!r} is not supported; "
            f"expected one of: {', '.join(MODULE_STAGES)} of {' and '.join(MODULE_PACKAGES)}"
        )
    return _Module(package, kind, str(module.get("path") or ""))


def _read_module_config(checkpoint: Checkpoint, step: _Module) -> dict[str, Any]:
    file = str(PurePosixPath(step.folder) / "config.json")
    checkpoint.require_file(file)
    return checkpoint.read_json_object(file)


def _read_pooling(checkpoint: Checkpoint, step: _Module) -> Sourced[tuple[str, ...]]:
    config, source = _read_module_config(checkpoint, step), f"{step.folder}/config.json"
    names = config.get("pooling_mode")
    if names is not None:
        modes = [names] if isinstance(names, str) else names
        if not isinstance(modes, list) or not modes or any(name not in POOLING_NAMES for name in modes):
            known = ", ".join(POOLING_NAMES)
            raise LoadError(f"{checkpoint.folder / source}: unknown pooling_mode {names!r}; expected one of: {known}")
        return Sourced(tuple(POOLING_NAMES[name] for name in modes), source)
    flags = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    for flag in flags:
        if flag not in POOLING_FLAGS:
            known = ", ".join(POOLING_FLAGS)
            raise LoadError(f"{checkpoint.folder / source}: unknown {flag}; expected one of: {known}")
    methods = tuple(method for flag, method in POOLING_FLAGS.items() if flag in flags)
    return Sourced(methods or ("MEAN",), source)  # the default of Sentence Transformers


def _detect_multi_vector(
    settings: Mapping[str, Any], steps: list[_Module]
) -> Sourced[Literal["PyLate", "Sentence Transformers"]] | None:
    """Return the format of a multi-vector model and the file that declares it; None if it is not one."""
    if any(step.kind == "MultiVectorMask" for step in steps):
        return Sourced("Sentence Transformers", "modules.json")
    if any(step.package == "pylate" for step in steps):
        return Sourced("PyLate", "modules.json")
    if settings.get("model_type") == "MultiVectorEncoder":
        return Sourced("Sentence Transformers", SETTINGS_FILE)
    if settings.get("model_type") == "ColBERT" or settings.get("similarity_fn_name") == "MaxSim":
        return Sourced("PyLate", SETTINGS_FILE)
    return None


def _read_logit_score(checkpoint: Checkpoint, steps: list[_Module]) -> Sourced[tuple[int, int | None]] | None:
    step = next((step for step in steps if step.kind == "LogitScore"), None)
    if step is None:
        return None
    config, source = _read_module_config(checkpoint, step), f"{step.folder}/config.json"
    true, false = config.get("true_token_id"), config.get("false_token_id")
    if not isinstance(true, int) or not isinstance(false, int | None):
        raise LoadError(
            f"{checkpoint.folder / source}: true_token_id {true!r} and false_token_id {false!r} must be integers"
        )
    return Sourced((true, false), source)


def _read_message_format(checkpoint: Checkpoint, file: str) -> Sourced[MessageFormat] | None:
    config = checkpoint.read_json_object(file)
    message = config.get("modality_config", {}).get("message")
    if not isinstance(message, dict):
        return None
    variables = config.get("processing_kwargs", {}).get("chat_template", {})
    return Sourced(MessageFormat(message.get("format") == "structured", variables), f"{file} modality_config")


def _read_splade(checkpoint: Checkpoint, step: _Module) -> SpladePoolingModule:
    config, source = _read_module_config(checkpoint, step), f"{step.folder}/config.json"
    strategy, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    for key, value, known in (
        ("pooling_strategy", strategy, SPLADE_STRATEGIES),
        ("activation_function", activation, tuple(SPLADE_NUM_LOGS)),
    ):
        if value not in known:
            raise LoadError(
                f"{checkpoint.folder / source}: unknown {key} {value!r}; expected one of: {', '.join(known)}"
            )
    return SpladePoolingModule(strategy, SPLADE_NUM_LOGS[activation], source)


def _read_projection(checkpoint: Checkpoint, step: _Module) -> DenseModule | LayerNormModule:
    config, source = _read_module_config(checkpoint, step), checkpoint.folder / step.folder / "config.json"
    sizes = ("dimension",) if step.kind == "LayerNorm" else ("in_features", "out_features")
    for key in sizes:
        if not isinstance(config.get(key), int):
            raise LoadError(f"{source}: {key} is {config.get(key)!r}; expected an integer")
    if step.kind == "LayerNorm":
        return LayerNormModule(config["dimension"], step.folder)
    # the default of the package's constructor
    default = "Tanh" if step.package == "sentence_transformers" else "Identity"
    return DenseModule(
        in_features=config["in_features"],
        out_features=config["out_features"],
        bias=bool(config.get("bias", True)),
        activation=_parse_activation(str(source), config.get("activation_function") or default),
        folder=step.folder,
        has_residual=bool(config.get("use_residual", False)),
    )


def _parse_activation(source: str, name: Any) -> str:
    """Return the short name of an activation given as a torch.nn class; other classes are rejected, never imported."""
    package, _, short = str(name).rpartition(".")
    if (package and not package.startswith("torch.nn")) or short.lower() not in DENSE_ACTIVATIONS:
        raise LoadError(
            f"{source}: unknown activation_function {name!r}; expected one of: {', '.join(DENSE_ACTIVATIONS)}"
        )
    return short.lower()


def _read_max_length(checkpoint: Checkpoint, file: str | None) -> Sourced[int] | None:
    length = None if file is None else checkpoint.read_json_object(file).get("max_seq_length")
    if file is None or length is None:
        return None
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise LoadError(f"{checkpoint.folder / file}: max_seq_length is {length!r}; expected a number of tokens")
    return Sourced(length, file)


def _read_tensor(weights: CheckpointWeights, leaf: str, shape: tuple[int, ...]) -> Tensor:
    for name in (leaf, f"linear.{leaf}", f"dense.{leaf}", f"norm.{leaf}"):
        if name in weights:
            tensor = weights.get(name)
            if tuple(tensor.shape) != shape:
                found = list(tensor.shape)
                raise LoadError(f"{weights.source}: {name} has shape {found}, its config.json requires {list(shape)}")
            return tensor
    has = ", ".join(weights.names()[:5]) or "nothing"
    raise LoadError(f"{weights.source}: no {leaf}, linear.{leaf} or dense.{leaf}; found {has}")
