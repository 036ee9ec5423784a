"""Commands, variables and probes of the manifests, with a real server and without a container."""

from __future__ import annotations

import importlib.util
import shlex
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from cenote.api.dialects import DIALECTS
from cenote.api.route_table import RouteTable
from cenote.cli.serve import make_table, parse_config
from tests.deploy.chart import DEPLOY, read_all_yaml, read_yaml
from tests.deploy.container import Container
from tests.deploy.dockerfile import DOCKERFILES, read_dockerfile

KEY = {"Authorization": "Bearer secret"}


def find_deployment() -> dict[str, Any]:
    documents = read_all_yaml(DEPLOY / "kubernetes" / "cenote.yaml")
    (pod,) = (each["spec"]["template"]["spec"] for each in documents if each["kind"] == "Deployment")
    return dict(pod)


def read_runtime(name: str) -> dict[str, Any]:
    (container,) = read_yaml(DEPLOY / "kserve" / f"runtime-{name}.yaml")["spec"]["containers"]
    return dict(container)


@pytest.fixture
def deployment(tmp_path: Path, default_folder: Path) -> Iterator[Container]:
    pod = find_deployment()
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "api-key").write_text("secret")
    replacements = {"--api-key-file=/etc/cenote/keys": f"--api-key-file={keys}"}
    container = Container(pod["containers"][0], tmp_path, pod["terminationGracePeriodSeconds"], replacements)
    container.start()
    yield container
    container.kill()


@pytest.mark.slow
def test_the_deployment_starts_serves_drains_and_writes_to_its_volumes_only(deployment: Container) -> None:
    statuses = deployment.wait_for_start()
    answers: list[int] = []

    def send() -> None:
        url = f"http://127.0.0.1:{deployment.port}/v1/embeddings"
        with httpx.Client(timeout=60, headers=KEY) as client:
            answers.append(client.post(url, json={"input": ["hello there " * 50] * 40}).status_code)

    assert 503 in statuses  # it accepts connections before the model is loaded
    assert deployment.probe("readinessProbe") == 200 and deployment.probe("livenessProbe") == 200
    url = f"http://127.0.0.1:{deployment.port}/v1/embeddings"
    first = httpx.post(url, json={"input": "hello"}, timeout=60, headers=KEY)
    assert first.status_code == 200 and httpx.post(url, json={"input": "hello"}).status_code == 401
    sender = threading.Thread(target=send)
    sender.start()
    time.sleep(0.3)
    draining: list[int | None] = []
    watcher = threading.Thread(target=lambda: (time.sleep(1), draining.append(deployment.probe("readinessProbe"))))
    watcher.start()
    exit_status, seconds = deployment.terminate()
    sender.join()
    watcher.join()
    assert exit_status == 0 and seconds < deployment.grace_period_s
    assert answers == [200]  # sent before SIGTERM
    assert draining == [503]  # endpoints are updated while the port is still open
    assert deployment.foreign_writes == []
    assert any((deployment.folder / "data" / "cenote").iterdir())  # the self-check


@pytest.mark.slow
def test_a_kserve_runtime_serves_the_mounted_model_under_the_name_of_its_service(
    tmp_path: Path, default_folder: Path
) -> None:
    replacements = {"/mnt/models": str(default_folder), "--served-model-name={{.Name}}": "--served-model-name=minilm"}
    container = Container(read_runtime("cpu"), tmp_path, 40, replacements)
    container.start()
    try:
        early = wait_for_models(container)
        container.wait_for_start()
        models = container.get("/v1/models")
        metrics = container.get("/metrics").text
    finally:
        container.kill()

    assert early == 503  # gateways send requests to servers whose model list is there
    assert (models.status_code, models.json()["data"][0]["id"]) == (200, "minilm")
    for name in ("vllm:num_requests_waiting", "vllm:num_requests_running"):  # what gateways balance by
        assert f'{name}{{engine="0",model_name="minilm"}} 0.0' in metrics
    assert container.foreign_writes == []


def wait_for_models(container: Container) -> int:
    """Return the first status of /v1/models."""
    for _ in range(1000):
        try:
            return container.get("/v1/models").status_code
        except httpx.TransportError:
            time.sleep(0.02)
    raise AssertionError(container.output)


