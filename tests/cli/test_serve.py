"""Options of the server from the command line, the environment and a file, with vLLM's names as well."""

from __future__ import annotations

import logging
import re
from dataclasses import fields
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


def server_config(*argv: str, **environment: str) -> ServerConfig:
    return parse_config(argv, environment)[0]


def engine_config(*argv: str, **environment: str) -> EngineConfig:
    return EngineConfig.from_kwargs(**parse_config(argv, environment)[1])


def usage_error(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["serve", *argv]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    return printed


def test_without_options_the_defaults_apply() -> None:
    assert server_config() == ServerConfig()
    assert engine_config() == EngineConfig()


def test_the_model_is_positional_or_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert engine_config("some/model").model == engine_config("--model", "some/model").model == "some/model"
    assert engine_config("--port", "1", "some/model", "--dtype", "float32").model == "some/model"
    assert "two different models: a and --model b" in usage_error(capsys, "a", "--model", "b")


@pytest.mark.parametrize(
    ("words", "host"),
    [
        ((), "127.0.0.1"),
        (("--host", "0.0.0.0"), "0.0.0.0"),
        (("--host", ""), ""),  # every address, of IPv6 too
        (("--api-key", "k"), "0.0.0.0"),
        (("--api-key-file", "keys"), "0.0.0.0"),
        (("--admin-api-key", "k"), "0.0.0.0"),
        (("--api-key", "k", "--host", "10.0.0.1"), "10.0.0.1"),
    ],
)
def test_other_machines_connect_only_with_a_host_or_keys(words: tuple[str, ...], host: str) -> None:
    assert server_config(*words).listen_host == host


def test_variables_may_name_the_host_and_the_keys() -> None:
    assert server_config(CENOTE_HOST="0.0.0.0").listen_host == "0.0.0.0"
    assert server_config(VLLM_API_KEY="theirs").listen_host == "0.0.0.0"


@pytest.mark.parametrize("port", ["65536", "99999", "-1", "80.5", "http"])
def test_an_invalid_port_is_refused(port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = f"invalid port {port!r}; expected a number from 1 to 65535, or 0 for a free port"

    assert f"argument --port: {message}" in usage_error(capsys, "--port", port)
    assert message in usage_error(capsys, "--config", write_yaml(tmp_path, f"port: {port}"))


def test_every_valid_port_is_accepted() -> None:
    assert [server_config("--port", port).port for port in ("0", "1", "65535")] == [0, 1, 65535]


def test_several_names_and_keys_are_given_in_one_flag_or_in_many() -> None:
    assert server_config("m", "--served-model-name", "a", "b", "c").served_model_name == ("a", "b", "c")
    assert server_config("--api-key", "k1", "k2", "--api_key", "k3", "--api-key=k4").api_key == ("k1", "k2", "k3", "k4")
    assert engine_config("--served-model-name", "a", "b").served_model_name == "a"


def test_the_model_may_follow_two_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--served-model-name", "a", "b", "--", "some/model"]

    assert engine_config(*line).model == "some/model"
    assert server_config(*line).served_model_name == ("a", "b")
    assert engine_config("--", "-odd-").model == "-odd-"
    for several in (["a", "--", "b"], ["--", "a", "b"], ["a", "--port", "1", "b"]):
        assert parse_config(several, {})[1]["sources"] == ("a", "b")
    assert "two different models: a and --model b" in usage_error(capsys, "--model", "b", "--", "a")


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

    printed = usage_error(capsys, *words.split())

    assert f"the last value of {flag} looks like the model; pass the model first: cenote serve MODEL {flag}" in printed
    assert "my/model" not in printed  # it might be a key


def test_values_that_look_like_a_model_are_accepted_if_a_model_is_given(tmp_path: Path) -> None:
    names = ["--served-model-name", "a", "team/b"]

    assert (
        engine_config("some/model", *names).model
        == engine_config(*names, "--model", "some/model").model
        == "some/model"
    )
    assert engine_config(*names, CENOTE_MODEL="some/model").model == "some/model"
    assert engine_config(*names, "--config", write_yaml(tmp_path, "model: some/model")).model == "some/model"
    assert server_config("--served-model-name", "team/b").served_model_name == ("team/b",)
    assert server_config("--api-key=k1", "--api-key=k/2").api_key == ("k1", "k/2")


@pytest.mark.parametrize(
    "words", [["https://a", "https://b"], ['["https://a", "https://b"]'], ['["https://a"]', "https://b"]]
)
def test_origins_are_words_or_a_json_list(words: list[str]) -> None:
    assert server_config("--allowed-origins", *words).allowed_origins == ("https://a", "https://b")


def test_every_option_has_a_flag_and_a_help_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--help"]) == 0

    text = " ".join(capsys.readouterr().out.split())
    for option in option_fields(ServerConfig):
        assert f"--{option.name.replace('_', '-')}" in text
        assert option.metadata["help"] in text


@pytest.mark.parametrize(
    "words",
    [
        "--runner pooling --convert embed --task embed --dtype half --max-model-len 8k --gpu-memory-utilization 0.9",
        '--pooler-config {"pooling_type":"MEAN"} --override-pooler-config {"pooling_type":"MEAN"}',
        '--hf-overrides {"a":1} --hf_overrides {"a":1} --default-chat-template-kwargs {"a":1}',
        '--limit-mm-per-prompt {"image":1} --mm-processor-kwargs {} --media-io-kwargs {} --enable-prompt-embeds',
        '--ssl-cert-reqs 2 --root-path /p --allowed-methods ["*"] --allowed-headers ["*"]',
    ],
)
def test_flags_of_vllm_are_accepted(words: str) -> None:
    settings, options = parse_config(words.split(), {})

    EngineConfig.from_kwargs(**options)
    underscored = [
        word.replace("-", "_").replace("__", "--", 1) if word[:2] == "--" else word for word in words.split()
    ]
    assert parse_config(underscored, {}) == (settings, options)


def test_vllm_names_set_the_same_options() -> None:
    given = server_config("--disable-fastapi-docs", "--disable-uvicorn-access-log", "--uvicorn-log-level", "trace")

    assert (given.disable_docs, given.disable_access_log, given.log_level) == (True, True, "debug")
    given = server_config("--shutdown-timeout", "7", "--max-num-queued-tokens", "4K", "-asc", "2")
    assert (given.shutdown_timeout_s, given.max_queue_tokens, given.api_server_count) == (7.0, 4096, 2)
    assert server_config("--log-level", "NOTSET").log_level == "debug"
    assert engine_config("--device-ids", "1,3", "-tp", "2").devices == ("cuda:1", "cuda:3")
    assert engine_config("--download-dir", "/models").hub.cache_dir == "/models"
    assert engine_config("--hf-token").hub.token is True
    assert engine_config("--hf-token", "x").hub.token == "x"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--pipeline-parallel-size 2", "pipeline_parallel_size=2"),
        ("--middleware some.thing", "middleware"),
    ],
)
def test_an_unsupported_option_that_would_change_results_is_refused(words: str, name: str) -> None:
    with pytest.raises(LoadError, match=f"{name}.* is not supported: .*; remove it"):
        engine_config(*words.split())


