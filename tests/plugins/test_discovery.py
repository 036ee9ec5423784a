"""Discovery of IO processor plugins: only the selected one is imported."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest

from cenote import LoadError
from cenote.config.engine import EngineConfig
from cenote.engine.preprocessing.renderer_factory import make_model_tokenizer
from cenote.engine.tasks.io_processor import IOProcessorRunner, load_io_processor
from cenote.inputs.chat import ChatSettings
from cenote.loading.describe import describe_model
from cenote.loading.loaded_model import LoadedModel
from cenote.loading.model_description import ModelDescription
from cenote.plugins import discovery
from tests.plugins.conftest import CENOTE_GROUP, VLLM_GROUP, InstallPlugin

GOOD = """
def entry():
    return "THIS.Plugin"

class Plugin:
    def __init__(self, config, renderer):
        self.config, self.renderer = config, renderer
    def parse_data(self, data):
        return data
    def pre_process(self, prompt, request_id=None):
        return prompt
    def post_process(self, model_output, request_id=None):
        return len(model_output)
"""


@pytest.fixture
def load(loaded: LoadedModel) -> Any:
    def load(plugin: str | None = None, description: ModelDescription = loaded.description) -> IOProcessorRunner | None:
        return load_io_processor(
            EngineConfig(io_processor_plugin=plugin),
            description,
            lambda: make_model_tokenizer(loaded.tokenizer, "mini", ChatSettings()),
        )

    return load


@pytest.mark.parametrize("group", [CENOTE_GROUP, VLLM_GROUP])
def test_a_plugin_is_found_by_its_name_in_either_group(install_plugin: InstallPlugin, load: Any, group: str) -> None:
    module = install_plugin("good", GOOD, group=group)

    processor = load("good")

    assert processor.name == "good"
    assert type(processor.plugin).__module__ == module


def test_a_plugin_of_the_cenote_group_takes_precedence(install_plugin: InstallPlugin, load: Any) -> None:
    install_plugin("good", "raise RuntimeError('must not be imported')", group=VLLM_GROUP)
    ours = install_plugin("good", GOOD, group=CENOTE_GROUP)

    assert type(load("good").plugin).__module__ == ours


def test_without_a_selected_plugin_entry_points_are_not_read(
    install_plugin: InstallPlugin, load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin("good", GOOD)
    monkeypatch.setattr(discovery, "entry_points", lambda **_: pytest.fail("entry points were read"))

    assert load() is None


def test_plugins_that_are_not_selected_are_not_imported(install_plugin: InstallPlugin, load: Any) -> None:
    selected = install_plugin("good", GOOD)
    others = [install_plugin("other", GOOD), install_plugin("theirs", GOOD, group=VLLM_GROUP)]

    assert load("good") is not None
    assert selected in sys.modules
    assert not set(others) & set(sys.modules)


def test_config_json_may_name_a_plugin_and_the_option_overrides_it(install_plugin: InstallPlugin, load: Any) -> None:
    install_plugin("first", GOOD)
    install_plugin("second", GOOD)
    description = describe_model(EngineConfig(hf_overrides={"io_processor_plugin": "first"}))

    assert load(description=description).name == "first"
    assert load("second", description).name == "second"


def test_a_missing_plugin_of_config_json_is_refused_with_the_override_that_disables_it(load: Any) -> None:
    description = describe_model(EngineConfig(hf_overrides={"io_processor_plugin": "os.system"}))

    with pytest.raises(LoadError) as caught:
        load(description=description)

    assert caught.value.message.startswith("No IOProcessor plugins installed but one is required (os.system).")
    assert 'hf_overrides={"io_processor_plugin": null} loads the model without it' in caught.value.message
    assert load(description=describe_model(EngineConfig(hf_overrides={"io_processor_plugin": None}))) is None


def test_a_plugin_name_in_config_json_that_is_not_a_string_is_refused(load: Any) -> None:
    with pytest.raises(LoadError, match=r"config.json: io_processor_plugin must be the name of a plugin, got \['x'\]"):
        load(description=describe_model(EngineConfig(hf_overrides={"io_processor_plugin": ["x"]})))


def test_a_plugin_that_is_not_installed_is_refused_with_the_installed_ones(
    install_plugin: InstallPlugin, load: Any
) -> None:
    with pytest.raises(LoadError, match=r"^No IOProcessor plugins installed but one is required \(goood\)\.$"):
        load("goood")
    install_plugin("good", GOOD)
    install_plugin("better", GOOD, group=VLLM_GROUP)
    with pytest.raises(LoadError) as caught:
        load("goood")
    assert caught.value.message == (
        "The model requires the 'goood' IO Processor plugin but it is not installed. "
        "Available plugins: ['better', 'good']"
    )


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def entry():\n    raise OSError('no licence')", "OSError: no licence"),
        ("def other():\n    return 'a.B'", "AttributeError: module 'THIS' has no attribute 'entry'"),
        ("entry = 5", "TypeError: 'int' object is not callable"),
    ],
    ids=["import", "call", "name", "kind"],
)
def test_a_plugin_that_fails_to_load_is_skipped_with_a_warning_and_the_reason(
    install_plugin: InstallPlugin, load: Any, caplog: pytest.LogCaptureFixture, source: str, reason: str
) -> None:
    broken = install_plugin("broken", source)
    install_plugin("good", GOOD)

    with caplog.at_level(logging.WARNING, "cenote"), pytest.raises(LoadError) as caught:
        load("broken")

    assert caught.value.message == (
        "The model requires the 'broken' IO Processor plugin but it is not installed. Available plugins: ['good'] "
        f"('broken' is installed but failed to load: {reason.replace('THIS', broken)})"
    )
    assert caplog.messages == ["Failed to load plugin broken."]


def test_a_plugin_may_opt_out(install_plugin: InstallPlugin, load: Any) -> None:
    install_plugin("shy", "def entry():\n    return None")

    with pytest.raises(LoadError, match=r"^No IOProcessor plugins installed but one is required \(shy\)\.$"):
        load("shy")


def test_two_packages_that_bring_the_same_name_are_refused(install_plugin: InstallPlugin, load: Any) -> None:
    names = sorted([install_plugin("good", GOOD), install_plugin("good", GOOD)])

    with pytest.raises(LoadError, match=f"{names[0]} and {names[1]} both provide an IO processor plugin 'good'"):
        load("good")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def entry():\n    return 5", "returned the invalid class path 5; expected 'package.module.Class'"),
        ("def entry():\n    return 'Plugin'", "returned the invalid class path 'Plugin'; expected"),
        ("def entry():\n    return 'no_such_package.Plugin'", "cannot be imported: ModuleNotFoundError"),
        ("def entry():\n    return 'THIS.Plugin'", "cannot be imported: AttributeError"),
        ("def entry():\n    return 'THIS.entry'", "is not a class"),
        (
            GOOD.replace("self.config, self.renderer =", "1 / 0,"),
            "failed to start: ZeroDivisionError: division by zero",
        ),
        (
            GOOD.replace("self.config, self.renderer =", "raise OSError('two\\nlines') #"),
            "failed to start: OSError: two$",
        ),
        (
            GOOD.replace("def parse_data", "def parse"),
            "Plugin of the IO processor plugin 'odd' does not implement parse_data",
        ),
        (GOOD.replace("def p", "def other_p"), "does not implement parse_data, pre_process, post_process"),
    ],
)
def test_an_invalid_plugin_gives_a_one_line_load_error(
    install_plugin: InstallPlugin, load: Any, source: str, message: str
) -> None:
    install_plugin("odd", source)

    with pytest.raises(LoadError, match=message) as caught:
        load("odd")

    assert "\n" not in caught.value.message


def test_a_plugin_gets_the_model_config_and_a_copy_of_the_tokenizer(
    install_plugin: InstallPlugin, load: Any, llm: Any
) -> None:
    install_plugin("good", GOOD)

    plugin = load("good").plugin

    config = plugin.config.model_config
    assert (config.served_model_name, config.max_model_len, config.embedding_size) == ("mini", 256, 384)
    assert config.hf_config.hidden_size == 384
    assert (config.folder / "config.json").is_file()
    tokenizer = plugin.renderer.get_tokenizer()
    assert tokenizer is plugin.renderer.tokenizer
    tokenizer.enable_truncation(3)
    assert len(llm.embed("a b c d", use_tqdm=False)[0].prompt_token_ids) == 6


def test_older_plugins_get_only_the_config_and_deprecated_methods_are_logged_once(
    install_plugin: InstallPlugin, load: Any, caplog: pytest.LogCaptureFixture
) -> None:
    older = GOOD.replace("config, renderer):", "config):").replace("config, renderer", "config, None")
    install_plugin("older", older.replace("parse_data", "parse_request"))

    with caplog.at_level(logging.INFO, "cenote"):
        assert load("older").plugin.renderer is None

    assert "the IO processor plugin older uses the deprecated method parse_request; use parse_data" in caplog.messages
