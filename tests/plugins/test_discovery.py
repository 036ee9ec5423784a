"""Which plugin is loaded: the one that is named, from what is installed, and nothing else of it."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest

from cenote import LoadError
from cenote.config.engine import EngineConfig
from cenote.engine.tasks.io_processor import Processor, load_processor
from cenote.loading.describe import Description, describe
from cenote.loading.load import LoadedModel
from cenote.plugins import discovery
from tests.plugins.conftest import OURS, THEIRS, Offer

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
    def load(plugin: str | None = None, description: Description = loaded.description) -> Processor | None:
        return load_processor(EngineConfig(io_processor_plugin=plugin), description, loaded.tokenizer.tokenizer)

    return load


@pytest.mark.parametrize("group", [OURS, THEIRS])
def test_a_plugin_is_found_by_its_name_in_either_group(offer: Offer, load: Any, group: str) -> None:
    module = offer("good", GOOD, group=group)

    processor = load("good")

    assert processor.name == "good"
    assert type(processor.plugin).__module__ == module


def test_of_two_groups_ours_holds(offer: Offer, load: Any) -> None:
    offer("good", "raise RuntimeError('nobody asked for this one')", group=THEIRS)
    ours = offer("good", GOOD, group=OURS)

    assert type(load("good").plugin).__module__ == ours


def test_where_nothing_is_selected_nothing_is_even_looked_for(
    offer: Offer, load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer("good", GOOD)
    monkeypatch.setattr(discovery, "entry_points", lambda **_: pytest.fail("plugins were looked for"))

    assert load() is None


def test_what_is_not_selected_is_not_imported(offer: Offer, load: Any) -> None:
    selected = offer("good", GOOD)
    others = [offer("other", GOOD), offer("theirs", GOOD, group=THEIRS)]

    assert load("good") is not None
    assert selected in sys.modules
    assert not set(others) & set(sys.modules)


def test_config_json_may_name_an_installed_plugin_and_the_option_outranks_it(offer: Offer, load: Any) -> None:
    offer("first", GOOD)
    offer("second", GOOD)
    description = describe(EngineConfig(hf_overrides={"io_processor_plugin": "first"}))

    assert load(description=description).name == "first"
    assert load("second", description).name == "second"


def test_a_checkpoint_whose_plugin_is_missing_tells_how_to_do_without(load: Any) -> None:
    description = describe(EngineConfig(hf_overrides={"io_processor_plugin": "os.system"}))

    with pytest.raises(LoadError) as caught:
        load(description=description)

    assert caught.value.message.startswith("No IOProcessor plugins installed but one is required (os.system).")
    assert 'hf_overrides={"io_processor_plugin": null} loads the model without it' in caught.value.message
    assert load(description=describe(EngineConfig(hf_overrides={"io_processor_plugin": None}))) is None


def test_a_name_in_config_json_that_is_no_name_is_refused(load: Any) -> None:
    with pytest.raises(LoadError, match=r"config.json: io_processor_plugin is \['x'\], not the name of a plugin"):
        load(description=describe(EngineConfig(hf_overrides={"io_processor_plugin": ["x"]})))


def test_a_plugin_nobody_installed_is_refused_with_those_there_are(offer: Offer, load: Any) -> None:
    with pytest.raises(LoadError, match=r"^No IOProcessor plugins installed but one is required \(goood\)\.$"):
        load("goood")
    offer("good", GOOD)
    offer("better", GOOD, group=THEIRS)
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
    offer: Offer, load: Any, caplog: pytest.LogCaptureFixture, source: str, reason: str
) -> None:
    broken = offer("broken", source)
    offer("good", GOOD)

    with caplog.at_level(logging.WARNING, "cenote"), pytest.raises(LoadError) as caught:
        load("broken")

    assert caught.value.message == (
        "The model requires the 'broken' IO Processor plugin but it is not installed. Available plugins: ['good'] "
        f"('broken' is there, but failed to load: {reason.replace('THIS', broken)})"
    )
    assert caplog.messages == ["Failed to load plugin broken."]


def test_a_plugin_may_opt_out(offer: Offer, load: Any) -> None:
    offer("shy", "def entry():\n    return None")

    with pytest.raises(LoadError, match=r"^No IOProcessor plugins installed but one is required \(shy\)\.$"):
        load("shy")


def test_two_packages_that_bring_the_same_name_are_refused(offer: Offer, load: Any) -> None:
    names = sorted([offer("good", GOOD), offer("good", GOOD)])

    with pytest.raises(LoadError, match=f"{names[0]} and {names[1]} both bring an IO processor plugin 'good'"):
        load("good")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def entry():\n    return 5", "names its class as 5; it must be like 'package.module.Class'"),
        ("def entry():\n    return 'Plugin'", "names its class as 'Plugin'; it must be like"),
        ("def entry():\n    return 'no_such_package.Plugin'", "cannot be imported: ModuleNotFoundError"),
        ("def entry():\n    return 'THIS.Plugin'", "cannot be imported: AttributeError"),
        ("def entry():\n    return 'THIS.entry'", "is no class"),
        (
            GOOD.replace("self.config, self.renderer =", "1 / 0,"),
            "failed to start: ZeroDivisionError: division by zero",
        ),
        (
            GOOD.replace("self.config, self.renderer =", "raise OSError('two\\nlines') #"),
            "failed to start: OSError: two$",
        ),
        (GOOD.replace("def parse_data", "def parse"), "Plugin of the IO processor plugin 'odd' has no parse_data"),
        (GOOD.replace("def p", "def other_p"), "has no parse_data and no pre_process and no post_process"),
    ],
)
def test_a_plugin_that_cannot_work_is_one_line_at_the_start(offer: Offer, load: Any, source: str, words: str) -> None:
    offer("odd", source)

    with pytest.raises(LoadError, match=words) as caught:
        load("odd")

    assert "\n" not in caught.value.message


def test_a_plugin_is_told_about_the_model_and_has_a_tokenizer_of_its_own(offer: Offer, load: Any, llm: Any) -> None:
    offer("good", GOOD)

    plugin = load("good").plugin

    facts = plugin.config.model_config
    assert (facts.model, facts.max_model_len, facts.embedding_size) == ("mini", 256, 384)
    assert facts.hf_config.hidden_size == 384
    assert (facts.folder / "config.json").is_file()
    tokenizer = plugin.renderer.get_tokenizer()
    assert tokenizer is plugin.renderer.tokenizer
    tokenizer.enable_truncation(3)
    assert len(llm.embed("a b c d", use_tqdm=False)[0].prompt_token_ids) == 6


def test_older_plugins_take_the_config_alone_and_their_names_are_told_once(
    offer: Offer, load: Any, caplog: pytest.LogCaptureFixture
) -> None:
    older = GOOD.replace("config, renderer):", "config):").replace("config, renderer", "config, None")
    offer("older", older.replace("parse_data", "parse_request"))

    with caplog.at_level(logging.INFO, "cenote"):
        assert load("older").plugin.renderer is None

    assert "the IO processor plugin older uses parse_request; its name today is parse_data" in caplog.messages
