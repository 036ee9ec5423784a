"""The methods of `LLM`: signatures, outputs, params, invalid requests, progress bar, long texts, prompts, shutdown."""

from __future__ import annotations

import functools
import gc
import inspect
import io
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close
from tqdm import tqdm

from cenote import LLM, BadRequest, EngineStopped, InputTooLong, LoadError, PoolerConfig, PoolingParams, Unsupported
from cenote.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingRequestOutput,
    RequestError,
    ScoringOutput,
    ScoringRequestOutput,
)
from tests.tiny import WORDS, change_config, compute_logits, tiny_bert, tiny_bert_classifier, tiny_bert_token_classifier

MakeTiny = Callable[..., LLM]
RAW = PoolingParams(use_activation=False)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny checkpoints: 160 token ids, 66 positions, hidden size 32."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("embedder", "classifier", "cross", "tagger")}
    tiny_bert(folders["embedder"])
    tiny_bert_classifier(folders["classifier"], num_labels=3)
    tiny_bert_classifier(folders["cross"], num_labels=1)
    tiny_bert_token_classifier(folders["tagger"], num_labels=4)
    return folders


@pytest.fixture
def tiny(folders: dict[str, Path]) -> Iterator[MakeTiny]:
    """Load one of the tiny checkpoints with options; closed after the test."""
    opened: list[LLM] = []

    def load(name: str = "embedder", **options: Any) -> LLM:
        opened.append(LLM(str(folders[name]), dtype="float32", device="cpu", served_model_name="tiny", **options))
        return opened[-1]

    yield load
    for llm in opened:
        llm.close()


def get_vectors(outputs: list[Any]) -> torch.Tensor:
    return torch.stack([output.outputs.data for output in outputs])


