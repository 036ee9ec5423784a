"""Options of the server from the command line, the environment and a file, in the reference's words as well as ours."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import cenote
from cenote import LLM
from cenote.api.app import build_app
from cenote.api.app_state import AppState
from cenote.cli.main import main
from cenote.cli.serve import make_parser, parse_config
from cenote.config.engine import EngineConfig
from cenote.config.options import option_fields
from cenote.config.pooler import PoolerConfig
from cenote.config.server import ServerConfig
from cenote.errors import BadRequest, LoadError


def server(*argv: str, **environment: str) -> ServerConfig:
    return parse_config(argv, environment)[0]


def engine(*argv: str, **environment: str) -> EngineConfig:
    return EngineConfig.from_kwargs(**parse_config(argv, environment)[1])


def error(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["serve", *argv]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    return printed


def test_without_anything_the_defaults_hold() -> None:
    assert server() == ServerConfig()
    assert engine() == EngineConfig()


def test_the_model_comes_first_or_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert engine("some/model").model == engine("--model", "some/model").model == "some/model"
    assert engine("--port", "1", "some/model", "--dtype", "float32").model == "some/model"
    assert "two models: a and --model b" in error(capsys, "a", "--model", "b")


@pytest.mark.parametrize("port", ["65536", "99999", "-1", "80.5", "http"])
def test_a_port_that_does_not_exist_is_refused(port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "is not a port; give a number from 1 to 65535, or 0 for any that is free"

    assert f"argument --port: {port!r} {words}" in error(capsys, "--port", port)
    assert f"{port!r} {words}" in error(capsys, "--config", written(tmp_path, f"port: {port}"))


def test_every_port_that_exists_is_taken() -> None:
    assert [server("--port", port).port for port in ("0", "1", "65535")] == [0, 1, 65535]


def test_several_names_and_keys_in_one_flag_or_in_many() -> None:
    assert server("m", "--served-model-name", "a", "b", "c").served_model_name == ("a", "b", "c")
    assert server("--api-key", "k1", "k2", "--api_key", "k3", "--api-key=k4").api_key == ("k1", "k2", "k3", "k4")
    assert engine("--served-model-name", "a", "b").served_model_name == "a"


def test_the_model_may_follow_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--served-model-name", "a", "b", "--", "some/model"]

    assert engine(*line).model == "some/model"
    assert server(*line).served_model_name == ("a", "b")
    assert engine("--", "-odd-").model == "-odd-"
    assert "unexpected 'b'" in error(capsys, "a", "--", "b")
    assert "unexpected 'b'" in error(capsys, "--", "a", "b")
    assert "two models: a and --model b" in error(capsys, "--model", "b", "--", "a")


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        ("--served-model-name prod BAAI/bge-m3", "--served-model-name"),
        ("--served_model_name prod BAAI/bge-m3 --port 1", "--served-model-name"),
        ("--api-key SECRET my/model --api-key k1 k2", "--api-key"),
        ("--allowed-origins https://a my/model", "--allowed-origins"),
        ("--served-model-name prod FOLDER", "--served-model-name"),
    ],
)
def test_a_model_after_a_flag_of_several_values_is_refused_with_a_hint(
    words: str, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "FOLDER").mkdir()
    monkeypatch.chdir(tmp_path)

    printed = error(capsys, *words.split())

    assert f"the last word of {flag} looks like the model; put the model first: cenote serve MODEL {flag}" in printed
    assert "my/model" not in printed  # it might be a key


def test_words_that_look_like_a_model_are_fine_where_one_is_named(tmp_path: Path) -> None:
    names = ["--served-model-name", "a", "team/b"]

    assert engine("some/model", *names).model == engine(*names, "--model", "some/model").model == "some/model"
    assert engine(*names, CENOTE_MODEL="some/model").model == "some/model"
    assert engine(*names, "--config", written(tmp_path, "model: some/model")).model == "some/model"
    assert server("--served-model-name", "team/b").served_model_name == ("team/b",)
    assert server("--api-key=k1", "--api-key=k/2").api_key == ("k1", "k/2")


@pytest.mark.parametrize(
    "words", [["https://a", "https://b"], ['["https://a", "https://b"]'], ['["https://a"]', "https://b"]]
)
def test_origins_are_words_or_a_json_list(words: list[str]) -> None:
    assert server("--allowed-origins", *words).allowed_origins == ("https://a", "https://b")


def test_every_option_has_a_flag_and_a_place_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0

    text = " ".join(capsys.readouterr().out.split())
    for option in option_fields(ServerConfig):
        assert f"--{option.name.replace('_', '-')}" in text
        assert option.metadata["help"] in text


@pytest.mark.parametrize(
    "words",
    [
        "--host 0.0.0.0 --port 8000 --uds /tmp/s",
        "--api-key a b --served-model-name a b",
        "--runner pooling --convert embed --task embed",
        '--pooler-config {"pooling_type":"MEAN"} --override-pooler-config {"pooling_type":"MEAN"}',
        '--hf-overrides {"a":1} --hf_overrides {"a":1}',
        "--trust-request-chat-template --chat-template {{x}} --chat-template-content-format string",
        '--default-chat-template-kwargs {"a":1}',
        "--max-model-len 8k --max-num-seqs 4 --max-num-batched-tokens 100",
        "--dtype half --tensor-parallel-size 1 --data-parallel-size 1 --gpu-memory-utilization 0.9 --enforce-eager",
        "--tokenizer a --tokenizer-mode auto --tokenizer-revision b --revision c --trust-remote-code --hf-token d",
        "--no-enable-prefix-caching --enable-chunked-prefill --scheduling-policy priority",
        "--no-enable-lora --max-loras 2 --max-lora-rank 16 --enable-flash-late-interaction",
        "--io-processor-plugin x --renderer-num-workers 2 --api-server-count 1",
        '--limit-mm-per-prompt {"image":1} --mm-processor-kwargs {} --media-io-kwargs {} --enable-prompt-embeds',
        "--enable-request-id-headers --enable-server-load-tracking --enable-tokenizer-info-endpoint",
        "--enable-log-requests --disable-log-requests --max-log-len 10 --log-error-stack --disable-log-stats",
        "--disable-uvicorn-access-log --uvicorn-log-level trace --disable-fastapi-docs --model-impl auto",
        "--ssl-keyfile a --ssl-certfile b --ssl-ca-certs c --ssl-cert-reqs 2 --enable-ssl-refresh",
        '--root-path /p --allow-credentials --allowed-methods ["*"] --allowed-headers ["*"]',
    ],
)
def test_flags_of_vllm_are_accepted(words: str) -> None:
    settings, options = parse_config(words.split(), {})

    EngineConfig.from_kwargs(**options)
    underscored = [
        word.replace("-", "_").replace("__", "--", 1) if word[:2] == "--" else word for word in words.split()
    ]
    assert parse_config(underscored, {}) == (settings, options)


def test_other_names_mean_our_options() -> None:
    given = server("--disable-fastapi-docs", "--disable-uvicorn-access-log", "--uvicorn-log-level", "trace")

    assert (given.disable_docs, given.disable_access_log, given.log_level) == (True, True, "debug")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--kv-cache-dtype fp8", "kv_cache_dtype='fp8'"),
        ("--tensor-parallel-size 2", "tensor_parallel_size=2"),
        ("--middleware some.thing", "middleware"),
    ],
)
def test_what_would_change_answers_and_is_not_there_is_refused(words: str, name: str) -> None:
    with pytest.raises(LoadError, match=f"{name}.* is not available; leave it out"):
        engine(*words.split())


def test_ignored_flags_are_logged_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "cenote"):
        engine("--enforce-eager", "--gpu-memory-utilization", "0.5")

    assert caplog.messages == ["enforce_eager=True has no effect here", "gpu_memory_utilization=0.5 has no effect here"]


# files


def written(folder: Path, text: str) -> str:
    file = folder / "server.yaml"
    file.write_text(text)
    return str(file)


def test_a_file_holds_any_options_in_either_spelling(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        """
model: some/model
max-model-len: 8k
port: 9000
served_model_name: [a, b]
api-key: one
enable-prompt-embeds: true
enable_prefix_caching: false
keep-alive-s: 10.5
allowed-origins: ["https://a"]
pooler_config: {pooling_type: MEAN, returned_token_ids: [1, 2]}
hf-overrides.rope_scaling.factor: 2.0
limit-mm-per-prompt: {image: 2}
chat-template:
""",
    )

    settings, options = parse_config(["--config", file], {})

    config = EngineConfig.from_kwargs(**options)
    assert (config.model, config.max_model_len, config.enable_prompt_embeds) == ("some/model", 8000, True)
    assert config.pooler_config == PoolerConfig(pooling_type="MEAN", returned_token_ids=[1, 2])
    assert config.hf_overrides == {"rope_scaling": {"factor": 2.0}}
    assert (settings.port, settings.served_model_name, settings.api_key) == (9000, ("a", "b"), ("one",))
    assert (settings.keep_alive_s, settings.allowed_origins) == (10.5, ("https://a",))


def test_the_command_line_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "port: 1\nhost: file\nroot-path: /file\napi-key: [file]\ndisable-docs: true")
    environment = {"CENOTE_HOST": "environment", "CENOTE_PORT": "2", "CENOTE_API_KEY": "environment"}

    given = server("--config", file, "--port", "3", "--no-disable-docs", **environment)

    assert (given.port, given.host, given.root_path) == (3, "environment", "/file")
    assert (given.api_key, given.disable_docs) == (("environment",), False)


def test_parts_of_one_option_may_come_from_different_places(tmp_path: Path) -> None:
    file = written(tmp_path, "pooler_config: {pooling_type: MEAN, use_activation: true}")

    given = engine("--config", file, "--pooler-config.use_activation", "false")

    assert given.pooler_config == PoolerConfig(pooling_type="MEAN", use_activation=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-modle-len: 8", "no option --max-modle-len, did you mean --max-model-len?"),
        ("port: many", "'many' is not a port"),
        ("port: true", "'true' is not a port"),
        ("dtype: int3", "invalid choice: 'int3'"),
        ("config: other.yaml", "names another file"),
        ("api-key: 007", "api-key is text, YAML reads int there; put it in quotes"),
        ("api_key: [one, 1e3, 1.5]", "api_key is text, YAML reads float there"),
        ("served-model-name: no", "served-model-name is text, YAML reads bool there"),
        ("served_model_name: [a, 2024-01-01]", "served_model_name is text, YAML reads date there"),
        ("hf-token: 12", "hf-token is text, YAML reads int there"),
        ("- port", "must hold options with their values"),
        ("port: [1", "is not YAML"),
        ("a: !!python/object/apply:os.system [true]", "is not YAML"),
    ],
)
def test_a_file_that_is_wrong_is_one_line_that_names_it(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, text)

    printed = error(capsys, "--config", file)

    assert words in printed and file in printed


def test_a_quoted_key_is_what_was_written(tmp_path: Path) -> None:
    given = server("--config", written(tmp_path, "api-key: ['007', '[\"a\"]']\nserved-model-name: '1.10'"))

    assert (given.api_key, given.served_model_name) == (("007", '["a"]'), ("1.10",))


def test_an_empty_key_in_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="an empty api_key"):
        server("--config", written(tmp_path, "api-key:"))


def test_a_file_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", "/nowhere.yaml"]) == 1
    assert capsys.readouterr().err == "cenote: no such file or directory: /nowhere.yaml\n"


# the environment


def test_every_option_has_a_variable() -> None:
    given: dict[str, Any] = {
        "CENOTE_MODEL": "some/model",
        "CENOTE_MAX_MODEL_LEN": "8K",
        "CENOTE_POOLER_CONFIG": '{"pooling_type": "MEAN"}',
        "CENOTE_SERVED_MODEL_NAME": "a, b c",
        "CENOTE_API_KEY": '["-k 1", "k2"]',
        "CENOTE_DISABLE_DOCS": "yes",
        "CENOTE_ENABLE_PROMPT_EMBEDS": "0",
        "CENOTE_SHUTDOWN_DELAY_S": "2.5",
        "CENOTE_SEED": "7",
        "CENOTE_HOST": "",
    }

    settings, options = parse_config([], given)

    config = EngineConfig.from_kwargs(**options)
    assert (config.model, config.max_model_len, config.enable_prompt_embeds) == ("some/model", 8192, False)
    assert config.pooler_config == PoolerConfig(pooling_type="MEAN")
    assert (settings.served_model_name, settings.api_key) == (("a", "b", "c"), ("-k 1", "k2"))
    assert (settings.disable_docs, settings.shutdown_delay_s, settings.host) == (True, 2.5, "0.0.0.0")


def test_variables_of_vllm_are_read_where_ours_are_not_set() -> None:
    given = server(VLLM_API_KEY="theirs", VLLM_LOGGING_LEVEL="WARNING")

    assert (given.api_key, given.log_level) == (("theirs",), "warning")
    assert server(VLLM_API_KEY="theirs", CENOTE_API_KEY="ours").api_key == ("ours",)
    assert server(VLLM_API_KEY="", CENOTE_API_KEY="ours").api_key == ("ours",)


@pytest.mark.parametrize("key", ["correct horse", "k1,k2", '["k1", "k2"]', "[k1", "--port=1", "--"])
def test_the_variable_of_vllm_is_one_key_whatever_is_in_it(key: str) -> None:
    assert server(VLLM_API_KEY=key).api_key == (key,)


@pytest.mark.parametrize("key", ["correct horse", "k1,k2", "[k1]", "[1, 2]", '["k1", 2]', "[]"])
def test_our_variable_is_one_key_unless_it_is_a_list_of_texts(key: str) -> None:
    assert server(CENOTE_API_KEY=key).api_key == (key,)
    assert server(CENOTE_API_KEY='["correct horse", "[\\"k2\\"]"]').api_key == ("correct horse", '["k2"]')


def test_the_line_that_ends_a_mounted_secret_is_no_part_of_the_key() -> None:
    assert server(CENOTE_API_KEY="one\n").api_key == server(VLLM_API_KEY="one\n").api_key == ("one",)


@pytest.mark.parametrize("name", ["CENOTE_API_KEY", "VLLM_API_KEY"])
@pytest.mark.parametrize("value", ["", " \n"])
def test_a_blank_key_in_the_environment_is_refused(name: str, value: str) -> None:
    with pytest.raises(BadRequest, match="an empty api_key would open every door"):
        server(**{name: value})
    assert server("--api-key", "real", **{name: value}).api_key == ("real",)


@pytest.mark.parametrize(
    ("word", "level"), [("WARN", "warning"), ("Trace", "debug"), ("INFO", "info"), ("critical", "critical")]
)
def test_levels_of_other_logging_libraries_are_understood(word: str, level: str) -> None:
    assert server(VLLM_LOGGING_LEVEL=word).log_level == server(CENOTE_LOG_LEVEL=word).log_level == level
    assert server("--log-level", word).log_level == server("--uvicorn-log-level", word).log_level == level


@pytest.mark.parametrize("flag", ["--log-level", "--uvicorn-log-level"])
def test_an_unknown_log_level_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"argument {flag}: invalid choice: 'loud'" in error(capsys, flag, "loud")


def test_requests_may_name_any_model_where_that_is_not_checked(llm: LLM) -> None:
    def status(settings: ServerConfig) -> int:
        service = AppState(settings)
        service.set_engine(llm.engine)
        return TestClient(build_app(service)).post("/v1/embeddings", json={"input": "a", "model": "other"}).status_code

    assert status(server()) == status(server(VLLM_SKIP_MODEL_NAME_VALIDATION="0")) == 404
    assert status(server(VLLM_SKIP_MODEL_NAME_VALIDATION="1")) == 200
    assert status(server(CENOTE_SKIP_MODEL_NAME_VALIDATION="true")) == 200
    assert status(server("--skip-model-name-validation")) == 200
    assert status(server(VLLM_SKIP_MODEL_NAME_VALIDATION="1", CENOTE_SKIP_MODEL_NAME_VALIDATION="0")) == 404


def test_a_variable_may_name_the_file(tmp_path: Path) -> None:
    assert server(CENOTE_CONFIG=written(tmp_path, "port: 9000")).port == 9000


def test_what_kubernetes_tells_about_a_service_called_cenote_is_no_port() -> None:
    assert server(CENOTE_PORT="tcp://10.0.0.1:80", CENOTE_SERVICE_HOST="10.0.0.1").port == 8000


@pytest.mark.parametrize("service", ["CENOTE", "CENOTE_EMBED"])
def test_what_kubernetes_tells_about_services_is_no_unknown_variable(service: str) -> None:
    told = {
        f"{service}_SERVICE_HOST": "10.0.0.1",
        f"{service}_SERVICE_PORT": "80",
        f"{service}_SERVICE_PORT_HTTP": "80",
        f"{service}_PORT": "tcp://10.0.0.1:80",
        f"{service}_PORT_80_TCP": "tcp://10.0.0.1:80",
        f"{service}_PORT_80_TCP_PROTO": "tcp",
        f"{service}_PORT_80_TCP_PORT": "80",
        f"{service}_PORT_80_TCP_ADDR": "10.0.0.1",
    }

    assert server(**told) == ServerConfig()


def test_an_unknown_variable_is_refused_without_its_value() -> None:
    with pytest.raises(BadRequest, match="no option is called CENOTE_API_KYE") as caught:
        server(CENOTE_API_KYE="secret")
    assert "secret" not in str(caught.value)


def test_variables_that_the_code_reads_beside_options_are_known() -> None:
    package = Path(cenote.__file__).parent
    sources = [path for kind in ("*.py", "*.c", "*.cpp", "*.h") for path in package.rglob(kind)]
    strings = {name for path in sources for name in re.findall(r'"(CENOTE_[A-Z0-9_]+[A-Z0-9])"', path.read_text())}

    assert strings >= {"CENOTE_ALLOW_LONG_MAX_MODEL_LEN"}
    assert server(**dict.fromkeys(strings, "1")) == ServerConfig()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("CENOTE_DISABLE_DOCS", "maybe", "CENOTE_DISABLE_DOCS='maybe' is neither true nor false"),
        ("VLLM_SKIP_MODEL_NAME_VALIDATION", "maybe", "VLLM_SKIP_MODEL_NAME_VALIDATION='maybe' is neither"),
        ("VLLM_LOGGING_LEVEL", "LOUD", "in the environment: argument --log-level: invalid choice: 'loud'"),
        ("CENOTE_PORT", "many", "in the environment: argument --port: 'many' is not a port"),
        ("CENOTE_PORT", "99999", "in the environment: argument --port: '99999' is not a port; give a number from 1 to"),
        ("CENOTE_PROT", "8080", "in the environment: no option is called CENOTE_PROT; did you mean CENOTE_PORT?"),
        ("CENOTE_API_KYE", "secret", "no option is called CENOTE_API_KYE; did you mean CENOTE_API_KEY?"),
        ("CENOTE_HELP", "1", "in the environment: no option is called CENOTE_HELP"),
    ],
)
def test_a_variable_that_is_wrong_is_one_line(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)

    assert words in error(capsys)


def test_names_of_options_belong_to_one_table_only() -> None:
    flags = [flag for action in make_parser()._actions for flag in action.option_strings]

    assert len(flags) == len(set(flags))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--root-path", "x"], "must begin with a slash"),
        (["--api-key", ""], "an empty api_key"),
        (["--max-body-bytes", "0"], "give a number above 0"),
        (["--log-format", "xml"], "invalid choice: 'xml'"),
        (["--prot", "1"], "no option --prot, did you mean --port?"),
    ],
)
def test_a_flag_that_is_wrong_is_one_line(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *flags]) in (1, 2)

    printed = capsys.readouterr().err
    assert words in printed and printed.count("\n") == 1
