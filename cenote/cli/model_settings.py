"""The resolved settings of a model as rows of name, value and source: what `cenote inspect` prints and checks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from cenote.config.engine import EngineConfig
from cenote.config.options import Sourced
from cenote.errors import PoolingError
from cenote.kernels.cpu.library import find_kernel_level
from cenote.loading.colbert import ExpansionSettings, RoleSettings
from cenote.loading.describe import describe_model
from cenote.loading.fingerprint import PART_CHARS, PARTS, compute_fingerprint
from cenote.loading.layouts.static_embeddings import SIZE_SOURCE, UNKNOWN_SIZES
from cenote.loading.model_description import ModelDescription
from cenote.loading.model_files import digest_file, list_weight_files
from cenote.loading.tokenizer_files import TokenizerFiles, load_tokenizer_files, remove_special_tokens
from cenote.scoring.scorer import ScoringModel

UNKNOWN = "unknown"  # a size that only the weights have, and they are missing


@dataclass(frozen=True, slots=True)
class Setting:
    """One resolved setting: a JSON value with the file or option that decided it."""

    key: str  # in JSON
    value: Any
    source: str
    text: str = ""  # shown instead of the value
    label: str = ""  # shown instead of the key

    def format_row(self) -> tuple[str, str, str]:
        return self.label or self.key.replace("_", " "), self.text or _format_value(self.value), self.source


def resolve_settings(config: EngineConfig, *, with_checksums: bool = False) -> list[Setting]:
    """Return the settings of a model from its configuration and tokenizer files; no weights are downloaded.

    Weights are read only for the fingerprint; `with_checksums`: and for the SHA-256 of each file.
    """
    model = describe_model(config, needs_weights=False)
    checksums = _iter_checksums(model) if with_checksums else ()
    return [*iter_settings(model), *_iter_fingerprint_settings(model, config), *checksums]


def iter_settings(model: ModelDescription) -> Iterator[Setting]:
    """Yield every setting: doubts first, then the most important ones."""
    plan, backbone = model.plan, model.architecture.backbone
    tokenizer, tokenizer_doubt = _try_load_tokenizer(model)
    doubts = [*model.doubts, *([tokenizer_doubt] if tokenizer_doubt else [])]
    if doubts:
        yield Setting("doubts", doubts, "the files of the model", "; ".join(doubts))
    yield Setting("model", model.name, str(model.checkpoint.folder))
    yield Setting("architecture", model.entry.name, "config.json architectures")
    yield Setting("kind", model.kind.value, model.kind.source, label="used as")
    if model.card.facts:
        texts = [", ".join(value) if isinstance(value, list) else value for value in model.card.facts.values()]
        agreement = ["agrees"] if model.card.agrees else []
        yield Setting("model_card", dict(model.card.facts), "README.md", "; ".join([*texts, *agreement]))
    yield Setting("tasks", list(plan.supported_tasks), "pooler config" if plan.defaults.task else model.kind.source)
    if model.kind.value == "tensors":  # the plugin does the rest
        yield Setting("dtype", _dtype_name(model.dtype.value), model.dtype.source)
        yield Setting("device", str(model.device.value), model.device.source)
    if model.deterministic:
        yield Setting("deterministic", True, "deterministic", "results do not depend on the batch")
    if model.kind.value == "tensors":
        return
    yield _pooling_setting(model)
    yield Setting("token_pooling", plan.tok_pooling_type.value, plan.tok_pooling_type.source)
    yield from _iter_output_settings(model)
    if model.score_template is not None and model.kind.value == "sequence":
        yield Setting("score_template", model.score_template.value.name, model.score_template.source)
    if not plan.include_prompt:
        yield Setting("include_prompt", False, "pooler config or Sentence Transformers files", "prompts are not pooled")
    if model.has_routes:
        routes = {
            role: ", ".join(kind.rpartition(".")[2] for kind, _ in route.modules)
            for route in model.sentence_transformers.routes
            for role in route.roles
        }
        text = "; ".join(f"{role}: {modules}" for role, modules in sorted(routes.items()))
        yield Setting("routes", routes, model.sentence_transformers.routes[0].file, text)
    for step in model.sentence_transformers.projector:
        yield Setting("projector", step.folder, "modules.json")
    yield from _iter_scoring_settings(model)
    yield Setting("max_tokens", model.max_length.value, model.max_length.source)
    yield Setting("attention", "causal" if backbone.causal else "bidirectional", "config.json")
    size = UNKNOWN if _is_unknown(model, "hidden_size") else backbone.hidden_size
    source = model.config.get(SIZE_SOURCE, "config.json")
    yield Setting("layers", [backbone.num_layers, size], source, f"{backbone.num_layers} x {size}")
    yield Setting("dtype", _dtype_name(model.dtype.value), model.dtype.source)
    if model.matmul_dtype.value is not model.dtype.value:
        yield Setting("matmul_dtype", _dtype_name(model.matmul_dtype.value), model.matmul_dtype.source)
    yield Setting("head_dtype", _dtype_name(model.head_dtype.value), model.head_dtype.source)
    yield Setting("runtime", model.runtime.value, model.runtime.source)
    if model.quantization.source != "default":
        yield Setting("quantization", model.quantization.value or "none", model.quantization.source)
    yield Setting("device", str(model.device.value), model.device.source)
    if (
        model.device.value.type == "cpu"
        and not model.entry.uses_transformers
        and (level := _find_kernel_level(model)) != "baseline"
    ):
        yield Setting("cpu_level", level, "instructions of this CPU", label="CPU level")
    if tokenizer is not None:
        yield from _iter_tokenizer_settings(tokenizer)
    yield from _iter_prompt_settings(model)


def _find_kernel_level(model: ModelDescription) -> str:
    dtypes = _dtype_name(model.dtype.value), _dtype_name(model.matmul_dtype.value)
    return find_kernel_level(*dtypes, model.quantization.value)


def _iter_fingerprint_settings(model: ModelDescription, config: EngineConfig) -> Iterator[Setting]:
    try:
        fingerprint = compute_fingerprint(model, config)
    except PoolingError as error:  # files are missing from a partial copy
        yield Setting("fingerprint", None, error.message, UNKNOWN)
        return
    if fingerprint is None:
        yield Setting("fingerprint", None, "the weights, which are missing", UNKNOWN)
        return
    yield Setting("fingerprint", str(fingerprint), ", ".join(PARTS))
    short = ", ".join(f"{name} {fingerprint.parts[name][:PART_CHARS]}" for name in PARTS)
    yield Setting("fingerprint_parts", dict(fingerprint.parts), "SHA-256 of each part", short, "its parts")


def _iter_checksums(model: ModelDescription) -> Iterator[Setting]:
    checkpoint = model.checkpoint
    for path in list_weight_files(checkpoint):
        name = path.relative_to(checkpoint.folder).as_posix()
        digest = digest_file(path, is_full=True)
        yield Setting(f"checksum.{name}", digest, "SHA-256 of the file", f"{digest} {name}", "checksum")


def _pooling_setting(model: ModelDescription) -> Setting:
    if model.kind.value != "sparse":
        methods = model.plan.seq_pooling_types
        return Setting("pooling", " + ".join(methods.value), methods.source)
    files = model.sentence_transformers.splade
    if model.architecture.is_static:
        return Setting("pooling", "weight of each token", model.kind.source)
    if files is None:
        return Setting("pooling", "max of log(1 + logit)", f"default of {model.entry.name}")
    inner = "log(1 + log(1 + logit))" if files.num_logs > 1 else "log(1 + logit)"
    return Setting("pooling", f"{files.strategy} of {inner}", files.source)


def _iter_output_settings(model: ModelDescription) -> Iterator[Setting]:
    """Yield what follows pooling: normalisation and sizes of embeddings, activation and labels of classifiers."""
    plan = model.plan
    if model.kind.value in ("embed", "multi_vector", "hybrid"):
        normalizes = plan.use_activation
        text = "normalize" if normalizes.value else "none"
        yield Setting("normalize", normalizes.value, normalizes.source, text, "activation")
    if model.kind.value in ("embed", "multi_vector"):
        projection = model.architecture.projection
        has_known_size = projection is None or projection.is_pooler  # else known from weights
        if has_known_size or model.sentence_transformers.projector:
            stored = model.config.get(SIZE_SOURCE, "config.json hidden_size")
            source = "modules.json" if model.sentence_transformers.projector else stored
            is_unknown = _is_unknown(model, "hidden_size") and source == stored
            if plan.matryoshka.default_size is not None and (cut := model.sentence_transformers.truncate_dim):
                source, is_unknown = cut.source, False
            yield Setting("dimensions", UNKNOWN if is_unknown else plan.matryoshka.output_size, source)
        yield _matryoshka_setting(model)
    elif model.kind.value == "sparse":
        source = model.config.get(SIZE_SOURCE, "config.json vocab_size")
        size = UNKNOWN if _is_unknown(model, "vocab_size") else plan.matryoshka.full_size
        yield Setting("dimensions", size, source)
    elif model.kind.value == "hybrid":
        yield Setting("dimensions", plan.matryoshka.full_size, "config.json hidden_size")
    elif (spec := model.architecture.span_head) is not None:
        yield Setting("labels", "those of each request", model.kind.source, label="label names")
        source = "gliner_config.json max_len" if not spec.prompt.splits_as_gliner2 else "the number of tokens"
        yield Setting("max_words", spec.max_words, source, label="words of a text")
    elif model.kind.value != "listwise":  # whose scores are cosines
        used = plan.use_activation.value
        source = plan.activation.source if used else plan.use_activation.source
        yield Setting("activation", _activation_name(model) if used else "none", source)
        if model.kind.value == "reward" and model.head is None:
            yield Setting("reward", "hidden states of all tokens", "no reward head in the checkpoint")
            return
        source = model.token_labels.source if model.token_labels else "config.json"
        yield Setting("num_labels", model.num_labels, source, label="labels")
        if model.labels is not None:
            source = "config.json id2label" if "id2label" in model.config else "default of Transformers"
            yield Setting("labels", model.labels, source, label="label names")


def _is_unknown(model: ModelDescription, size: str) -> bool:
    return size in model.config.get(UNKNOWN_SIZES, ())


def _activation_name(model: ModelDescription) -> str:
    """Return the name of the activation; "auto" depends on the number of logits."""
    name = model.plan.activation.value
    return name if name != "auto" else "sigmoid" if model.num_labels == 1 else "softmax"


def _matryoshka_setting(model: ModelDescription) -> Setting:
    matryoshka = model.plan.matryoshka
    if not matryoshka.is_supported:
        return Setting("matryoshka", None, matryoshka.source, "no")
    if matryoshka.sizes:
        return Setting("matryoshka", list(matryoshka.sizes), matryoshka.source)
    sizes = f"{matryoshka.min_size} to {matryoshka.full_size}"
    if _is_unknown(model, "hidden_size") and not model.sentence_transformers.projector:
        sizes = UNKNOWN
    return Setting("matryoshka", sizes, matryoshka.source)


def _iter_scoring_settings(model: ModelDescription) -> Iterator[Setting]:
    types = ScoringModel(
        model.name, model.plan.tasks, model.num_labels, preferred_score_type=model.score_type
    ).score_types
    yield Setting("score_type", types[0] if types else None, model.kind.source, "" if types else "no scores")
    if (similarity := model.sentence_transformers.similarity_fn_name) is not None:
        is_cosine = "embed" in model.plan.tasks and model.kind.value != "sparse" and similarity != "cosine"
        text = f"{similarity} (scores use the cosine)" if is_cosine else ""
        yield Setting("similarity", similarity, "config_sentence_transformers.json", text)
    if model.late_interaction is None:
        return
    summary, late = model.late_interaction.summary, model.late_interaction.settings
    formats: dict[str, Any] = {"summary": summary.value}
    if late is not None:
        formats |= {"query": asdict(late.query), "document": asdict(late.document)}
        formats["expansion"] = None if late.expansion is None else asdict(late.expansion)
    yield Setting("late_interaction", formats, summary.source, summary.value)
    if late is not None:
        yield Setting("query", None, late.source, _format_role(late.query, late.expansion))
        yield Setting("document", None, late.source, _format_role(late.document))


def _iter_tokenizer_settings(tokenizer: TokenizerFiles) -> Iterator[Setting]:
    names = dict(sorted(tokenizer.special_tokens.items()))
    listed = ", ".join(f"{name.removesuffix('_token')} {token}" for name, token in names.items())
    yield Setting("special_tokens", names, "tokenizer files", listed or "none")
    added = tokenizer.tokenizer.encode("").tokens
    yield Setting("tokens_around_text", added, "tokenizer files", " ... ".join(added) or "none")


def _iter_prompt_settings(model: ModelDescription) -> Iterator[Setting]:
    prompts: dict[str, Sourced[str]] = {}
    for source, texts in (
        ("config_sentence_transformers.json", model.prompts.by_name),
        ("config.json task_instructions", model.prompts.instructions),
    ):
        prompts |= {name: Sourced(text, source) for name, text in texts.items()}
    for name, prompt in prompts.items():
        yield Setting(f"prompt.{name}", prompt.value, prompt.source, f"{name}: {prompt.value!r}", "prompt")
    if (default := model.prompts.default) is not None:
        yield Setting("default_prompt", default.value, default.source, repr(default.value))


def settings_to_json(settings: list[Setting]) -> dict[str, dict[str, Any]]:
    """Return value and source by key; prompts and projectors, of which there may be several, are collected."""
    rows: dict[str, dict[str, Any]] = {"doubts": {"value": [], "source": "the files of the model"}}
    for setting in settings:
        group, _, name = setting.key.partition(".")
        if name:
            row = rows.setdefault(f"{group}s", {"value": {}, "source": setting.source})
            row["value"][name] = setting.value
        elif setting.key == "projector":
            rows.setdefault("projector", {"value": [], "source": setting.source})["value"].append(setting.value)
        elif setting.key not in ("query", "document"):  # in late_interaction
            rows[setting.key] = {"value": setting.value, "source": setting.source}
    return rows


def _try_load_tokenizer(model: ModelDescription) -> tuple[TokenizerFiles | None, str | None]:
    """Return the tokenizer, or the reason why it cannot be loaded: its files may be missing from a partial copy."""
    if model.kind.value == "tensors" or not model.architecture.reads_texts:
        return None, None
    try:
        files = load_tokenizer_files(
            model.find_tokenizer(),
            is_plain=model.architecture.has_plain_tokenizer,
            text_suffix=model.sentence_transformers.text_suffix,
        )
    except PoolingError as error:
        return None, f"the tokenizer cannot be loaded: {error.message}"
    if not model.architecture.adds_special_tokens:
        remove_special_tokens(files.tokenizer)
    return files, None


def _format_role(role: RoleSettings, expansion: ExpansionSettings | None = None) -> str:
    parts = [f"at most {role.max_length} tokens"] if role.max_length else []
    parts += [f"marker {role.marker!r}"] if role.marker else []
    if role.suffix_tokens:
        parts.append(f"prompt {role.prompt!r}; {len(role.suffix_tokens)} tokens {role.suffix_tokens[0]!r} appended")
    if expansion is not None:
        parts.append(f"expanded to {expansion.length}" + ("" if expansion.is_attended else ", not attended"))
    parts += [f"no vector for {len(role.skiplist)} words"] if role.skiplist else []
    return "; ".join(parts) or "no special format"


def _format_value(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