# signatures


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (
            LLM.encode,
            "prompts, pooling_params=None, *, use_tqdm=True, lora_request=None, pooling_task=None, "
            "tokenization_kwargs=None",
        ),
        (LLM.embed, "prompts, *, use_tqdm=True, pooling_params=None, lora_request=None, tokenization_kwargs=None"),
        (LLM.classify, "prompts, *, pooling_params=None, use_tqdm=True, lora_request=None, tokenization_kwargs=None"),
        (LLM.reward, "prompts, *, pooling_params=None, use_tqdm=True, lora_request=None, tokenization_kwargs=None"),
        (
            LLM.score,
            "data_1, data_2, /, *, use_tqdm=True, pooling_params=None, lora_request=None, tokenization_kwargs=None, "
            "chat_template=None",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_methods_have_the_signatures_of_vllm(method: Callable[..., Any], expected: str) -> None:
    parameters = [
        item.replace(annotation=inspect.Parameter.empty) for item in inspect.signature(method).parameters.values()
    ]
    ours = str(inspect.Signature(parameters[1:]))[1:-1]

    assert ours == expected or ours.startswith(f"{expected}, ")  # additional arguments come last


# outputs


def test_an_embedding_is_a_normalised_list_of_floats(llm: LLM) -> None:
    (output,) = llm.embed("Hello, my name is")

    assert isinstance(output, EmbeddingRequestOutput)
    assert isinstance(output.outputs, EmbeddingOutput)
    assert output.outputs.hidden_size == len(output.outputs.embedding) == 384
    assert all(type(number) is float for number in output.outputs.embedding)
    assert sum(number**2 for number in output.outputs.embedding) == pytest.approx(1.0, abs=1e-5)
    assert output.prompt_token_ids == [101, 7592, 1010, 2026, 2171, 2003, 102]
    assert output.num_prompt_tokens == output.num_input_tokens == 7
    assert output.num_cached_tokens == 0
    assert output.finished is True
    assert output.outputs.data.device.type == "cpu"
    assert "hidden_size=384" in repr(output)


def test_probabilities_match_transformers(tiny: MakeTiny, folders: dict[str, Path]) -> None:
    reference = tiny_bert_classifier(folders["classifier"], num_labels=3)
    llm = tiny("classifier")

    outputs = llm.classify(["the cat", "a red bird"])

    assert isinstance(outputs[0], ClassificationRequestOutput)
    assert isinstance(outputs[0].outputs, ClassificationOutput)
    assert outputs[0].outputs.num_classes == len(outputs[0].outputs.probs) == 3
    expected = torch.stack(compute_logits(reference, [output.prompt_token_ids for output in outputs]))
    assert_close(get_vectors(outputs), expected.softmax(dim=-1), atol=1e-5, rtol=1e-4)
    assert_close(
        get_vectors(llm.classify(["the cat", "a red bird"], pooling_params=RAW)), expected, atol=1e-4, rtol=1e-4
    )


def test_a_score_is_a_number(llm: LLM) -> None:
    (output,) = llm.score("What is the capital of France?", "Paris")

    assert isinstance(output, ScoringRequestOutput)
    assert isinstance(output.outputs, ScoringOutput)
    assert type(output.outputs.score) is float
    assert 0.3 < output.outputs.score < 1.0


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (EmbeddingOutput, "pooled_data should be a 1-D embedding vector"),
        (ClassificationOutput, "pooled_data should be a 1-D probability vector"),
    ],
)
def test_output_data_of_the_wrong_shape_is_refused(output: Any, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        output(torch.zeros(2, 3))


def test_request_ids_are_increasing_numbers(llm: LLM) -> None:
    ids = [output.request_id for _ in range(3) for output in llm.embed(["a", "b"])]

    assert ids == [str(int(ids[0]) + step) for step in range(6)]


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    texts = [" ".join(["word"] * (1 + 7 * number % 50)) + f" {number}" for number in range(60)]

    together = get_vectors(llm.embed(texts))

    assert_close(together, torch.cat([get_vectors(llm.embed(text)) for text in texts]), atol=1e-5, rtol=1e-4)


def test_properties_of_the_loaded_model(llm: LLM, tiny: MakeTiny) -> None:
    assert llm.supported_tasks == ("embed", "token_embed")
    assert llm.pooling_task == "embed"
    assert llm.model_config.hf_config.hidden_size == 384
    assert llm.labels is None
    assert llm.get_tokenizer().encode("a").ids == [101, 1037, 102]
    classifier = tiny("classifier", hf_overrides={"id2label": {"0": "bad", "1": "fair", "2": "good"}})
    assert classifier.labels == ["bad", "fair", "good"]
    assert classifier.supported_tasks == ("classify", "token_classify")
    cross = tiny("cross")
    assert cross.supported_tasks == ("classify", "token_classify", "score")
    for each in (llm, classifier, cross):
        assert each.engine.model.pooler.get_supported_tasks() == set(each.supported_tasks)


def test_the_model_config_shows_the_pooling_settings_in_use(llm: LLM, tiny: MakeTiny) -> None:
    shown = llm.model_config.pooler_config
    assert (shown.pooling_type, shown.seq_pooling_type, shown.tok_pooling_type) == ("MEAN", "MEAN", "ALL")
    assert shown.use_activation is True
    shown = tiny(pooler_config={"pooling_type": "LAST", "normalize": False}).model_config.pooler_config
    assert (shown.pooling_type, shown.use_activation) == ("LAST", False)
    assert tiny("tagger").model_config.pooler_config.pooling_type == "ALL"
    assert not llm.model_config.is_matryoshka
    assert llm.model_config.matryoshka_dimensions is None
    assert llm.model_config.head_dtype == torch.float32


def test_parameters_can_be_verified_for_a_model(llm: LLM, tiny: MakeTiny) -> None:
    params = PoolingParams()
    params.verify("embed", tiny(pooler_config={"use_activation": False}).model_config)
    assert params == PoolingParams(task="embed", use_activation=False)
    with pytest.raises(ValueError, match="does not support matryoshka representation"):
        PoolingParams(dimensions=8).verify("embed", llm.model_config)
    with pytest.raises(ValueError, match=r"Task 'embed' only supports \['dimensions', 'normalize'\] parameters"):
        PoolingParams(step_tag_id=3).verify("embed", llm.model_config)
    params = PoolingParams(task="embed", normalize=True)
    params.verify(llm.model_config)  # the signature of newer versions of vLLM
    assert params == PoolingParams(task="embed", use_activation=True)


def test_verify_accepts_any_model_config_and_refuses_names_that_are_not_tasks() -> None:
    PoolingParams(dimensions=4).verify("embed", SimpleNamespace(pooler_config=PoolerConfig()))
    PoolingParams(dimensions=4).verify("embed&token_classify")
    PoolingParams(dimensions=4).verify("plugin")
    with pytest.raises(BadRequest, match="unknown task 'junk'; expected one of: embed"):
        PoolingParams().verify("junk")
    with pytest.raises(BadRequest, match="`encode` task was removed"):
        PoolingParams().verify("encode")


def test_extra_token_types_are_refused(tiny: MakeTiny) -> None:
    params = PoolingParams(extra_kwargs={"compressed_token_type_ids": 2})
    with pytest.raises(Unsupported, match="compressed_token_type_ids is not supported"):
        tiny("cross").classify([[2, 7, 3]], pooling_params=params)


# parameters


def test_without_activation_an_embedding_is_not_normalised(llm: LLM) -> None:
    (plain,) = get_vectors(llm.embed("a b c"))
    (new,) = get_vectors(llm.embed("a b c", pooling_params=PoolingParams(use_activation=False)))
    (old,) = get_vectors(llm.embed("a b c", pooling_params=PoolingParams(normalize=False)))

    assert_close(new, old)
    assert abs(float(new.norm()) - 1) > 0.1
    assert_close(F.normalize(new, dim=0), plain)


def test_parameters_are_not_changed_by_a_call(llm: LLM) -> None:
    params = PoolingParams()

    llm.embed("a", pooling_params=params)
    llm.encode("a", params, pooling_task="token_embed")

    assert params == PoolingParams()


def test_the_task_of_the_parameters_may_agree(llm: LLM, tiny: MakeTiny) -> None:
    assert len(llm.embed("a", pooling_params=PoolingParams(task="embed"))) == 1
    cross = tiny("cross")
    assert len(cross.encode("a", PoolingParams(task="score"), pooling_task="score")) == 1
    with pytest.raises(BadRequest, match="You cannot overwrite param.task='score' with pooling_task='embed'!"):
        llm.embed("a", pooling_params=PoolingParams(task="score"))


def test_score_is_an_alias_of_the_classify_task_of_cross_encoders(llm: LLM, tiny: MakeTiny) -> None:
    cross = tiny("cross")

    (new,), (old,) = (cross.encode("the cat", pooling_task=task) for task in ("classify", "score"))

    assert_close(new.outputs.data, old.outputs.data)
    for other in (llm, tiny("classifier")):
        with pytest.raises(Unsupported, match="task `score` requires a cross-encoder"):
            other.encode("a", pooling_task="score")


def test_an_input_without_a_finite_result_fails_alone(tmp_path: Path) -> None:
    reference = tiny_bert(tmp_path)
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    with torch.no_grad():
        reference.get_input_embeddings().weight[vocabulary["bird"]] = torch.nan
    reference.save_pretrained(tmp_path)

    with LLM(str(tmp_path), dtype="float32", device="cpu") as llm:
        outputs = llm.embed(["the cat", "a bird", "two"], use_tqdm=False)
        scores = llm.score("the cat", ["two", "a bird"], use_tqdm=False)
        with pytest.raises(InputTooLong):
            llm.embed(["a bird", "two " * 5000], use_tqdm=False)

    expected = RequestError("numerical_error", "the model output for this input contains NaN or infinity")
    assert [output.error for output in outputs] == [None, expected, None]
    assert [output.request_id for output in outputs] == ["0", "1", "2"]
    assert [output.error for output in scores] == [None, expected]
    assert len(outputs[2].outputs.embedding) == 32


def test_the_deprecated_task_option_is_accepted(tiny: MakeTiny, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "cenote"):
        assert tiny(task="embed").supported_tasks == ("embed", "token_embed")
        assert tiny("cross", task="score").supported_tasks == ("classify", "token_classify", "score")
        assert tiny("tagger", task="reward").supported_tasks == ("token_classify",)
    assert "task=embed is deprecated; use --runner pooling --convert embed" in caplog.messages


def test_a_task_in_the_pooler_config_disables_other_tasks(tiny: MakeTiny) -> None:
    llm = tiny(pooler_config={"task": "token_embed"})

    assert llm.supported_tasks == ("token_embed",)
    with pytest.raises(
        Unsupported, match=r'^Try switching the model\'s pooling_task via `PoolerConfig\(task="embed"\)`'
    ):
        llm.encode("a", pooling_task="embed")
    with pytest.raises(Unsupported, match="^Classification API is not supported by this model."):
        llm.encode("a", pooling_task="classify")
    (tokens,), (embedded,) = llm.encode("a", pooling_task="token_embed"), llm.embed("a")
    assert isinstance(embedded, PoolingRequestOutput)
    assert embedded.outputs.data.equal(tokens.outputs.data)
    with pytest.raises(LoadError, match="Unsupported task: 'classify'"):
        tiny(pooler_config={"task": "classify"})


# Matryoshka


def test_listed_sizes_are_truncated_and_normalised_again(tiny: MakeTiny) -> None:
    llm = tiny(hf_overrides={"matryoshka_dimensions": [8, 16]})
    (whole,) = get_vectors(llm.embed("the cat", pooling_params=RAW))

    for size in (8, 16):
        (short,) = get_vectors(llm.embed("the cat", pooling_params=PoolingParams(dimensions=size)))
        assert_close(short, F.normalize(whole[:size], dim=0))
    with pytest.raises(BadRequest) as caught:
        llm.embed("the cat", pooling_params=PoolingParams(dimensions=9))
    assert caught.value.message == (
        'Model "tiny" only supports [8, 16] matryoshka dimensions, '
        "use other output dimensions will lead to poor results."
    )


def test_any_size_is_accepted_where_no_list_of_sizes_is_given(tiny: MakeTiny) -> None:
    llm = tiny(hf_overrides={"is_matryoshka": True}, pooler_config={"dimensions": 4})

    assert get_vectors(llm.embed("a")).shape == (1, 4)
    for size in (1, 5, 32):
        assert get_vectors(llm.embed("a", pooling_params=PoolingParams(dimensions=size))).shape == (1, size)
    for size in (0, -1, 33):
        with pytest.raises(BadRequest, match=rf"only supports dimensions in range \[1, 32\], got {size}."):
            llm.embed("a", pooling_params=PoolingParams(dimensions=size))


# invalid requests: an error, and the next request succeeds

TOO_LONG = "This model's maximum context length is 256 tokens. However, you requested 0 output tokens and your prompt "
REFUSALS: list[tuple[str, Callable[[LLM], Any], type[Exception], str]] = [
    ("no prompts", lambda m: m.embed([]), BadRequest, "You must pass at least one prompt"),
    ("no ids", lambda m: m.embed([[]]), BadRequest, "The decoder prompt cannot be empty"),
    ("no ids in a dict", lambda m: m.embed({"prompt_token_ids": []}), BadRequest, "The decoder prompt cannot be empty"),
    ("a negative id", lambda m: m.embed([[-1]]), BadRequest, "Token id -1 is out of vocabulary"),
    ("an id too large", lambda m: m.embed([30522]), BadRequest, "Token id 30522 is out of vocabulary"),
    ("an id of 70 bits", lambda m: m.embed([[2**70]]), BadRequest, f"Token id {2**70} is out of vocabulary"),
    ("a bool", lambda m: m.embed([[True]]), BadRequest, "Token prompt should be a list of integers"),
    ("a float", lambda m: m.embed([[1.0]]), BadRequest, "Token prompt should be a list of integers"),
    ("a number", lambda m: m.embed(5), BadRequest, "Prompt should be a string, list of tokens, or dictionary"),
    ("an empty dict", lambda m: m.embed({}), BadRequest, "Prompt dictionary must contain text, tokens, or embeddings"),
    ("ids too many", lambda m: m.embed([[7] * 300]), InputTooLong, f"{TOO_LONG}contains 300 input tokens"),
    ("one id too many", lambda m: m.embed([[7] * 257]), InputTooLong, f"{TOO_LONG}contains at least 257 input tokens"),
    ("a text too long", lambda m: m.embed("a " * 300), InputTooLong, f"{TOO_LONG}contains 302 input tokens"),
    ("a huge text", lambda m: m.embed("a" * 10**6), InputTooLong, f"{TOO_LONG}contains 1000000 characters"),
    ("a surrogate", lambda m: m.embed("\ud800"), BadRequest, "not valid Unicode"),
    (
        "truncation too large",
        lambda m: m.embed("a", tokenization_kwargs={"truncate_prompt_tokens": 257}),
        BadRequest,
        "truncate_prompt_tokens=257 cannot be greater than max_model_len - max_output_tokens = 256",
    ),
    (
        "a third side",
        lambda m: m.embed("a", tokenization_kwargs={"truncation_side": "up"}),
        BadRequest,
        "`truncation_side` must be either 'left' or 'right'.",
    ),
    (
        "params too few",
        lambda m: m.embed(["a", "b"], pooling_params=[PoolingParams()]),
        BadRequest,
        r"The lengths of prompts \(2\) and params \(1\) must be the same.",
    ),
    ("params of another type", lambda m: m.embed("a", pooling_params={"normalize": True}), BadRequest, "PoolingParams"),
    ("both spellings", lambda m: PoolingParams(normalize=True, use_activation=False), BadRequest, "deprecated alias"),
    (
        "a parameter of another pooling",
        lambda m: m.embed("a", pooling_params=PoolingParams(step_tag_id=5)),
        BadRequest,
        r"only supports \['dimensions', 'normalize'\] parameters, does not support \['step_tag_id'\] parameters",
    ),
    ("a LoRA", lambda m: m.embed("a", lora_request="x"), Unsupported, "Got lora_request x but LoRA is not enabled!"),
    (
        "the task encode",
        lambda m: m.encode("a", pooling_task="encode"),
        BadRequest,
        "`token_embed` or `token_classify`",
    ),
    ("no such task", lambda m: m.encode("a", pooling_task="dance"), Unsupported, "Unsupported task: 'dance' Supported"),
    ("a plugin", lambda m: m.encode("a", pooling_task="plugin"), Unsupported, "^No IOProcessor plugin installed."),
    (
        "data without a plugin",
        lambda m: m.encode({"data": 5}, pooling_task="embed"),
        BadRequest,
        "The 'data' field is only supported for the 'plugin' pooling task.",
    ),
    (
        "classify",
        lambda m: m.classify("a"),
        Unsupported,
        "^Classification API is not supported by this model. It has no classifier: load a model that has one",
    ),
    ("reward", lambda m: m.reward("a"), Unsupported, "^Classification API is not supported by this model."),
    (
        "embeddings",
        lambda m: m.embed({"prompt_embeds": torch.zeros(2, 384)}),
        Unsupported,
        "You must set `--enable-prompt-embeds` to input `prompt_embeds`.",
    ),
    ("an image", lambda m: m.embed({"prompt": "a", "multi_modal_data": {"image": 1}}), Unsupported, "reads text only"),
    ("no such prompt", lambda m: m.embed("a", prompt_name="query"), BadRequest, "unknown prompt_name 'query'"),
]


@pytest.mark.parametrize(("call", "error", "message"), [row[1:] for row in REFUSALS], ids=[row[0] for row in REFUSALS])
def test_an_invalid_request_raises_and_the_next_one_succeeds(
    llm: LLM, call: Callable[[LLM], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        call(llm)

    assert isinstance(caught.value, ValueError)  # as in vLLM
    assert len(llm.embed("a")) == 1


def test_a_missing_task_is_refused_with_the_supported_tasks(llm: LLM) -> None:
    with pytest.raises(BadRequest, match="^pooling_task required for `LLM.encode`.") as caught:
        llm.encode("a")
    for word in ("LLM.embed", "LLM.classify", "LLM.score", "LLM.reward", "token_embed", "token_classify", "plugin"):
        assert word in str(caught.value)


def test_parameters_wrong_for_a_classifier_are_refused(tiny: MakeTiny) -> None:
    llm = tiny("classifier")

    with pytest.raises(BadRequest) as caught:
        llm.classify("a", pooling_params=PoolingParams(dimensions=5))
    assert caught.value.message == (
        "Task 'classify' only supports ['use_activation'] parameters, does not support ['dimensions'] parameters"
    )
    with pytest.raises(Unsupported, match="^Embedding API is not supported .* `--convert embed`."):
        llm.embed("a")
    assert len(llm.classify("a")) == 1


def test_the_error_for_a_converted_classifier_names_the_conversion_to_use(tiny: MakeTiny) -> None:
    with pytest.raises(Unsupported, match="^Classification API is not supported .* `--convert classify`."):
        tiny("classifier", convert="embed").classify("a")

    assert len(tiny("classifier", convert="classify").classify("a")) == 1


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"config\.json"):
        LLM(str(tmp_path))
    (tmp_path / "notes.txt").write_text("no model")
    with pytest.raises(LoadError, match="is a file; expected the folder"):
        LLM(str(tmp_path / "notes.txt"))


def test_an_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    tiny_bert(tmp_path)
    change_config(tmp_path, architectures=["MambaModel"])

    with pytest.raises(LoadError, match=r"unknown architectures \['MambaModel'\]; expected one of: Bert\*"):
        LLM(str(tmp_path), model_impl="cenote")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runner": "generate"}, "Cenote runs pooling models"),
        ({"convert": "classify"}, "has no classification head"),
        ({"max_model_len": 67}, r"max_model_len \(67\) is greater than the derived max_model_len"),
        ({"pooler_config": {"pooling_type": "MODE"}}, "unknown pooling method 'MODE'; expected one of:"),
        ({"dtype": "int8"}, "invalid dtype='int8'; expected one of: auto"),
        ({"device": "abacus"}, "invalid device='abacus'; expected one of: cpu, cuda"),
        ({"max_num_seqs": 0}, "max_num_seqs must be greater than 0"),
        ({"temperature": 1}, "unknown engine option 'temperature'"),
    ],
    ids=str,
)
def test_invalid_options_are_refused_at_load_time(
    folders: dict[str, Path], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LLM(str(folders["embedder"]), **options)


# truncation


def test_a_truncated_text_reports_its_original_length(llm: LLM) -> None:
    (output,) = llm.embed("a " * 500, tokenization_kwargs={"truncate_prompt_tokens": -1})

    assert output.num_prompt_tokens == 256
    assert output.num_input_tokens == 502
    assert output.prompt_token_ids[-1] == 102


def test_a_text_of_the_models_length_fits(tiny: MakeTiny) -> None:
    llm = tiny(max_model_len=20)

    assert llm.embed([[7] * 20])[0].num_prompt_tokens == 20
    with pytest.raises(InputTooLong, match="maximum context length is 20 tokens"):
        llm.embed([[7] * 21])


# progress bar


def test_a_progress_bar_on_a_terminal_shows_the_progress_of_a_call(
    llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    llm.embed(["a"] * 5)

    shown = capsys.readouterr().err
    assert "Processed prompts: 100%" in shown
    assert "5/5" in shown
    assert "est. speed input: " in shown
    assert "toks/s, output: 0.00 toks/s" in shown


def test_the_progress_of_a_short_call_leaves_nothing_in_a_log(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.embed(["a"] * 5)

    assert capsys.readouterr().err == ""


def test_use_tqdm_false_shows_no_progress_bar(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.embed(["a"] * 5, use_tqdm=False)
    llm.score("a", "b", use_tqdm=False)

    captured = capsys.readouterr()
    assert captured.err == captured.out == ""


def test_use_tqdm_accepts_a_callable(llm: LLM) -> None:
    bars: list[Any] = []
    stream = io.StringIO()

    def make(**options: Any) -> Any:
        bars.append((options, tqdm(file=stream, **options)))
        return bars[-1][1]

    llm.embed(["a b"] * 7, use_tqdm=make)
    llm.score("a", ["b", "c"], use_tqdm=make)
    llm.embed("a", use_tqdm=functools.partial(tqdm, leave=False, file=stream))
    llm.embed("a", use_tqdm=functools.partial(tqdm, disable=True))

    assert [(options["desc"], options["total"]) for options, _ in bars] == [
        ("Processed prompts", 7),
        ("Processed prompts", 3),
    ]
    assert [bar.n for _, bar in bars] == [7, 3]
    assert bars[0][0]["dynamic_ncols"] is True
    assert bars[0][0]["postfix"] == "est. speed input: 0.00 toks/s, output: 0.00 toks/s"


def test_the_progress_bar_is_closed_when_the_call_fails(llm: LLM) -> None:
    bars: list[Any] = []

    def make(**options: Any) -> Any:
        bars.append(tqdm(file=io.StringIO(), **options))
        return bars[-1]

    with pytest.raises(BadRequest):
        llm.embed([[-1]], use_tqdm=make)

    assert bars[0].disable  # tqdm sets it when the bar is closed


# long texts


def random_words(count: int) -> str:
    generator = torch.Generator().manual_seed(0)
    return " ".join(WORDS[index] for index in torch.randint(len(WORDS), (count,), generator=generator).tolist())


def test_a_long_text_is_the_weighted_mean_of_its_chunks(tiny: MakeTiny, caplog: pytest.LogCaptureFixture) -> None:
    llm = tiny(pooler_config=PoolerConfig(pooling_type="MEAN", enable_chunked_processing=True))
    text = random_words(153)
    ids = llm.get_tokenizer().encode(text).ids
    assert len(ids) == 155
    chunks = [ids[:66], ids[66:132], ids[132:]]

    with caplog.at_level(logging.INFO, "cenote"):
        (whole,) = llm.embed(text)
        messages = list(caplog.messages)
    parts = get_vectors(llm.embed(chunks))

    weights = torch.tensor([66.0, 66.0, 23.0])[:, None]
    mean = (parts * weights).sum(dim=0) / weights.sum()
    assert_close(whole.outputs.data, F.normalize(mean, dim=0), atol=1e-5, rtol=1e-4)
    assert messages == [
        "Input length 155 exceeds max_position_embeddings 66, will use chunked processing",
        "Split input of 155 tokens into 3 chunks (max_chunk_size: 66)",
    ]
    assert whole.prompt_token_ids == ids


def test_without_activation_chunks_are_merged_raw(tiny: MakeTiny) -> None:
    llm = tiny(pooler_config=PoolerConfig(pooling_type="MEAN", enable_chunked_processing=True))
    ids = [7 + number % 90 for number in range(100)]
    parts = get_vectors(llm.embed([ids[:66], ids[66:]], pooling_params=RAW))

    (whole,) = get_vectors(llm.embed([ids], pooling_params=RAW))

    assert_close(whole, (parts[0] * 66 + parts[1] * 34) / 100, atol=1e-5, rtol=1e-4)


def test_long_and_short_texts_can_be_mixed_in_one_call(tiny: MakeTiny) -> None:
    llm = tiny(pooler_config={"enable_chunked_processing": True})
    prompts = [random_words(200), "the cat", random_words(66), [7] * 66, [7] * 67]

    together = llm.embed(prompts)

    alone = torch.cat([get_vectors(llm.embed([prompt] if isinstance(prompt, list) else prompt)) for prompt in prompts])
    assert_close(get_vectors(together), alone, atol=1e-5, rtol=1e-4)
    assert [output.num_prompt_tokens for output in together] == [202, 4, 68, 66, 67]


def test_a_text_that_fits_is_not_chunked(tiny: MakeTiny, caplog: pytest.LogCaptureFixture) -> None:
    llm = tiny(pooler_config={"enable_chunked_processing": True})
    plain = tiny()

    with caplog.at_level(logging.INFO, "cenote"):
        caplog.clear()
        assert_close(get_vectors(llm.embed("the cat")), get_vectors(plain.embed("the cat")))
    assert caplog.messages == []


@pytest.mark.parametrize(("chunked", "limit"), [(True, 200), (True, 20), (False, 20)])
def test_max_embed_len_is_enforced_with_both_numbers(tiny: MakeTiny, chunked: bool, limit: int) -> None:
    llm = tiny(pooler_config=PoolerConfig(enable_chunked_processing=chunked, max_embed_len=limit))

    assert llm.embed([[7] * limit])[0].num_prompt_tokens == limit
    with pytest.raises(InputTooLong, match=f"Input length {limit + 1} exceeds max_embed_len {limit}"):
        llm.embed([[7] * (limit + 1)])
    assert len(llm.embed("the cat")) == 1


def test_max_embed_len_above_max_model_len_has_no_effect_without_chunking(tiny: MakeTiny) -> None:
    llm = tiny(pooler_config={"max_embed_len": 500})

    with pytest.raises(InputTooLong, match="maximum context length is 66 tokens"):
        llm.embed([[7] * 67])


def test_a_text_is_truncated_before_it_is_chunked(tiny: MakeTiny) -> None:
    llm = tiny(pooler_config={"enable_chunked_processing": True})

    (truncated,) = llm.embed(random_words(300), tokenization_kwargs={"truncate_prompt_tokens": 100})
    (whole,) = llm.embed(random_words(300), tokenization_kwargs={"truncate_prompt_tokens": -1})

    assert (truncated.num_prompt_tokens, truncated.num_input_tokens) == (100, 302)
    assert whole.num_prompt_tokens == 302


def test_other_tasks_are_not_chunked(tiny: MakeTiny) -> None:
    llm = tiny(pooler_config={"enable_chunked_processing": True})

    with pytest.raises(InputTooLong, match="maximum context length is 66 tokens"):
        llm.encode([[7] * 67], pooling_task="token_embed")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_a_very_long_text_needs_little_memory(tiny: MakeTiny) -> None:
    llm = tiny(pooler_config={"enable_chunked_processing": True})
    text = random_words(200_000)
    llm.embed(random_words(5000))
    stopped = threading.Event()
    peak = before = resident_bytes()

    def watch() -> None:
        nonlocal peak
        while not stopped.wait(0.005):
            peak = max(peak, resident_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    (output,) = llm.embed(text)
    stopped.set()
    watcher.join()

    assert output.num_prompt_tokens == 200_002
    assert peak - before < 100 * 2**20


# prompts given as embeddings


def test_prompt_embeds_give_the_same_result_as_token_ids(tiny: MakeTiny) -> None:
    llm = tiny(enable_prompt_embeds=True, pooler_config={"enable_chunked_processing": True})
    table = torch.tensor(llm.engine.model.backbone.embed.tokens)
    prompts = [[2, 7, 8, 9, 3], [2, 3], [7 + number % 90 for number in range(150)]]

    by_rows = get_vectors(llm.embed([{"prompt_embeds": table[ids]} for ids in prompts]))
    mixed = get_vectors(llm.embed([prompts[0], {"prompt_embeds": table[prompts[1]]}, prompts[2]]))

    by_ids = get_vectors(llm.embed(prompts))
    assert_close(by_rows, by_ids, atol=1e-5, rtol=1e-4)
    assert_close(mixed, by_ids, atol=1e-5, rtol=1e-4)
    with pytest.raises(BadRequest, match=r"prompt_embeds has shape \(3, 31\); this model expects \[tokens, 32\]"):
        llm.embed({"prompt_embeds": torch.zeros(3, 31)})


# prompts by name


# shutdown


def test_a_closed_model_raises_at_once(tiny: MakeTiny) -> None:
    llm = tiny()
    llm.close()

    started_at = time.monotonic()
    with pytest.raises(EngineStopped):
        llm.embed("a")
    with pytest.raises(EngineStopped):
        llm.score("a", "b")
    llm.close()
    assert time.monotonic() - started_at < 1


def test_a_garbage_collected_model_stops_its_threads(tiny: MakeTiny, folders: dict[str, Path]) -> None:
    llm = LLM(str(folders["embedder"]), dtype="float32", device="cpu")
    core = llm.engine.core
    threads = [worker.thread for worker in (core.loop, core.watchdog, llm.engine.tokenizer_worker)]
    llm.embed("a")

    del llm, core
    gc.collect()

    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_many_threads_may_share_a_model(llm: LLM) -> None:
    expected = get_vectors(llm.embed(["a b", "c"]))
    differing: list[object] = []

    def call() -> None:
        for _ in range(5):
            embeddings = get_vectors(llm.embed(["a b", "c"], use_tqdm=False))
            if not torch.allclose(embeddings, expected, atol=1e-5):
                differing.append(embeddings)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not differing
