"""JSON schemas of the custom resources in deploy/: the fields that are used, and no others.

The schemas of Kubernetes itself come from kubernetes-validate; no package has those of KEDA, KServe, KubeRay and the
Prometheus operator. Pod specs inside them are checked as pods.
"""

from __future__ import annotations

from typing import Any

STRING, INTEGER, BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
ANY_OBJECT = {"type": "object"}
STRINGS = {"type": "object", "additionalProperties": STRING}


def make_object(required: dict[str, Any], optional: dict[str, Any] | None = None) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {**required, **(optional or {})},
        "required": list(required),
    }


def make_list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1}


RAY_GROUP = {"rayStartParams": STRINGS, "template": make_object({"spec": ANY_OBJECT})}
RAY_CLUSTER = make_object(
    {
        "rayVersion": STRING,
        "headGroupSpec": make_object(RAY_GROUP),
        "workerGroupSpecs": make_list(
            make_object(
                {**RAY_GROUP, "groupName": STRING, "replicas": INTEGER, "minReplicas": INTEGER, "maxReplicas": INTEGER}
            )
        ),
    },
    {"enableInTreeAutoscaling": BOOLEAN},
)
PROMETHEUS_TRIGGER = make_object(
    {
        "type": {"const": "prometheus"},
        "metadata": make_object({"serverAddress": STRING, "query": STRING, "threshold": STRING}),
    },
    {"metricType": {"enum": ["AverageValue", "Value"]}},
)
SPECS: dict[str, dict[str, Any]] = {
    "keda.sh/v1alpha1 ScaledObject": make_object(
        {
            "scaleTargetRef": make_object({"name": STRING}),
            "minReplicaCount": INTEGER,
            "maxReplicaCount": INTEGER,
            "triggers": make_list(PROMETHEUS_TRIGGER),
        },
        {"pollingInterval": INTEGER, "cooldownPeriod": INTEGER, "advanced": ANY_OBJECT},
    ),
    "monitoring.coreos.com/v1 ServiceMonitor": make_object(
        {
            "selector": make_object({"matchLabels": STRINGS}),
            "endpoints": make_list(
                make_object(
                    {"port": STRING, "path": STRING, "interval": STRING},
                    {"authorization": make_object({"credentials": make_object({"name": STRING, "key": STRING})})},
                )
            ),
        }
    ),
    "serving.kserve.io/v1alpha1 ClusterServingRuntime": make_object(
        {
            "supportedModelFormats": make_list(
                make_object({"name": STRING}, {"version": STRING, "autoSelect": BOOLEAN, "priority": INTEGER})
            ),
            "containers": make_list(ANY_OBJECT),
        },
        {"annotations": STRINGS, "volumes": make_list(ANY_OBJECT)},
    ),
    "serving.kserve.io/v1beta1 InferenceService": make_object(
        {
            "predictor": make_object(
                {
                    "model": make_object(
                        {"modelFormat": make_object({"name": STRING}), "storageUri": STRING}, {"runtime": STRING}
                    )
                },
                {
                    "minReplicas": INTEGER,
                    "maxReplicas": INTEGER,
                    "terminationGracePeriodSeconds": INTEGER,
                    "autoScaling": make_object({"metrics": make_list(ANY_OBJECT)}),
                },
            )
        }
    ),
    "ray.io/v1 RayCluster": RAY_CLUSTER,
    "ray.io/v1 RayService": make_object(
        {"serveConfigV2": STRING, "rayClusterConfig": RAY_CLUSTER},
        {"serviceUnhealthySecondThreshold": INTEGER, "deploymentUnhealthySecondThreshold": INTEGER},
    ),
}