@pytest.mark.parametrize("name", ["cpu", "gpu"])
def test_a_kserve_runtime_names_no_protocol_as_the_server_has_none_of_kserve(name: str) -> None:
    spec = read_yaml(DEPLOY / "kserve" / f"runtime-{name}.yaml")["spec"]

    assert "protocolVersions" not in spec
    assert not {"/v2", "/v2/models/{model}/infer", "/v1/models/{model}:predict"} & RouteTable(DIALECTS).by_path.keys()


@pytest.mark.parametrize("name", ["deployment", "cpu", "gpu"])
def test_probes_and_grace_periods_fit_the_options(name: str) -> None:
    container = find_deployment()["containers"][0] if name == "deployment" else read_runtime(name)
    settings, _ = parse_config([*container["command"], *container["args"]][2:], {})
    service = read_yaml(DEPLOY / "kserve" / "inference-service.yaml")["spec"]["predictor"]
    pod = find_deployment() if name == "deployment" else service

    assert settings.port == 8000
    assert pod["terminationGracePeriodSeconds"] > settings.shutdown_delay_s + settings.shutdown_timeout_s
    readiness, liveness = container["readinessProbe"], container["livenessProbe"]
    assert readiness["httpGet"]["path"] == "/health/ready" and liveness["httpGet"]["path"] == "/health/live"
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 60  # a restart of the engine is no reason


def test_every_command_and_variable_is_accepted_by_the_server(tmp_path: Path) -> None:
    compose = read_yaml(DEPLOY / "compose.yaml")["services"]["cenote"]
    sky = read_yaml(DEPLOY / "skypilot" / "serve.yaml")
    sky_words = shlex.split(sky["run"].strip().splitlines()[-1])
    commands = [compose["command"], ["BAAI/bge-m3", *sky_words[4:]], read_runtime("gpu")["args"]]

    for words in commands:
        settings, options = parse_config(words, {"CENOTE_LOG_FORMAT": "json", "CENOTE_CACHE_DIR": str(tmp_path)})
        assert make_table(settings, options).entries
    assert sky_words[:4] == ["exec", "~/venv/bin/cenote", "serve", "$MODEL"]
    assert set(sky["envs"]) == {"MODEL", "CENOTE_API_KEY"}


def test_the_ray_service_runs_an_application_that_exists_with_options_that_exist() -> None:
    service = read_yaml(DEPLOY / "ray" / "rayservice.yaml")["spec"]
    (application,) = yaml.safe_load(service["serveConfigV2"])["applications"]
    module, _, name = application["import_path"].partition(":")
    options = application["args"]
    scaling = {option: options.pop(option) for option in ("min_replicas", "max_replicas", "num_gpus")}

    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    assert f"def {name}(" in Path(spec.origin).read_text()
    settings, _ = parse_config([f"--{option.replace('_', '-')}={value}" for option, value in options.items()], {})
    (group,) = service["rayClusterConfig"]["workerGroupSpecs"]
    assert scaling["max_replicas"] == group["maxReplicas"] and settings.api_key_file == "/etc/cenote/keys"


def test_containers_name_the_host_as_no_client_reaches_the_loopback_address_of_a_container() -> None:
    compose = read_yaml(DEPLOY / "compose.yaml")["services"]["cenote"]["command"]
    sky = shlex.split(read_yaml(DEPLOY / "skypilot" / "serve.yaml")["run"].strip().splitlines()[-1])[3:]
    containers = [find_deployment()["containers"][0]["args"], *(read_runtime(name)["args"] for name in ("cpu", "gpu"))]

    for words in (compose, sky, *containers):
        assert parse_config(words, {})[0].host == "0.0.0.0"
    for path in DOCKERFILES:
        assert parse_config([], read_dockerfile(path).environment)[0].host == "0.0.0.0"


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_an_image_runs_the_server_and_checks_that_it_is_alive(path: Path) -> None:
    image = read_dockerfile(path)

    assert image.entrypoint == ["cenote", "serve"] and image.stop_signal == "SIGTERM"
    parse_config([], image.environment)  # refuses unknown variables
    assert "/health/live" in image.healthcheck[-1]
