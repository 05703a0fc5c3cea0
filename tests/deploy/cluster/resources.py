"""The objects of Kubernetes' API that the chart's pods read and change: Deployments, their scale, and Leases. Versions, conflicts and
refusals are those of the API server."""

import json
import re

MERGES = ("application/merge-patch+json", "application/strategic-merge-patch+json")
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)$")
REASONS = {400: "BadRequest", 401: "Unauthorized", 403: "Forbidden", 404: "NotFound", 405: "MethodNotAllowed", 409: "Conflict",
           415: "UnsupportedMediaType", 422: "Invalid"}


class Refused(Exception):
    """A call that is answered with a Status object."""

    def __init__(self, code, message, reason=None):
        super().__init__(message)
        self.code, self.reason = code, reason or REASONS[code]

    def status(self):
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": str(self), "reason": self.reason,
                "code": self.code}


def merge(target, patch):
    """RFC 7396."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def sent_object(ask, kind, body):
    """The object of a request's body."""
    try:
        found = json.loads(body)
    except ValueError as error:
        raise Refused(400, f"the body is no JSON: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.setdefault("metadata", {}), dict):
        raise Refused(400, "the body is no object")
    if kind and found.get("kind") != kind:
        raise Refused(400, f"the body is a {found.get('kind')}, not a {kind}")
    if ask.name and found["metadata"].get("name", ask.name) != ask.name:
        raise Refused(400, f"the name of the object ({found['metadata']['name']}) does not match the name on the URL ({ask.name})")
    return found


def check_version(ask, sent, held):
    """`sent` replaces what the caller has read, or everything where it names no version."""
    version = sent["metadata"].get("resourceVersion")
    if version and version != held["metadata"]["resourceVersion"]:
        raise Refused(409, f"Operation cannot be fulfilled on {ask.object()}: the object has been modified; please apply your changes to the "
                           "latest version and try again")


def find(cluster, kind, ask):
    item = cluster.find(kind, ask.name, ask.namespace)
    if item is None:
        raise Refused(404, f"{ask.object()} not found")
    return item


def changed(ask, kind, held, body, content_type):
    """The object after an update or a patch of `held`."""
    if ask.verb == "update":
        return sent_object(ask, kind, body)
    if content_type not in MERGES:
        raise Refused(415, f"the body of a patch is of one of the types {', '.join(MERGES)}, not {content_type}")
    return merge(held, sent_object(ask, None, body))


# ---- Deployments ----

def deployment(cluster, ask, body, content_type):
    item = find(cluster, "Deployment", ask)
    if ask.verb == "patch":
        patch = sent_object(ask, None, body)
        if content_type not in MERGES or "spec" not in patch or set(patch) - {"spec", "metadata"} or patch["metadata"]:
            raise Refused(422, "this server merges the spec of a Deployment and nothing else")
        item = cluster.patch(ask.name, patch["spec"])
    elif ask.verb != "get":
        raise Refused(405, f"this server does not {ask.verb} Deployments")
    return 200, {key: value for key, value in item.items() if key != "progress"}


def scale_of(item):
    """The Scale of a Deployment. Zeros are left out."""
    metadata, labels = item["metadata"], item["spec"].get("selector", {}).get("matchLabels", {})
    replicas = item["spec"]["replicas"]
    return {"kind": "Scale", "apiVersion": "autoscaling/v1",
            "metadata": {key: metadata[key] for key in ("name", "namespace", "resourceVersion")},
            "spec": {"replicas": replicas} if replicas else {},
            "status": {"replicas": item.get("status", {}).get("replicas", 0), "selector": ",".join(map("=".join, labels.items()))}}


def scale(cluster, ask, body, content_type):
    item = find(cluster, "Deployment", ask)
    if ask.verb not in ("get", "update", "patch"):
        raise Refused(405, f"there is no {ask.verb} of a scale")
    if ask.verb != "get":
        held = scale_of(item)
        sent = changed(ask, "Scale", held, body, content_type)
        check_version(ask, sent, held)
        replicas = sent.get("spec", {}).get("replicas", 0)
        if not isinstance(replicas, int) or replicas < 0:
            raise Refused(422, f"Scale.autoscaling \"{ask.name}\" is invalid: spec.replicas: Invalid value: {replicas}: must be greater than or "
                               "equal to 0")
        item = cluster.patch(ask.name, {"replicas": replicas})
    return 200, scale_of(item)


# ---- Leases ----

def check_lease(lease):
    """As the API server decodes and validates it."""
    name, spec = lease["metadata"].get("name"), lease.get("spec", {})
    for key in ("acquireTime", "renewTime"):
        if spec.get(key) is not None and not MICRO_TIME.match(spec[key]):
            raise Refused(400, f"Lease in version \"v1\" cannot be handled as a Lease: {key}: cannot parse {spec[key]!r} as a time of six decimals")
    for key, least in (("leaseDurationSeconds", 1), ("leaseTransitions", 0)):
        if spec.get(key) is not None and spec[key] < least:
            raise Refused(422, f"Lease.coordination.k8s.io \"{name}\" is invalid: spec.{key}: Invalid value: {spec[key]}: must be at least {least}")


def keep_lease(cluster, ask, sent):
    check_lease(sent)
    name = sent["metadata"]["name"]
    lease = {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "spec": sent.get("spec", {}),
             "metadata": {**sent["metadata"], "name": name, "namespace": ask.namespace, "resourceVersion": cluster.next_version()}}
    cluster.objects[("Lease", ask.namespace, name)] = lease
    return lease


def lease(cluster, ask, body, content_type):
    if ask.verb == "create":
        sent = sent_object(ask, "Lease", body)
        name = sent["metadata"].get("name")
        if ask.name or not name:
            raise Refused(405 if ask.name else 422, "a Lease is created by a POST to all Leases with its name in the body")
        if cluster.find("Lease", name, ask.namespace):
            raise Refused(409, f"leases.coordination.k8s.io \"{name}\" already exists", "AlreadyExists")
        return 201, keep_lease(cluster, ask, sent)
    held = find(cluster, "Lease", ask)
    if ask.verb == "get":
        return 200, held
    if ask.verb not in ("update", "patch"):
        raise Refused(405, f"this server does not {ask.verb} Leases")
    sent = changed(ask, "Lease", held, body, content_type)
    if not sent["metadata"].get("resourceVersion"):
        raise Refused(422, f"Lease.coordination.k8s.io \"{ask.name}\" is invalid: metadata.resourceVersion: Invalid value: 0x0: must be specified "
                           "for an update")
    check_version(ask, sent, held)
    return 200, keep_lease(cluster, ask, {**sent, "metadata": {**sent["metadata"], "name": ask.name}})


RESOURCES = {("apps", "deployments"): deployment, ("apps", "deployments/scale"): scale, ("coordination.k8s.io", "leases"): lease}
