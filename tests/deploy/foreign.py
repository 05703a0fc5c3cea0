"""The fields of other projects' kinds that the chart writes, as closed JSON schemas: their own schemas are in no package. A field that
another version of the chart adds must be added here, after a look into the project's reference."""

import jsonschema

TEXT = {"type": "string", "minLength": 1}
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
# GEP-2257 of the Gateway API, and Prometheus's durations.
GATEWAY_DURATION = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
PROMETHEUS_DURATION = {"type": "string", "pattern": "^([0-9]+(d|h|m|s|ms))+$"}
DNS_NAME = {"type": "string", "pattern": r"^(\*\.)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}


def closed(properties, required=None):
    return {"type": "object", "additionalProperties": False, "properties": properties,
            "required": sorted(properties) if required is None else required}


def some(item, most=None):
    return {"type": "array", "items": item, "minItems": 1, **({"maxItems": most} if most else {})}


PARENT = closed({"group": TEXT, "kind": TEXT, "name": TEXT, "namespace": TEXT, "sectionName": TEXT, "port": PORT}, ["name"])
POOL = "inference.networking.k8s.io"
BACKEND = {"oneOf": [closed({"name": TEXT, "port": PORT}), closed({"group": {"const": POOL}, "kind": {"const": "InferencePool"}, "name": TEXT})]}


def route(match, more=None):
    rule = closed({"matches": some(match, 64), "backendRefs": some(BACKEND, 16), **(more or {})}, ["matches", "backendRefs"])
    return closed({"parentRefs": some(PARENT, 32), "hostnames": some(DNS_NAME, 16), "rules": some(rule, 16)}, ["parentRefs", "rules"])


PATH = closed({"path": {"oneOf": [closed({"type": {"enum": ["Exact", "PathPrefix"]}, "value": {"type": "string", "pattern": "^/[^#?]*$"}})]}})
METHOD = closed({"method": closed({"service": {"type": "string", "pattern": r"^([A-Za-z_]\w*\.)*[A-Za-z_]\w*$"}})})
RELABELING = closed({"targetLabel": TEXT, "sourceLabels": some(TEXT), "regex": TEXT, "replacement": TEXT, "action": {"enum": ["replace"]}},
                    ["targetLabel"])
RULE = {"oneOf": [
    closed({"alert": TEXT, "expr": TEXT, "for": PROMETHEUS_DURATION, "labels": LABELS, "annotations": LABELS}, ["alert", "expr"]),
    closed({"record": TEXT, "expr": TEXT, "labels": LABELS}, ["record", "expr"])]}
SPECS = {
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): route(PATH, {"timeouts": closed({"request": GATEWAY_DURATION})}),
    ("gateway.networking.k8s.io/v1", "GRPCRoute"): route(METHOD),
    (f"{POOL}/v1", "InferencePool"): closed({
        "selector": closed({"matchLabels": LABELS}), "targetPorts": some(closed({"number": PORT}), 8),
        "endpointPickerRef": closed({"name": TEXT, "port": closed({"number": PORT}), "failureMode": {"enum": ["FailOpen", "FailClose"]}})}),
    ("monitoring.coreos.com/v1", "PodMonitor"): closed({
        "selector": closed({"matchLabels": LABELS}),
        "podMetricsEndpoints": some(closed({"port": TEXT, "interval": PROMETHEUS_DURATION, "relabelings": some(RELABELING),
                                            "metricRelabelings": some(RELABELING)}))}),
    ("monitoring.coreos.com/v1", "PrometheusRule"): closed({
        "groups": some(closed({"name": TEXT, "rules": some(RULE), "interval": PROMETHEUS_DURATION}, ["name", "rules"]))}),
    ("keda.sh/v1alpha1", "ScaledObject"): closed({
        "scaleTargetRef": closed({"name": TEXT}), "minReplicaCount": {"type": "integer"}, "maxReplicaCount": {"type": "integer"},
        "advanced": closed({"horizontalPodAutoscalerConfig": closed({"behavior": {"type": "object"}})}),
        # KEDA takes metadata of triggers as text alone.
        "triggers": some(closed({"type": {"const": "prometheus"},
                                 "metadata": closed({"serverAddress": TEXT, "query": TEXT, "threshold": TEXT})}))}),
}
METADATA = closed({"name": TEXT, "labels": LABELS, "annotations": LABELS}, ["name"])
KINDS = {kind for _, kind in SPECS}


def validate(item):
    spec = SPECS[item["apiVersion"], item["kind"]]
    jsonschema.validate(item, closed({"apiVersion": TEXT, "kind": TEXT, "metadata": METADATA, "spec": spec}))
