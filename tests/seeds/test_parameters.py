"""PoolingParams, PoolerConfig, the older task option, activations and pooling methods."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from dataclasses import fields
from typing import Any

import pytest
import torch
from openai import OpenAI
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

import cenote.pooling.methods
import cenote.pooling.pooler
from cenote import LLM, BadRequest, LoadError, PoolerConfig, PoolingParams
from cenote.packed_batch import pack_sequences
from cenote.pooling.methods import POOLING_METHODS
from tests.api.app_client import make_client
from tests.models.test_reward import BAD, GOOD, SHEPHERD, STEP, at_steps
from tests.seeds.checkpoints import GREETING, Models, data_of, encode
from tests.seeds.conftest import EMBEDDER
from tests.serving.server_process import ServerProcess
from tests.tiny import SEQUENCES, compute_hidden_states, compute_logits

RAW = PoolingParams(use_activation=False)
ONLY_USE_ACTIVATION = "Task 'classify' only supports ['use_activation'] parameters, does not support {} parameters"
ONLY_EMBEDDING = "Task 'embed' only supports ['dimensions', 'normalize'] parameters, does not support {} parameters"


def embed(llm: LLM, **params: Any) -> Tensor:
    return torch.stack(data_of(llm.embed(SEQUENCES, pooling_params=PoolingParams(**params), use_tqdm=False)))


def classify(llm: LLM, params: PoolingParams | None = None) -> Tensor:
    return torch.stack(data_of(llm.classify(SEQUENCES, pooling_params=params, use_tqdm=False)))


# the older option


def test_task_option(models: Models) -> None:
    for name, task, tasks in [
        ("qwen3 causal", "embed", {"embed", "token_embed"}),
        ("apeach", "classify", {"classify", "token_classify"}),
        ("bge-reranker", "score", {"classify", "token_classify", "score"}),
    ]:
        assert set(models.load(name, task=task).supported_tasks) == tasks
    for name in ("math rm", "qwen3 causal"):  # neither becomes an embedder
        assert models.load_as_served(name, "--task", "reward").pooling_task not in ("embed", "classify")
    with pytest.raises(BadRequest, match="invalid task='generate'; expected one of: embed"):
        models.load("qwen3 causal", task="generate")


# PoolingParams


def test_pooling_params_fields() -> None:
    params = PoolingParams(
        truncate_prompt_tokens=8,
        dimensions=4,
        use_activation=False,
        task="embed",
        step_tag_id=3,
        returned_token_ids=[1],
    )

    assert (params.truncate_prompt_tokens, params.dimensions, params.task) == (8, 4, "embed")
    assert (params.use_activation, params.step_tag_id, params.returned_token_ids) == (False, 3, [1])
    assert "normalize" in {item.name for item in fields(PoolingParams)}


def test_pooling_params_clone() -> None:
    params = PoolingParams(dimensions=4, returned_token_ids=[1, 2])

    copy = params.clone()
    assert copy == params and copy is not params
    assert copy.returned_token_ids is not params.returned_token_ids


def test_pooling_params_verify(models: Models) -> None:
    embedder, classifier = models.load("bert").model_config, models.load("bert classifier").model_config
    short = models.load("bert", hf_overrides={"matryoshka_dimensions": [16]}).model_config

    PoolingParams(normalize=False).verify("embed", embedder)
    PoolingParams(use_activation=False).verify("classify", classifier)
    PoolingParams(dimensions=16).verify("embed", short)
    for task, config, message in [
        ("classify", classifier, re.escape(ONLY_USE_ACTIVATION.format(["dimensions"]))),
        ("embed", embedder, 'Model "bert" does not support matryoshka representation'),
        ("embed", short, r'Model "bert" only supports \[16\] matryoshka dimensions'),
    ]:
        with pytest.raises(ValueError, match=message):
            PoolingParams(dimensions=8).verify(task, config)


def test_parameters_of_another_task_are_refused_with_the_valid_ones(models: Models) -> None:
    embedder, classifier = models.load("bert"), models.load("bert classifier")

    with pytest.raises(BadRequest) as caught:
        embedder.embed(GREETING, pooling_params=PoolingParams(step_tag_id=1, returned_token_ids=[1]), use_tqdm=False)
    assert caught.value.message == ONLY_EMBEDDING.format(["step_tag_id", "returned_token_ids"])
    with pytest.raises(BadRequest) as caught:
        classifier.classify(GREETING, pooling_params=PoolingParams(dimensions=8), use_tqdm=False)
    assert caught.value.message == ONLY_USE_ACTIVATION.format(["dimensions"])


@pytest.mark.parametrize("value", [True, False])
def test_normalize_on_a_classification_task_is_refused(value: bool, models: Models) -> None:
    llm = models.load("bert classifier")

    with pytest.raises(BadRequest) as caught:
        llm.classify(GREETING, pooling_params=PoolingParams(normalize=value), use_tqdm=False)
    assert caught.value.message == ONLY_USE_ACTIVATION.format(["normalize"])
    assert len(llm.classify(GREETING, pooling_params=RAW, use_tqdm=False)) == 1


def test_embeddings_are_normalised_unless_normalize_is_false(models: Models) -> None:
    llm = models.load("bert")

    default, normalised, raw = (embed(llm, normalize=value) for value in (None, True, False))
    assert_close(default, normalised)
    assert not torch.allclose(normalised, raw, atol=1e-2)
    assert_close(F.normalize(raw, dim=-1), normalised)


@pytest.mark.parametrize("name", ["softmax", "activation"])
def test_older_names_of_use_activation(name: str, models: Models) -> None:
    llm = models.load("bert classifier")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        params = PoolingParams(**{name: False})
    assert_close(classify(llm, params), classify(llm, RAW))
    # a process of its own: the name is reported once
    program = f"from cenote.protocol.params import PoolingParams; PoolingParams({name}=False)"
    stderr = subprocess.run([sys.executable, "-W", "always", "-c", program], capture_output=True, text=True).stderr
    assert f"{name} is deprecated" in stderr and "use_activation" in stderr


# PoolerConfig


def test_pooler_config_fields() -> None:
    values: dict[str, Any] = {
        "pooling_type": "MEAN",
        "normalize": False,
        "dimensions": 8,
        "enable_chunked_processing": True,
        "max_embed_len": 100,
        "logit_bias": 0.5,
        "step_tag_id": 3,
        "returned_token_ids": [1, 2],
    }

    config = PoolerConfig(**values)

    assert set(values) | {"use_activation"} <= {item.name for item in fields(PoolerConfig)}
    assert config.use_activation is False and config.logit_mean == 0.5  # newer names of two of them
    assert PoolerConfig(use_activation=False) == PoolerConfig(normalize=False)
    assert (config.pooling_type, config.dimensions, config.max_embed_len) == ("MEAN", 8, 100)
    assert (config.enable_chunked_processing, config.step_tag_id, config.returned_token_ids) == (True, 3, [1, 2])


def test_pooler_config_defaults(models: Models) -> None:
    config = PoolerConfig()

    unset = ("pooling_type", "normalize", "dimensions", "max_embed_len", "use_activation", "logit_bias", "step_tag_id")
    assert [getattr(config, name) for name in unset] == [None] * len(unset)
    assert not config.enable_chunked_processing
    # unset means normalised embeddings and probabilities
    assert_close(embed(models.load("bert", pooler_config=config)).norm(dim=-1), torch.ones(len(SEQUENCES)))
    probabilities = classify(models.load("bert classifier", pooler_config=config))
    assert_close(probabilities.sum(dim=-1), torch.ones(len(SEQUENCES)))


def test_model_config_shows_the_resolved_pooler_config(models: Models) -> None:
    mean = models.load("mean bert").model_config.pooler_config
    last = models.load("qwen3 causal").model_config.pooler_config
    raw = models.load("bert", pooler_config={"normalize": False}).model_config.pooler_config

    assert (mean.pooling_type, last.pooling_type, raw.pooling_type) == ("MEAN", "LAST", "CLS")
    assert (last.use_activation, raw.use_activation) == (True, False)


# activations


@pytest.mark.parametrize(
    ("problem", "activation"),
    [
        ("single_label_classification", lambda logits: logits.softmax(-1)),
        ("multi_label_classification", torch.sigmoid),
        ("regression", lambda logits: logits),
    ],
)
def test_the_problem_type_selects_the_activation(problem: str, activation: Any, models: Models) -> None:
    llm = models.load("bert classifier", hf_overrides={"problem_type": problem})

    logits = torch.stack(compute_logits(models.reference("bert classifier")))
    assert_close(classify(llm), activation(logits), atol=1e-4, rtol=1e-4)


def test_use_activation_false_gives_logits(models: Models) -> None:
    llm = models.load("bert classifier")

    logits = torch.stack(compute_logits(models.reference("bert classifier")))
    assert_close(classify(llm, RAW), logits, atol=1e-4, rtol=1e-4)
    reply = make_client(llm).post("/classify", json={"input": SEQUENCES, "use_activation": False}).json()
    assert_close(torch.tensor([item["probs"] for item in reply["data"]]), logits, atol=1e-4, rtol=1e-4)


# methods and heads


def test_pooling_methods(models: Models) -> None:
    states = compute_hidden_states(models.reference("bert"))

    expected = {
        "CLS": [rows[0] for rows in states],
        "LAST": [rows[-1] for rows in states],
        "MEAN": [rows.mean(dim=0) for rows in states],
    }
    for method, vectors in expected.items():
        llm = models.load("bert", pooler_config={"pooling_type": method, "normalize": False})
        assert_close(embed(llm), torch.stack(vectors), atol=1e-4, rtol=1e-4)
    every_token = models.load("bert", pooler_config={"pooling_type": "ALL", "normalize": False})
    assert_close(torch.cat(encode(every_token, SEQUENCES, "token_embed")), torch.cat(states), atol=1e-4, rtol=1e-4)
    with pytest.raises(LoadError, match="unknown pooling method 'FOO'; expected one of"):
        models.load("bert", pooler_config={"pooling_type": "FOO"})


def test_pooling_methods_are_functions_and_heads_are_parts_of_the_pooler(models: Models) -> None:
    batch = pack_sequences([[7, 8, 9], [5]])
    hidden = torch.arange(8.0).reshape(4, 2)

    assert POOLING_METHODS["CLS"](hidden, batch).tolist() == [[0, 1], [6, 7]]
    assert POOLING_METHODS["LAST"](hidden, batch).tolist() == [[4, 5], [6, 7]]
    assert POOLING_METHODS["MEAN"](hidden, batch).tolist() == [[2, 3], [6, 7]]
    heads = {name: models.load(name).engine.model.pooler.heads for name in ("projected bert", "bert classifier")}
    assert heads["projected bert"].projector is not None and heads["bert classifier"].classifier is not None
    for name in ("CLSPool", "LastPool", "MeanPool", "AllPool", "EmbeddingPoolerHead", "ClassifierPoolerHead"):
        assert not hasattr(cenote.pooling.pooler, name) and not hasattr(cenote.pooling.methods, name)


def test_head_order_is_projector_then_cut_then_normalise(models: Models) -> None:
    llm = models.load("projected bert", hf_overrides={"is_matryoshka": True}, pooler_config={"normalize": True})

    states = compute_hidden_states(models.reference("mean bert"))  # the same weights below the projector
    projected = torch.stack([rows.mean(dim=0) for rows in states]) @ models.reference("projected bert").T
    assert_close(embed(llm, dimensions=5), F.normalize(projected[:, :5], dim=-1), atol=1e-4, rtol=1e-4)


def test_openai_client_with_dimensions_and_normalize(embedding_server: ServerProcess) -> None:
    texts = [GREETING, "The best thing about vLLM"]

    with OpenAI(api_key="EMPTY", base_url=f"{embedding_server.address}/v1") as client:
        create: Any = client.embeddings.create
        with pytest.raises(TypeError, match="normalize"):  # raised by the client: the request is not sent
            create(input=texts, model=EMBEDDER, dimensions=384, normalize=True)
        default = create(input=texts, model=EMBEDDER, dimensions=384)
        vectors = {
            value: torch.tensor(
                [item.embedding for item in create(input=texts, model=EMBEDDER, extra_body={"normalize": value}).data]
            )
            for value in (True, False)
        }

    assert_close(torch.tensor([item.embedding for item in default.data]), vectors[True], atol=1e-5, rtol=1e-4)
    assert_close(vectors[True].norm(dim=-1), torch.ones(2))
    assert float(vectors[False].norm(dim=-1).min()) > 2


def test_step_pooling(models: Models) -> None:
    process, causal = models.reference("process rm"), compute_logits(models.reference("qwen3 causal"))

    llm = models.load("process rm", pooler_config={"step_tag_id": STEP})
    words = models.load("qwen3 causal", pooler_config=SHEPHERD)

    for model, expected in [
        (llm, [rows.softmax(-1) for rows in process]),
        (words, [rows[:, [GOOD, BAD]].softmax(-1) for rows in causal]),
    ]:
        actual = data_of(model.reward(SEQUENCES, use_tqdm=False))
        assert [len(rows) for rows in actual] == [ids.count(STEP) for ids in SEQUENCES]
        assert_close(torch.cat(actual), torch.cat(at_steps(expected)), atol=1e-4, rtol=1e-4)
    columns = PoolingParams(step_tag_id=50, returned_token_ids=[5, 6])
    chosen = torch.cat(at_steps([rows[:, [5, 6]].softmax(-1) for rows in causal], 50))
    assert_close(torch.cat(data_of(words.reward(SEQUENCES, pooling_params=columns, use_tqdm=False))), chosen)
