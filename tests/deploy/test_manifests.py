"""Manifests for Kubernetes: checked against its schemas, and the Helm chart rendered with several values."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.chart import CHART, DEPLOY, MANIFEST_VALUES, check_values, read_all_yaml, read_yaml, render_chart
from tests.deploy.custom_resources import SPECS

EXAMPLES = sorted((DEPLOY / "helm" / "examples").glob("*.yaml"))
MANIFESTS = [*(DEPLOY / "kubernetes").glob("*"), *(DEPLOY / "kserve").glob("*"), *(DEPLOY / "ray").glob("*")]
KUBERNETES_VERSION = "1.31"


def check_manifest(document: dict[str, Any]) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="install kubernetes-validate")
    kind = f"{document['apiVersion']} {document['kind']}"
    if kind not in SPECS:
        kubernetes_validate.validate(document, KUBERNETES_VERSION, strict=True)
        return
    jsonschema.Draft202012Validator(SPECS[kind]).validate(document["spec"])
    for spec in find_pod_specs(document["spec"]):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": document["metadata"], "spec": spec}
        kubernetes_validate.validate(pod, KUBERNETES_VERSION, strict=True)


def find_pod_specs(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the parts with containers."""
    if isinstance(value, dict) and "containers" in value:
        yield {name: value[name] for name in value if name not in RUNTIME_FIELDS}
    elif isinstance(value, dict):
        for part in value.values():
            yield from find_pod_specs(part)
    elif isinstance(value, list):
        for part in value:
            yield from find_pod_specs(part)


RUNTIME_FIELDS = ("annotations", "supportedModelFormats")  # of KServe, beside those of a pod


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_manifest_matches_its_schema(path: Path) -> None:
    documents = read_all_yaml(path)

    for document in documents:
        check_manifest(document)
    assert documents


@pytest.mark.parametrize("change", [{"replicaz": 1}, {"replicas": "two"}], ids=["unknown field", "wrong type"])
def test_a_mistake_in_a_manifest_is_found(change: dict[str, Any]) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="install kubernetes-validate")
    document = read_all_yaml(DEPLOY / "kubernetes" / "cenote.yaml")[0]

    with pytest.raises(kubernetes_validate.ValidationError):
        check_manifest({**document, "spec": {**document["spec"], **change}})


def test_a_mistake_in_a_custom_resource_is_found() -> None:
    document = read_all_yaml(DEPLOY / "ray" / "raycluster.yaml")[0]
    del document["spec"]["headGroupSpec"]["rayStartParams"]

    with pytest.raises(jsonschema.ValidationError, match="rayStartParams"):
        check_manifest(document)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_chart_renders_with_the_values_of_an_example(path: Path) -> None:
    documents = render_chart(read_yaml(path))

    for document in documents:
        check_manifest(document)
    assert {"Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget"} <= {each["kind"] for each in documents}


def test_the_manifests_are_those_of_the_chart() -> None:
    written = read_all_yaml(DEPLOY / "kubernetes" / "cenote.yaml")  # python -m tests.deploy.chart

    assert render_chart(MANIFEST_VALUES) == written


def render_by_kind(values: dict[str, Any], **options: Any) -> dict[str, dict[str, Any]]:
    return {document["kind"]: document for document in render_chart(values, **options)}


def test_the_chart_makes_a_random_key_that_the_server_requires_and_prometheus_sends() -> None:
    documents = render_by_kind({"serviceMonitor": {"enabled": True}})

    check_manifest(documents["Secret"])
    name, key = documents["Secret"]["metadata"]["name"], base64.b64decode(documents["Secret"]["data"]["api-key"])
    pod = documents["Deployment"]["spec"]["template"]["spec"]
    (endpoint,) = documents["ServiceMonitor"]["spec"]["endpoints"]
    assert len(key) == 43 and key.isalnum()
    assert render_by_kind({})["Secret"]["data"] != documents["Secret"]["data"]
    assert "--api-key-file=/etc/cenote/keys" in pod["containers"][0]["args"]
    assert name in [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume]
    assert endpoint["authorization"]["credentials"] == {"name": name, "key": "api-key"}


def test_an_upgrade_keeps_the_key_of_the_chart() -> None:
    installed = render_by_kind({})["Secret"]

    assert render_by_kind({}, cluster=[installed])["Secret"] == installed


