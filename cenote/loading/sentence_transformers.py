"""Read Sentence Transformers files: pooling, projections, normalisation, maximum length, prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cenote.config.options import Sourced
from cenote.errors import LoadError
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.embedding_output import EMBEDDING_NAME, SETTINGS_FILE, has_normalize, read_truncate_dim
from cenote.loading.encoder_args import find_encoder_file, read_max_length, read_text_args
from cenote.loading.module_list import (
    MODULE_STAGES,
    MODULES_FILE,
    STATIC_KINDS,
    SUFFIX_KINDS,
    Module,
    read_module_config,
    read_module_list,
    read_routes,
)
from cenote.loading.router import ModuleRoute
from cenote.loading.unread_settings import find_unread_settings, skip_cross_encoder_settings
from cenote.loading.version_requirements import find_version_doubt
from cenote.models.published_models import PROMPT_EXCLUDED_NAMES

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
# names of other values that modules pass on
SCORES_NAME, LOGITS_NAME = "scores", "causal_logits"


@dataclass(frozen=True, slots=True)
class DenseModule:
    """A Dense module: a linear layer with activation, stored in its own folder."""

    in_features: int
    out_features: int
    bias: bool
    activation: str  # one of DENSE_ACTIVATIONS
    folder: str
    has_residual: bool = False  # adds the input to the output, projected if sizes differ
    input_name: str = EMBEDDING_NAME  # of the values that it reads, and of those that it writes
    output_name: str = EMBEDDING_NAME


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
    truncate_dim: Sourced[int] | None = None  # size to which normalized embeddings are cut
    max_length: Sourced[int] | None = None
    adds_special_tokens: bool = True  # of the tokenizer, to each text
    do_lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    text_suffix: str | None = None  # appended to every text
    similarity_fn_name: str | None = None
    activation: str | None = None  # of a cross-encoder, in config_sentence_transformers.json
    logit_score: Sourced[tuple[int, int | None]] | None = None  # token ids of yes and no (or None)
    messages: Sourced[MessageFormat] | None = None
    model_type: str | None = None  # SentenceTransformer, CrossEncoder, ...; older files have none
    encoder_kind: str | None = None  # module type of the encoder
    score_head: str | None = None  # folder of the Dense module whose output is the score of a cross-encoder
    routes: tuple[ModuleRoute, ...] = ()  # of a model with a Router, the default first
    doubts: tuple[str, ...] = ()  # required versions that are not known, settings that are not applied


def read_sentence_transformers_files(checkpoint: Checkpoint) -> SentenceTransformersFiles | None:
    """Return the settings of Sentence Transformers files; None if there are none."""
    steps = read_module_list(checkpoint)
    encoder = find_encoder_file(checkpoint)
    settings = checkpoint.read_json_object(SETTINGS_FILE)
    has_modules = checkpoint.find_file(MODULES_FILE) is not None
    if not has_modules and encoder is None and not settings:
        return None
    skipped: list[str] = []
    if not has_modules and settings.get("model_type") == "CrossEncoder":
        settings, skipped = skip_cross_encoder_settings(checkpoint.folder / SETTINGS_FILE, settings)
    first = steps[0] if steps and steps[0].stage == 0 else None
    if first is not None and first.kind in STATIC_KINDS:
        encoder = None  # the file describes a Transformer on another route
    pooling = next((step for step in steps if step.kind == "Pooling"), None)
    splade = next((step for step in steps if step.kind == "SpladePooling"), None)
    mask = next((step for step in steps if step.kind == "MultiVectorMask"), None)
    encoder_values = {} if encoder is None else checkpoint.read_json_object(encoder)
    # the encoder itself returns one embedding per input
    encodes = first is not None and (
        first.kind in (*STATIC_KINDS, "CLIPModel") or encoder_values.get("module_output_name") == EMBEDDING_NAME
    )
    normalizes = has_normalize(checkpoint, steps, is_pooled=pooling is not None or encodes)
    projector = tuple(_read_projection(checkpoint, step) for step in steps if step.stage == MODULE_STAGES["Dense"])
    for step in steps:
        if step.kind == "HierarchicalTokenPooling":
            _check_token_pooling(checkpoint, step)
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict) or not all(isinstance(text, str) for text in prompts.values()):
        file = checkpoint.folder / SETTINGS_FILE
        raise LoadError(f"{file}: prompts is {prompts!r}; expected a mapping of names to strings")
    return SentenceTransformersFiles(
        pooling=None if pooling is None else _read_pooling(checkpoint, pooling),
        splade=None if splade is None else _read_splade(checkpoint, splade),
        multi_vector=None if pooling else _detect_multi_vector(settings, steps),
        mask_folder=None if mask is None else mask.folder,
        includes_prompt=pooling is None or _includes_prompt(checkpoint, pooling),
        projector=projector,
        has_int8_output=any(step.kind == "FlexibleQuantizer" for step in steps),
        normalize=Sourced(normalizes, MODULES_FILE) if pooling or mask or normalizes or encodes else None,
        truncate_dim=read_truncate_dim(checkpoint, settings),
        max_length=read_max_length(checkpoint, encoder),
        adds_special_tokens=bool(read_text_args(checkpoint, encoder).get("add_special_tokens", True)),
        do_lower_case=bool(encoder_values.get("do_lower_case", False)),
        prompts=prompts,
        default_prompt_name=settings.get("default_prompt_name"),
        text_suffix=_read_text_suffix(checkpoint, settings, first),
        similarity_fn_name=settings.get("similarity_fn_name"),
        activation=settings.get("activation_fn"),
        logit_score=_read_logit_score(checkpoint, steps),
        messages=None if encoder is None else _read_message_format(encoder_values, encoder),
        model_type=settings.get("model_type"),
        encoder_kind=None if first is None else first.kind,
        score_head=_find_score_head(checkpoint, projector) if pooling or encodes else None,
        routes=read_routes(checkpoint),
        doubts=(
            *filter(None, [find_version_doubt(settings, str(checkpoint.folder / SETTINGS_FILE))]),
            *find_unread_settings(checkpoint, encoder),
            *skipped,
        ),
    )


def _read_text_suffix(checkpoint: Checkpoint, settings: dict[str, Any], encoder: Module | None) -> str | None:
    """Return the suffix that some Transformer modules append; its last token is the one that is pooled."""
    if encoder is None or encoder.kind not in SUFFIX_KINDS:
        return None
    if isinstance(suffix := settings.get("suffix"), str) and suffix:
        return suffix
    raise LoadError(
        f"{checkpoint.folder / SETTINGS_FILE}: {encoder.package}.{encoder.kind} in {MODULES_FILE} appends a suffix to "
        "every text, but there is no suffix here; download the file again"
    )


def _read_pooling(checkpoint: Checkpoint, step: Module) -> Sourced[tuple[str, ...]]:
    config, source = read_module_config(checkpoint, step), f"{step.folder}/config.json"
    names = config.get("pooling_mode")
    if names is not None:
        modes = [names] if isinstance(names, str) else names
        if not isinstance(modes, list) or not modes or any(name not in POOLING_NAMES for name in modes):
            known = ", ".join(POOLING_NAMES)
            raise LoadError(f"{checkpoint.folder / source}: unknown pooling_mode {names!r}; expected one of: {known}")
        return Sourced(tuple(POOLING_NAMES[name] for name in modes), source)
    flags = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]  # or 1
    for flag in flags:
        if flag not in POOLING_FLAGS:
            known = ", ".join(POOLING_FLAGS)
            raise LoadError(f"{checkpoint.folder / source}: unknown {flag}; expected one of: {known}")
    methods = tuple(method for flag, method in POOLING_FLAGS.items() if flag in flags)
    return Sourced(methods or ("MEAN",), source)  # the default of Sentence Transformers


def _includes_prompt(checkpoint: Checkpoint, step: Module) -> bool:
    written = read_module_config(checkpoint, step).get("include_prompt")
    if written is not None:
        return bool(written)
    origin = str(checkpoint.read_json_object("config.json").get("_name_or_path", "")).rstrip("/").rpartition("/")[2]
    return not any(PROMPT_EXCLUDED_NAMES.fullmatch(name) for name in (*checkpoint.candidate_names, origin))


def _find_score_head(checkpoint: Checkpoint, projector: Sequence[DenseModule | LayerNormModule]) -> str | None:
    """Return the folder of the Dense module that writes the scores of a cross-encoder; None for an embedder.

    Raise LoadError for a chain in which a module does not read what the previous one wrote.
    """
    name, previous = EMBEDDING_NAME, "the pooling"
    for step in projector:
        read = step.input_name if isinstance(step, DenseModule) else EMBEDDING_NAME
        if read != name:
            file = checkpoint.folder / step.folder / "config.json"
            raise LoadError(f"{file}: the module reads {read!r}, but {previous} writes {name!r}; this is not supported")
        if isinstance(step, DenseModule):
            name, previous = step.output_name, step.folder
    if name == EMBEDDING_NAME:
        return None
    if name != SCORES_NAME:
        file = checkpoint.folder / previous / "config.json"
        raise LoadError(
            f"{file}: module_output_name is {name!r}; the last module must write {EMBEDDING_NAME} or {SCORES_NAME}"
        )
    return previous


def _check_token_pooling(checkpoint: Checkpoint, step: Module) -> None:
    factor = read_module_config(checkpoint, step).get("pool_factor", 1.0)
    if factor != 1:
        raise LoadError(
            f"{checkpoint.folder / step.folder / 'config.json'}: pool_factor {factor!r} is not supported: documents "
            "would have more vectors than with Sentence Transformers; set it to 1.0 to accept that"
        )


def _detect_multi_vector(
    settings: Mapping[str, Any], steps: list[Module]
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


def _read_logit_score(checkpoint: Checkpoint, steps: list[Module]) -> Sourced[tuple[int, int | None]] | None:
    step = next((step for step in steps if step.kind == "LogitScore"), None)
    if step is None:
        return None
    config, source = read_module_config(checkpoint, step), f"{step.folder}/config.json"
    if (name := config.get("module_input_name", LOGITS_NAME)) != LOGITS_NAME:
        raise LoadError(f"{checkpoint.folder / source}: module_input_name is {name!r}; only {LOGITS_NAME} is supported")
    true, false = config.get("true_token_id"), config.get("false_token_id")
    if not isinstance(true, int) or not isinstance(false, int | None):
        raise LoadError(
            f"{checkpoint.folder / source}: true_token_id {true!r} and false_token_id {false!r} must be integers"
        )
    return Sourced((true, false), source)


def _read_message_format(config: Mapping[str, Any], file: str) -> Sourced[MessageFormat] | None:
    message = config.get("modality_config", {}).get("message")
    if not isinstance(message, dict):
        return None
    variables = config.get("processing_kwargs", {}).get("chat_template", {})
    return Sourced(MessageFormat(message.get("format") == "structured", variables), f"{file} modality_config")


def _read_splade(checkpoint: Checkpoint, step: Module) -> SpladePoolingModule:
    config, source = read_module_config(checkpoint, step), f"{step.folder}/config.json"
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


def _read_projection(checkpoint: Checkpoint, step: Module) -> DenseModule | LayerNormModule:
    config, source = read_module_config(checkpoint, step), checkpoint.folder / step.folder / "config.json"
    sizes = ("dimension",) if step.kind == "LayerNorm" else ("in_features", "out_features")
    for key in sizes:
        if not isinstance(config.get(key), int):
            raise LoadError(f"{source}: {key} is {config.get(key)!r}; expected an integer")
    if step.kind == "LayerNorm":
        return LayerNormModule(config["dimension"], step.folder)
    name = config.get("module_input_name") or EMBEDDING_NAME
    # the default of the package's constructor
    default = "Tanh" if step.package == "sentence_transformers" else "Identity"
    return DenseModule(
        in_features=config["in_features"],
        out_features=config["out_features"],
        bias=bool(config.get("bias", True)),
        activation=_parse_activation(str(source), config.get("activation_function") or default),
        folder=step.folder,
        has_residual=bool(config.get("use_residual", False)),
        input_name=name,
        output_name=config.get("module_output_name") or name,
    )


def _parse_activation(source: str, name: Any) -> str:
    """Return the short name of an activation given as a torch.nn class; other classes are rejected, never imported."""
    package, _, short = str(name).rpartition(".")
    if (package and not package.startswith("torch.nn")) or short.lower() not in DENSE_ACTIVATIONS:
        raise LoadError(
            f"{source}: unknown activation_function {name!r}; expected one of: {', '.join(DENSE_ACTIVATIONS)}"
        )
    return short.lower()