def test_flags_without_effect_are_named_in_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    engine_config("--no-enforce-eager", "--device-memory-utilization", "0.5", "-O2", "--disable-mm-embeds")

    names = "gpu_memory_utilization, optimization_level"
    assert caplog.record_tuples == [
        ("cenote", logging.WARNING, f"options of vLLM without effect: enforce_eager, {names}, enable_mm_embeds")
    ]


# files


def write_yaml(folder: Path, text: str) -> str:
    file = folder / "server.yaml"
    file.write_text(text)
    return str(file)


def test_a_file_may_contain_any_option_with_hyphens_or_underscores(tmp_path: Path) -> None:
    file = write_yaml(
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


def test_the_command_line_overrides_the_environment_and_that_the_file(tmp_path: Path) -> None:
    file = write_yaml(tmp_path, "port: 1\nhost: file\nroot-path: /file\napi-key: [file]\ndisable-docs: true")
    environment = {"CENOTE_HOST": "environment", "CENOTE_PORT": "2", "CENOTE_API_KEY": "environment"}

    given = server_config("--config", file, "--port", "3", "--no-disable-docs", **environment)

    assert (given.port, given.host, given.root_path) == (3, "environment", "/file")
    assert (given.api_key, given.disable_docs) == (("environment",), False)


def test_fields_of_one_option_may_come_from_different_sources(tmp_path: Path) -> None:
    file = write_yaml(tmp_path, "pooler_config: {pooling_type: MEAN, use_activation: true}")

    given = engine_config("--config", file, "--pooler-config.use_activation", "false")

    assert given.pooler_config == PoolerConfig(pooling_type="MEAN", use_activation=False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-modle-len: 8", "unknown option --max-modle-len, did you mean --max-model-len?"),
        ("port: many", "invalid port 'many'"),
        ("port: true", "invalid port 'true'"),
        ("dtype: int3", "invalid choice: 'int3'"),
        ("config: other.yaml", "the name of another file"),
        ("api-key: 007", "api-key must be a string, YAML parses it as int; put it in quotes"),
        ("api_key: [one, 1e3, 1.5]", "api_key must be a string, YAML parses it as float"),
        ("served-model-name: no", "served-model-name must be a string, YAML parses it as bool"),
        ("served_model_name: [a, 2024-01-01]", "served_model_name must be a string, YAML parses it as date"),
        ("hf-token: 12", "hf-token must be a string, YAML parses it as int"),
        ("- port", "must be a mapping of options to values"),
        ("port: [1", "is not YAML"),
        ("a: !!python/object/apply:os.system [true]", "is not YAML"),
    ],
)
def test_an_error_in_a_file_is_one_line_with_its_name(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_yaml(tmp_path, text)

    printed = usage_error(capsys, "--config", file)

    assert words in printed and file in printed


def test_a_quoted_value_is_kept_as_text(tmp_path: Path) -> None:
    given = server_config("--config", write_yaml(tmp_path, "api-key: ['007', '[\"a\"]']\nserved-model-name: '1.10'"))

    assert (given.api_key, given.served_model_name) == (("007", '["a"]'), ("1.10",))


def test_the_deprecated_limit_in_characters_becomes_one_in_tokens(caplog: pytest.LogCaptureFixture) -> None:
    assert server_config("--max-waiting-chars", "3000").max_queue_tokens == 1000
    assert "use --max-queue-tokens, which is about a third of it" in caplog.text


def test_an_empty_key_in_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="api_key must not be empty"):
        server_config("--config", write_yaml(tmp_path, "api-key:"))


