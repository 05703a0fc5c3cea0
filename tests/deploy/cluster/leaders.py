"""Which router decides on the workers, and for how long: by its metrics and its log, by the Lease, and by the API server's record."""

import dataclasses
import http.client
import json

from .installed import check, eventually
from .network import url_host

LEASE = "penstock-autoscaling"


def metrics(pod):
    """Every series of a pod to its value, as the node's Prometheus scrapes them; empty where the pod does not answer."""
    if not pod.addresses:
        return {}
    port = next(port["containerPort"] for port in pod.spec["containers"][0]["ports"] if port["name"] == "metrics")
    connection = http.client.HTTPConnection(url_host(pod.addresses[0]), port, timeout=2)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException):
        return {}
    finally:
        connection.close()
    series = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in series}


def said(pod, event):
    """The lines of a pod's log with an event, in the chart's format."""
    lines = [json.loads(line) for line in pod.log_text().splitlines() if line.startswith("{") and line.endswith("}")]
    return [line for line in lines if line["event"] == event]


@dataclasses.dataclass
class Term:
    """The time for which a router held the Lease, from its first to its last successful renewal."""
    pod: str
    begun: float
    renewed: float
    changes: int = 0  # of replicas


def terms(installed):
    """In their order. Who changes replicas must hold the Lease at that moment."""
    found, holds = [], ""
    for call in list(installed.api.calls):
        if call.ask is None or call.ask.verb == "get" or call.status >= 300:
            continue
        if call.ask.resource == "deployments/scale":
            check(call.pod == holds, f"{call.pod} changed {call.ask.name}, and '{holds}' held the Lease")
            found[-1].changes += 1
            continue
        before, holds = holds, call.item["spec"].get("holderIdentity", "")
        check(call.pod in (before, holds), f"{call.pod} wrote {holds} into the Lease of {before}")
        if holds and holds != before:
            found.append(Term(holds, call.time, call.time))
        elif holds:
            found[-1].renewed = call.time
    return found


def holder(installed):
    lease = installed.cluster.find("Lease", LEASE)
    return lease["spec"].get("holderIdentity", "") if lease else ""


def await_leader(installed, besides="", patience_s=10):
    """The router that holds the Lease and says so in its metric."""
    def leads(pod):
        return holder(installed) == pod.name != besides and metrics(pod).get("penstock_router_scale_leader") == 1
    return eventually(lambda: next((pod for pod in installed.pods("router") if leads(pod)), None), patience_s, "a router that decides")
