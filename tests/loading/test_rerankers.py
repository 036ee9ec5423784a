"""Rerankers are told apart from their base language models and from embedders of the same family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cenote.config.engine import EngineConfig
from cenote.errors import LoadError
from cenote.loading.describe import describe_model
from cenote.loading.model_description import ModelDescription
from cenote.loading.rerankers import TEMPLATE_NAMES, load_builtin_template

JUDGE = "Judge whether the Document meets the requirements based on the Query and the Instruct provided."
YES_OR_NO = (
    "Given a query A and a passage B, determine whether the passage contains an answer to the query by providing "
    "a prediction of either 'Yes' or 'No'."
)
SIZES = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 32,
}
ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "gemma": "GemmaForCausalLM"}
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
    {
        "idx": 1,
        "name": "1",
        "path": "1_LogitScore",
        "type": "sentence_transformers.cross_encoder.modules.logit_score.LogitScore",
    },
]


def described(
    folder: Path, kind: str = "qwen3", options: dict[str, Any] | None = None, **config: Any
) -> ModelDescription:
    """Describe a checkpoint that has no weights."""
    folder.mkdir(exist_ok=True, parents=True)
    values = {"model_type": kind, "architectures": [ARCHITECTURES[kind]], **SIZES, **config}
    (folder / "config.json").write_text(json.dumps(values))
    return describe_model(EngineConfig(model=str(folder), device="cpu", **options or {}))


def write(folder: Path, **files: Any) -> None:
    for name, content in files.items():
        path = folder / {"card": "README.md", "tokenizer": "tokenizer_config.json", "modules": "modules.json"}[name]
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def card(text: str = "", **head: Any) -> str:
    lines = [f"{name}: {json.dumps(value)}" for name, value in head.items()]
    return "\n".join(["---", *lines, "---", "# A model", text])


# recognised checkpoints


@pytest.mark.parametrize(
    ("kind", "name", "template"),
    [
        ("qwen3", "Qwen3-Reranker-0.6B", "qwen3_reranker"),
        ("qwen3", "qwen3_reranker_4b-finetuned", "qwen3_reranker"),
        ("qwen2", "mxbai-rerank-base-v2", "mxbai_rerank_v2"),
        ("qwen2", "mxbai-rerank-large-v2", "mxbai_rerank_v2"),
        ("gemma", "bge-reranker-v2-gemma", "bge_reranker_v2_gemma"),
    ],
)
def test_a_reranker_is_known_by_the_name_of_its_folder(kind: str, name: str, template: str, tmp_path: Path) -> None:
    model = described(tmp_path / name, kind)

    assert (model.kind.value, model.kind.source) == ("sequence", f"the name {name}")
    assert model.num_labels == 1
    assert model.score_template is not None
    assert (model.score_template.value.name, model.score_template.source) == (template, f"the name {name}")
    assert model.plan.tasks == ("classify", "token_classify")


def test_a_reranker_of_the_hub_is_known_by_its_place_in_the_cache(tmp_path: Path) -> None:
    model = described(tmp_path / "models--Qwen--Qwen3-Reranker-0.6B" / "snapshots" / "6e9e69830b95")

    assert model.kind.source == "the name Qwen3-Reranker-0.6B"


@pytest.mark.parametrize(
    ("kind", "config", "files", "source"),
    [
        ("qwen3", {"_name_or_path": "Qwen/Qwen3-Reranker-4B"}, {}, "config.json _name_or_path"),
        (
            "qwen3",
            {},
            {"tokenizer": {"chat_template": "{{ messages }}" + JUDGE}},
            "the chat template",
        ),
        (
            "qwen3",
            {},
            {"card": card(base_model="Qwen/Qwen3-Reranker-0.6B", pipeline_tag="text-ranking")},
            "README.md base_model Qwen/Qwen3-Reranker-0.6B",
        ),
        (
            "qwen2",
            {},
            {"card": card(base_model=["other/model", "mixedbread-ai/mxbai-rerank-large-v2"])},
            "README.md base_model mixedbread-ai/mxbai-rerank-large-v2",
        ),
        (
            "gemma",
            {},
            {"card": card(YES_OR_NO, pipeline_tag="text-classification")},
            "README.md pipeline_tag text-classification and its prompt",
        ),
    ],
)
def test_a_renamed_reranker_is_known_by_its_files(
    kind: str, config: dict[str, Any], files: dict[str, Any], source: str, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    write(folder, **files)

    model = described(folder, kind, **config)

    assert (model.kind.value, model.kind.source) == ("sequence", source)
    assert model.score_template is not None and model.score_template.source == source


@pytest.mark.parametrize(
    ("false", "labels"),
    [(5, ((5, 7), "from_2_way_softmax")), (None, ((7,), "no_post_processing"))],
)
def test_a_language_model_with_a_logit_score_is_a_reranker(false: int | None, labels: Any, tmp_path: Path) -> None:
    write(tmp_path, modules=MODULES)
    (tmp_path / "1_LogitScore").mkdir()
    scores = {"true_token_id": 7, "false_token_id": false}
    (tmp_path / "1_LogitScore" / "config.json").write_text(json.dumps(scores))

    model = described(tmp_path)

    assert (model.kind.value, model.kind.source) == ("sequence", "1_LogitScore/config.json")
    assert model.token_labels is not None
    assert (model.token_labels.tokens, model.token_labels.method) == labels
    assert model.score_template is None  # pairs use the template of the tokenizer


def test_a_logit_score_without_token_ids_is_refused(tmp_path: Path) -> None:
    write(tmp_path, modules=MODULES)
    (tmp_path / "1_LogitScore").mkdir()
    (tmp_path / "1_LogitScore" / "config.json").write_text("{}")

    with pytest.raises(LoadError, match="true_token_id None and false_token_id None"):
        described(tmp_path)


# checkpoints that are not rerankers


@pytest.mark.parametrize("name", ["Qwen3-0.6B", "Qwen3-Embedding-0.6B", "my-reranker", "rerankers/Qwen3-0.6B"])
def test_a_language_model_of_another_name_becomes_an_embedder(name: str, tmp_path: Path) -> None:
    assert described(tmp_path / name).kind.value == "embed"


def test_an_embedder_is_not_a_reranker_whatever_its_base_model(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen3-Reranker-0.6B-embed"
    pooling = {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}
    write(folder, modules=[MODULES[0], pooling])
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))

    assert described(folder).kind.value == "embed"


@pytest.mark.parametrize(
    "text",
    [
        card(JUDGE, base_model="Qwen/Qwen3-0.6B-Base", pipeline_tag="feature-extraction"),
        card(base_model="Qwen/Qwen3-Reranker-0.6B", pipeline_tag="sentence-similarity"),
        card("Use it with Qwen3-Reranker-0.6B.", pipeline_tag="text-generation"),
        "no front matter " + JUDGE,
        "---\n: [\n---\n" + JUDGE,
        "---\n- a\n- list\n---\n",
        "---\npipeline_tag: 7\nbase_model: {a: b}\n---\n",
    ],
)
def test_a_card_of_another_kind_of_model_proves_nothing(text: str, tmp_path: Path) -> None:
    write(tmp_path / "mine", card=text)

    assert described(tmp_path / "mine").kind.value == "embed"


def test_the_family_must_fit_as_well(tmp_path: Path) -> None:
    assert described(tmp_path / "Qwen3-Reranker-0.6B", "qwen2").kind.value == "embed"
    assert described(tmp_path / "bge-reranker-v2-gemma", "qwen3").kind.value == "embed"


@pytest.mark.parametrize("labels", [1, 3])
def test_a_classifier_that_is_not_a_reranker_gets_no_template(labels: int, tmp_path: Path) -> None:
    names = {str(number): f"label {number}" for number in range(labels)}
    sequence: dict[str, Any] = {"architectures": ["Qwen3ForSequenceClassification"], "id2label": names}

    assert described(tmp_path / "Skywork-Reward-V2-Qwen3-0.6B", **sequence).score_template is None
    reranker = described(tmp_path / "Qwen3-Reranker-0.6B-seq-cls", **sequence)
    assert (reranker.score_template is not None) == (labels == 1)
    assert reranker.token_labels is None


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"score_template": "none"}, "embed"),
        ({"convert": "embed"}, "embed"),
        ({"convert": "classify"}, "sequence"),
        ({"convert": "none"}, "sequence"),
    ],
)
def test_options_take_precedence_over_files(options: dict[str, Any], kind: str, tmp_path: Path) -> None:
    model = described(tmp_path / "Qwen3-Reranker-0.6B", options=options)

    assert model.kind.value == kind
    assert (model.token_labels is None) == (kind == "embed")
    assert (model.score_template is None) == (kind == "embed")


def test_an_unrecognized_reranker_becomes_an_embedder_with_a_doubt(tmp_path: Path) -> None:
    write(tmp_path / "zerank", card=card(pipeline_tag="text-ranking"))

    model = described(tmp_path / "zerank")

    assert model.kind.value == "embed"
    (doubt,) = model.doubts
    assert "README.md has pipeline_tag text-ranking, but its prompt is unknown" in doubt


def test_an_embedder_whose_card_says_reranker_has_a_doubt_unless_the_files_or_the_user_decide(tmp_path: Path) -> None:
    write(tmp_path, card=card(pipeline_tag="text-ranking"))
    names = {"architectures": ["Qwen3Model"]}

    (doubt,) = described(tmp_path, **names).doubts
    assert "config.json names Qwen3Model: loading as embedder" in doubt
    assert described(tmp_path, options={"convert": "embed"}, **names).doubts == ()


# templates


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_every_template_comes_with_the_package(name: str) -> None:
    template = load_builtin_template(name)

    assert template.name == name
    assert 'content_of("query")' in template.text and 'content_of("document")' in template.text
