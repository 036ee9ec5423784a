"""`cenote models --check`: tell whether a model gives right outputs, by what evidence, and what to do if not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cenote.cli.model_settings import iter_settings, settings_to_json
from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.describe import describe_model
from cenote.loading.model_description import ModelDescription
from cenote.models.catalog import CheckedModel, read_checked_models, read_supported_models

Verdict = Literal["right by test", "right by architecture", "doubtful", "refused"]
EXIT_STATUS: dict[Verdict, int] = {"right by test": 0, "right by architecture": 0, "doubtful": 1, "refused": 78}
# settings that two models with the same layout have in common
LAYOUT_KEYS = ("kind", "pooling", "normalize", "activation", "attention", "score_type", "tokens_around_text")
SHOWN_KEYS = ("architecture", "kind", "tasks", "pooling", "normalize", "activation", "max_tokens", "score_type")


@dataclass(frozen=True, slots=True)
class CheckResult:
    verdict: Verdict
    reasons: tuple[str, ...]
    settings: Mapping[str, Any]  # empty if refused


def check_model(name: str, *, json_output: bool = False) -> int:
    """Print the verdict, its reasons and the main settings; return the exit status."""
    result = compute_check(name)
    if json_output:
        shown = {"model": name, "verdict": result.verdict, "reasons": result.reasons, "settings": result.settings}
        print(json.dumps(shown, indent=2, ensure_ascii=False))
        return EXIT_STATUS[result.verdict]
    print(f"{name}: {result.verdict}")
    for reason in result.reasons:
        print(f"  {reason}")
    if result.settings:
        print()
    for key in SHOWN_KEYS:
        if (value := result.settings.get(key)) is not None:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            print(f"  {key.replace('_', ' '):<12}  {text}")
    return EXIT_STATUS[result.verdict]


def compute_check(name: str) -> CheckResult:
    try:
        model = describe_model(EngineConfig(model=name), needs_weights=False)
    except LoadError as error:
        return CheckResult("refused", (error.message,), {})
    rows = settings_to_json(list(iter_settings(model)))
    settings = {key: row["value"] for key, row in rows.items()}
    entry = _find_by_name(model)
    differences = [] if entry is None else list(_iter_differences(entry, rows))
    if settings["doubts"] or differences:
        return CheckResult("doubtful", (*settings["doubts"], *differences), settings)
    if entry is not None:
        return CheckResult("right by test", (_describe_entry(entry, "table entry"),), settings)
    return CheckResult("right by architecture", tuple(_iter_architecture_evidence(model, settings)), settings)


def _find_by_name(model: ModelDescription) -> CheckedModel | None:
    """Return the entry with the model's name, as requested, of its folder, or in config.json."""
    names = {*model.checkpoint.candidate_names, str(model.config.get("_name_or_path", "")).rpartition("/")[2]}
    wanted = model.checkpoint.name
    entries = [entry for entry in read_checked_models() if entry.name == wanted or entry.short_name in names]
    return next(iter(sorted(entries, key=lambda entry: entry.name != wanted)), None)


def _iter_differences(entry: CheckedModel, rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for key, expected in entry.settings.items():
        row = rows.get(key, {"value": None, "source": "missing"})
        found = "none" if row["value"] is None else row["value"]
        if found != expected:
            yield f"{key} is {found} here (from {row['source']}), {expected} in the table entry {entry.name}"


def _iter_architecture_evidence(model: ModelDescription, settings: Mapping[str, Any]) -> Iterator[str]:
    if model.entry.uses_transformers:
        yield f"{model.entry.name} runs on the Transformers backend: outputs are those of the Transformers library"
    for supported in read_supported_models():
        if supported.name == model.entry.name:
            yield f"{supported.name} was compared with {supported.verified_with}"
    similar = [entry for entry in read_checked_models() if _has_same_layout(entry, model.entry.name, settings)]
    if similar:
        yield _describe_entry(similar[0], "same layout as table entry")
    else:
        yield "no table entry has the same layout: compare some outputs with the library the model is made for"


def _has_same_layout(entry: CheckedModel, architecture: str, settings: Mapping[str, Any]) -> bool:
    expected = {key: entry.settings[key] for key in LAYOUT_KEYS if key in entry.settings}
    same = all((settings.get(key) or "none") == (value or "none") for key, value in expected.items())
    return entry.architecture == architecture and same


def _describe_entry(entry: CheckedModel, role: str) -> str:
    evidence = f"{entry.check}, files from {entry.files}; outputs compared with {entry.compared_with}"
    return f"{role}: {entry.name} ({evidence})"