def test_a_missing_file_is_a_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    error = usage_error(capsys, "--config", "/nowhere.yaml")

    assert error == "cenote: --config /nowhere.yaml cannot be read: No such file or directory\n"


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
    assert (settings.disable_docs, settings.shutdown_delay_s, settings.host) == (True, 2.5, None)


def test_variables_of_vllm_are_used_if_those_of_cenote_are_not_set() -> None:
    given = server_config(VLLM_API_KEY="theirs", VLLM_LOGGING_LEVEL="WARNING")

    assert (given.api_key, given.log_level) == (("theirs",), "warning")
    assert server_config(VLLM_API_KEY="theirs", CENOTE_API_KEY="ours").api_key == ("ours",)
    assert server_config(VLLM_API_KEY="", CENOTE_API_KEY="ours").api_key == ("ours",)


@pytest.mark.parametrize("key", ["correct horse", "k1,k2", '["k1", "k2"]', "[k1", "--port=1", "--"])
def test_the_variable_of_vllm_is_one_key_whatever_it_contains(key: str) -> None:
    assert server_config(VLLM_API_KEY=key).api_key == (key,)


@pytest.mark.parametrize("key", ["correct horse", "k1,k2", "[k1]", "[1, 2]", '["k1", 2]', "[]"])
def test_the_variable_of_cenote_is_one_key_unless_it_is_a_list_of_strings(key: str) -> None:
    assert server_config(CENOTE_API_KEY=key).api_key == (key,)
    assert server_config(CENOTE_API_KEY='["correct horse", "[\\"k2\\"]"]').api_key == ("correct horse", '["k2"]')


def test_a_trailing_newline_of_a_mounted_secret_is_not_part_of_the_key() -> None:
    assert server_config(CENOTE_API_KEY="one\n").api_key == server_config(VLLM_API_KEY="one\n").api_key == ("one",)


@pytest.mark.parametrize("name", ["CENOTE_API_KEY", "VLLM_API_KEY"])
@pytest.mark.parametrize("value", ["", " \n"])
def test_a_blank_key_in_the_environment_is_refused(name: str, value: str) -> None:
    with pytest.raises(BadRequest, match="api_key must not be empty"):
        server_config(**{name: value})
    assert server_config("--api-key", "real", **{name: value}).api_key == ("real",)


@pytest.mark.parametrize(
    ("word", "level"), [("WARN", "warning"), ("Trace", "debug"), ("INFO", "info"), ("critical", "critical")]
)
def test_log_levels_of_other_libraries_are_accepted(word: str, level: str) -> None:
    assert server_config(VLLM_LOGGING_LEVEL=word).log_level == server_config(CENOTE_LOG_LEVEL=word).log_level == level
    assert server_config("--log-level", word).log_level == server_config("--uvicorn-log-level", word).log_level == level


@pytest.mark.parametrize("flag", ["--log-level", "--uvicorn-log-level"])
def test_an_unknown_log_level_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"argument {flag}: invalid choice: 'loud'" in usage_error(capsys, flag, "loud")


