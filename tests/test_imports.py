"""Imports of the package: no torch before it is needed, no pickle, no benchmark peers."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import requires
from pathlib import Path

import grimp
import pytest

import cenote
from cenote.inputs.images.image_processor import IMAGE_PROCESSORS

SOURCES = sorted(Path(cenote.__file__).parent.rglob("*.py"))
PEERS = ("transformers", "sentence_transformers")


def run_code(code: str) -> str:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


WITHOUT_TORCH = [
    "cenote",
    "cenote.config.engine",
    "cenote.protocol.requests",
    "cenote.errors",
    "cenote.utils.registry",
    "cenote.cli.main",
    "cenote.protocol",
    "cenote.inputs.renderer_settings",
    "cenote.inputs.prompt_parsing",
    "cenote.inputs.model_tokenizer",
    "cenote.inputs.media.loader",
    "cenote.inputs.images.multimodal_processor",
    "cenote.llm",
    "cenote.outputs",
    "cenote.config.device",
    "cenote.utils.dtypes",
    "cenote.utils.serial_utils",
    "cenote.pooling.activation_names",
    "cenote.kernels.cpu_features",
    "cenote.kernels.default_device",
    "cenote.engine.execution.token_budget",
    "cenote.engine.self_check_store",
    "cenote.entrypoints.pooling.scoring.utils",
    *dict.fromkeys(f"cenote.inputs.images.{path.split(':')[0]}" for path in IMAGE_PROCESSORS.values()),
]


def test_modules_that_need_no_model_do_not_import_torch() -> None:
    code = f"""
import sys
from importlib import import_module
for name in {WITHOUT_TORCH}:
    import_module(name)
    assert "torch" not in sys.modules, name
"""
    assert run_code(code) == ""


def test_a_program_that_imports_the_class_and_makes_no_model_does_not_import_torch() -> None:
    code = """
import sys
from cenote import LLM, PoolingOutput, PoolingParams
PoolingParams(dimensions=4), PoolingOutput, LLM.embed
assert "torch" not in sys.modules
"""
    assert run_code(code) == ""


# what each process of a server does without until a request needs it: top-level packages, and modules of Cenote
START_SUPERVISOR = """
from cenote.cli.serve import make_table, parse_config
from cenote.api import log_config, pressure, sockets
from cenote.api.supervisor import replica_plan, supervisor
make_table(*parse_config([], {}))
"""
NOT_IN_SUPERVISOR = (
    *("jinja2", "numpy", "orjson", "PIL", "tokenizers", "torch", "yaml"),
    *("httptools", "huggingface_hub", "prometheus_client", "pydantic", "starlette.applications"),
    *("cenote.api.app", "cenote.api.dialects", "cenote.engine", "cenote.inputs", "cenote.kernels", "cenote.models"),
)
START_FRONT_END = """
import asyncio
from cenote.api.app_state import AppState
from cenote.api.front_ends.front_end import FrontEndServer
from cenote.api.front_ends import remote_engines
from cenote.api.app import build_app
from cenote.config.server import ServerConfig
build_app(AppState(ServerConfig()))
"""
NOT_IN_FRONT_END = (
    *("jinja2", "PIL", "torch", "yaml", "huggingface_hub", "prometheus_client", "pydantic"),
    *("argparse", "cenote.api.openapi", "cenote.api.prometheus", "cenote.api.supervisor", "cenote.cli"),
    *("cenote.config.engine", "cenote.config.pooler", "cenote.engine.tasks.entity_recognizer", "cenote.kernels"),
    *("cenote.engine.tasks.span_recognizer", "cenote.inputs.jinja_sandbox", "cenote.inputs.media.loader"),
    *("cenote.layers", "cenote.loading", "cenote.pooling"),
)


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        pytest.param("import cenote", ("cenote.config", "cenote.protocol", "dataclasses", "msgspec"), id="package"),
        pytest.param("import cenote.cli.main", ("argparse", "dataclasses", "logging", "msgspec"), id="command"),
        pytest.param(START_SUPERVISOR, NOT_IN_SUPERVISOR, id="supervisor"),
        pytest.param(START_FRONT_END, NOT_IN_FRONT_END, id="front-end"),
    ],
)
def test_a_process_imports_only_what_it_needs_before_the_first_request(code: str, unwanted: Sequence[str]) -> None:
    imported = run_code(f"{code}\nimport sys; print(*sys.modules)").split()

    assert [name for name in unwanted if name in imported] == []


def test_a_program_that_does_not_close_the_llm_exits_and_imports_no_peer_library(default_folder: Path) -> None:
    code = """
import sys
import cenote
llm = cenote.LLM()
(output,) = llm.embed("hello", use_tqdm=False)
llm.score("a", "b", use_tqdm=False)
llm.encode("a", pooling_task="token_embed", use_tqdm=False)
assert len(output.outputs.embedding) == 384
loaded = {name.split(".")[0] for name in sys.modules}
print(*loaded)
"""
    loaded = run_code(code).split()

    assert not {*PEERS, "torch", "cloudpickle", default_folder.parent.name} & set(loaded)


def test_no_source_file_unpickles_anything() -> None:
    for path in SOURCES:
        source = path.read_text(encoding="utf-8")

        assert set(re.findall(r"\bpickle\.(\w+)", source)) <= {"UnpicklingError"}, path  # the exception of torch.load
        assert not re.search(r"\bfrom pickle\b|\b(cloudpickle|joblib|dill|shelve|marshal)\b", source), path
        assert "allow_pickle=True" not in source, path
        for call in re.findall(r"torch\.load\([^)]*\)", source):
            assert "weights_only=True" in call, path
        assert not re.search(r"(?<![\w.])(eval|exec)\(", source), path


def test_only_the_engine_process_of_the_server_imports_torch() -> None:
    importing = {
        path.parent.name
        for path in Path(cenote.__file__).with_name("api").rglob("*.py")
        if re.search(r"^\s*(?:import|from) torch\b", path.read_text(encoding="utf-8"), re.MULTILINE)
    }

    assert importing == {"engine_process"}


def test_only_the_benchmark_imports_its_peers() -> None:
    for path in SOURCES:
        imports = re.findall(r"^\s*(?:import|from)\s+([\w.]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        names = {name.split(".")[0] for name in imports}

        assert "bench" in path.parts or not names & {*PEERS, "pytest", "tests"}, path


def test_undeclared_dependencies_are_requirements_of_declared_ones() -> None:
    """tqdm is not a declared dependency: huggingface_hub requires it."""
    names = [re.split(r"[\s<>=!~;\[(]", requirement)[0].lower() for requirement in requires("huggingface_hub") or []]

    assert "tqdm" in names


def test_the_benchmarks_in_the_package_are_those_that_a_command_runs() -> None:
    graph = grimp.build_graph("cenote", cache_dir=None)
    workers = graph.find_descendants("cenote.bench.peers")  # run as scripts, by `cenote bench compare`
    named = re.findall(
        r'lazy\("([\w.]+)"', Path(cenote.__file__).with_name("bench").joinpath("main.py").read_text(encoding="utf-8")
    )
    commands = {f"cenote.bench.{name}" for name in named}
    used = commands.union(*map(graph.find_upstream_modules, {"cenote.cli.main", *commands}))

    unused = graph.find_descendants("cenote.bench") - used - workers

    assert unused == {"cenote.bench.compare", "cenote.bench.peers"}  # packages, whose modules are imported or run