def test_the_chart_makes_no_key_beside_an_existing_secret_or_if_it_shall_not() -> None:
    given, none = render_by_kind({"apiKey": {"existingSecret": "mine"}}), render_by_kind({"apiKey": {"create": False}})

    (given_pod, open_pod) = (each["Deployment"]["spec"]["template"]["spec"] for each in (given, none))
    assert "Secret" not in given and "Secret" not in none
    assert [volume["secret"]["secretName"] for volume in given_pod["volumes"] if "secret" in volume] == ["mine"]
    assert not [word for word in open_pod["containers"][0]["args"] if "key" in word]


OWN_NAMESPACE, ALL_NAMESPACES = {"podSelector": {}}, {"namespaceSelector": {"matchLabels": {}}}
BLOCK = {"ipBlock": {"cidr": "192.0.2.0/24"}}


@pytest.mark.parametrize(
    ("policy", "sources"),
    [
        ({}, [OWN_NAMESPACE]),
        ({"allowedNamespaces": [{}]}, [ALL_NAMESPACES]),
        ({"allowedCidrs": ["192.0.2.0/24"]}, [OWN_NAMESPACE, BLOCK]),
    ],
)
def test_only_the_namespace_of_the_release_may_connect_unless_values_name_others(
    policy: dict[str, Any], sources: list[dict[str, Any]]
) -> None:
    document = render_by_kind({"networkPolicy": policy})["NetworkPolicy"]

    check_manifest(document)
    (rule,) = document["spec"]["ingress"]
    assert rule["from"] == sources


def test_the_values_of_the_chart_reach_the_container() -> None:
    documents = {each["kind"]: each for each in render_chart(read_yaml(DEPLOY / "helm" / "examples" / "gpu.yaml"))}

    pod = documents["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][0] == "BAAI/bge-m3"
    assert "--api-key-file=/etc/cenote/keys" in container["args"] and "--api-server-count=4" in container["args"]
    assert container["resources"]["limits"] == {"memory": "24Gi", "nvidia.com/gpu": 1}
    claims = [
        volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"] if "persistentVolumeClaim" in volume
    ]
    assert claims == [documents["PersistentVolumeClaim"]["metadata"]["name"]]
    assert "replicas" not in documents["Deployment"]["spec"]  # the autoscaler decides
    queries = [trigger["metadata"]["query"] for trigger in documents["ScaledObject"]["spec"]["triggers"]]
    assert queries[0].startswith("sum(cenote_waiting_tokens{") and queries[1].startswith("max(cenote_queue_oldest")


def test_the_horizontal_pod_autoscaler_follows_tokens() -> None:
    documents = {each["kind"]: each for each in render_chart(read_yaml(DEPLOY / "helm" / "examples" / "s3.yaml"))}

    (metric,) = documents["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == "cenote_waiting_tokens"
    assert metric["pods"]["target"]["averageValue"] == "20000"
    (rule,) = documents["NetworkPolicy"]["spec"]["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "search"}}}]


def test_a_pod_without_egress_reaches_only_the_name_server() -> None:
    documents = {each["kind"]: each for each in render_chart(read_yaml(DEPLOY / "helm" / "examples" / "mounted.yaml"))}

    (rule,) = documents["NetworkPolicy"]["spec"]["egress"]
    assert {port["port"] for port in rule["ports"]} == {53}


@pytest.mark.parametrize(
    "values", [{"modle": "x"}, {"replicas": "two"}, {"autoscaling": {"kind": "magic"}}, {"cache": {"size": "20"}}]
)
def test_invalid_values_are_refused(values: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        check_values(values)


def test_the_schema_describes_every_value() -> None:
    values = read_yaml(CHART / "values.yaml")

    check_values(values)
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_containers_run_without_privileges(path: Path) -> None:
    for document in read_all_yaml(path):
        for pod in find_pod_specs(document.get("spec")):
            for container in pod["containers"]:
                security = {**pod.get("securityContext", {}), **container["securityContext"]}
                assert security["runAsNonRoot"] and not security["allowPrivilegeEscalation"]
                assert security["capabilities"] == {"drop": ["ALL"]}