def test_requests_may_name_any_model_if_validation_is_skipped(llm: LLM) -> None:
    def status(settings: ServerConfig) -> int:
        app_state = AppState(settings)
        app_state.set_engine(llm.engine)
        return (
            TestClient(build_app(app_state)).post("/v1/embeddings", json={"input": "a", "model": "other"}).status_code
        )

    assert status(server_config()) == status(server_config(VLLM_SKIP_MODEL_NAME_VALIDATION="0")) == 404
    assert status(server_config(VLLM_SKIP_MODEL_NAME_VALIDATION="1")) == 200
    assert status(server_config(CENOTE_SKIP_MODEL_NAME_VALIDATION="true")) == 200
    assert status(server_config("--skip-model-name-validation")) == 200
    assert status(server_config(VLLM_SKIP_MODEL_NAME_VALIDATION="1", CENOTE_SKIP_MODEL_NAME_VALIDATION="0")) == 404


def test_a_variable_may_name_the_file(tmp_path: Path) -> None:
    assert server_config(CENOTE_CONFIG=write_yaml(tmp_path, "port: 9000")).port == 9000


def test_the_port_variable_of_a_kubernetes_service_called_cenote_is_ignored() -> None:
    assert server_config(CENOTE_PORT="tcp://10.0.0.1:80", CENOTE_SERVICE_HOST="10.0.0.1").port == 8000


@pytest.mark.parametrize("service", ["CENOTE", "CENOTE_EMBED"])
def test_variables_of_kubernetes_services_are_not_unknown_variables(service: str) -> None:
    variables = {
        f"{service}_SERVICE_HOST": "10.0.0.1",
        f"{service}_SERVICE_PORT": "80",
        f"{service}_SERVICE_PORT_HTTP": "80",
        f"{service}_PORT": "tcp://10.0.0.1:80",
        f"{service}_PORT_80_TCP": "tcp://10.0.0.1:80",
        f"{service}_PORT_80_TCP_PROTO": "tcp",
        f"{service}_PORT_80_TCP_PORT": "80",
        f"{service}_PORT_80_TCP_ADDR": "10.0.0.1",
    }

    assert server_config(**variables) == ServerConfig()


def test_an_unknown_variable_is_refused_without_its_value() -> None:
    with pytest.raises(BadRequest, match="unknown variable CENOTE_API_KYE") as caught:
        server_config(CENOTE_API_KYE="secret")
    assert "secret" not in str(caught.value)


def test_variables_that_are_not_options_are_known() -> None:
    package = Path(cenote.__file__).parent
    sources = [path for kind in ("*.py", "*.c", "*.cpp", "*.h") for path in package.rglob(kind)]
    strings = {name for path in sources for name in re.findall(r'"(CENOTE_[A-Z0-9_]+[A-Z0-9])"', path.read_text())}

    options = {f"CENOTE_{field.name.upper()}" for field in fields(ServerConfig)}

    assert strings >= {"CENOTE_ALLOW_LONG_MAX_MODEL_LEN"}
    assert server_config(**dict.fromkeys(strings - options, "1")) == ServerConfig()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("CENOTE_DISABLE_DOCS", "maybe", "invalid boolean CENOTE_DISABLE_DOCS='maybe'; expected one of: 1, true"),
        ("VLLM_SKIP_MODEL_NAME_VALIDATION", "maybe", "invalid boolean VLLM_SKIP_MODEL_NAME_VALIDATION='maybe'"),
        ("VLLM_LOGGING_LEVEL", "LOUD", "in the environment: argument --log-level: invalid choice: 'loud'"),
        ("CENOTE_PORT", "many", "in the environment: argument --port: invalid port 'many'"),
        (
            "CENOTE_PORT",
            "99999",
            "in the environment: argument --port: invalid port '99999'; expected a number from 1",
        ),
        ("CENOTE_PROT", "8080", "in the environment: unknown variable CENOTE_PROT; did you mean CENOTE_PORT?"),
        ("CENOTE_API_KYE", "secret", "unknown variable CENOTE_API_KYE; did you mean CENOTE_API_KEY?"),
        ("CENOTE_HELP", "1", "in the environment: unknown variable CENOTE_HELP"),
    ],
)
def test_an_invalid_variable_is_a_one_line_error(
    name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)

    assert words in usage_error(capsys)


def test_every_flag_is_declared_once() -> None:
    flags = [flag for action in make_parser().options_by_flag().values() for flag in action.option_strings]

    assert len(flags) == len(set(flags))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--root-path", "x"], "must start with a slash"),
        (["--api-key", ""], "api_key must not be empty"),
        (["--max-body-bytes", "0"], "must be greater than 0"),
        (["--log-format", "xml"], "invalid choice: 'xml'"),
        (["--prot", "1"], "unknown option --prot, did you mean --port?"),
    ],
)
def test_an_invalid_flag_is_a_one_line_error(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *flags]) in (1, 2)

    printed = capsys.readouterr().err
    assert words in printed and printed.count("\n") == 1
