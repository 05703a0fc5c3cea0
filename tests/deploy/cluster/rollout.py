"""The decisions of Kubernetes' controllers as pure functions: RollingUpdate of a Deployment (pkg/controller/deployment/rolling.go),
which pods of a ReplicaSet go first, the node of a new pod, and whether a PodDisruptionBudget admits an eviction."""

import dataclasses
import hashlib
import json
import math

from .rules import matches


@dataclasses.dataclass
class ReplicaSet:
    """The pods of one version of a Deployment. `wanted` is what the Deployment controller decides."""
    name: str
    hash: str
    template: dict
    wanted: int = 0
    available: int = 0


def resolve(value, whole, up):
    """A number or a percentage of `whole`."""
    if isinstance(value, str):
        share = int(value.rstrip("%")) * whole / 100
        return math.ceil(share) if up else math.floor(share)
    return value


def limits(strategy, desired):
    """maxSurge and maxUnavailable as numbers."""
    surge, unavailable = resolve(strategy.get("maxSurge", "25%"), desired, True), resolve(strategy.get("maxUnavailable", "25%"), desired, False)
    return surge, unavailable if surge or unavailable else 1


def hash_of(template):
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def roll(desired, strategy, new, old):
    """Sets `wanted` of the new set and of the old ones for the next step of a rolling update."""
    surge, unavailable = limits(strategy, desired)
    if new.wanted > desired:
        new.wanted = desired
        return
    total = new.wanted + sum(one.wanted for one in old)
    if new.wanted < desired and total < desired + surge:
        new.wanted += min(desired + surge - total, desired - new.wanted)
        return
    shrink(desired - unavailable, new, old)


def shrink(least, new, old):
    """Old pods go as far as `least` pods stay available: first those that are not available."""
    total = new.wanted + sum(one.wanted for one in old)
    may_go = total - least - (new.wanted - min(new.available, new.wanted))
    for one in old:
        going = max(0, min(may_go, one.wanted - one.available))
        one.wanted, may_go = one.wanted - going, may_go - going
    may_go = min(may_go, sum(one.available for one in [new, *old]) - least)
    for one in old:
        going = max(0, min(may_go, one.wanted))
        one.wanted, may_go = one.wanted - going, may_go - going


def first_to_go(pods):
    """Pods in the order in which a ReplicaSet that shrinks deletes them: not ready, then many on one node, then young."""
    def together(pod):
        return sum(other.node is pod.node for other in pods)
    return sorted(pods, key=lambda pod: (pod.is_ready(), -together(pod), -pod.created))


def host_ports(spec):
    return {port["containerPort"] for container in spec["containers"] for port in container.get("ports", ())} if spec.get("hostNetwork") else set()


def fits(spec, node, pods):
    """Why the pod cannot be on the node; "" if it can."""
    if node.cordoned or node.lost:
        return "not schedulable"
    if not (spec.get("nodeSelector") or {}).items() <= node.labels.items():
        return "nodeSelector"
    wanted = (spec.get("affinity") or {}).get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution")
    if wanted and not any(matches(term, node.labels) for term in wanted["nodeSelectorTerms"]):
        return "nodeAffinity"
    if any(host_ports(spec) & host_ports(pod.spec) for pod in pods if pod.node is node and not pod.gone.is_set()):
        return "host ports"
    for container in spec["containers"]:
        device = [name for name in container.get("resources", {}).get("limits", {}) if "/" in name]
        if device:
            return f"no {device[0]}"
    return ""


def place(spec, labels, nodes, pods):
    """The node with the fewest pods of the same Deployment, then with the fewest of all; or None and why."""
    reasons = {node.name: fits(spec, node, pods) for node in nodes}
    able = [node for node in nodes if not reasons[node.name]]
    if not able:
        return None, reasons
    here = [pod for pod in pods if pod.deleting is None]

    def load(node):
        mine = [pod for pod in here if pod.node is node]
        same = [pod for pod in mine if {**pod.labels, "pod-template-hash": ""} == {**labels, "pod-template-hash": ""}]
        return len(same), len(mine), node.number
    return min(able, key=load), reasons


def admits(budget, pod, pods, expected):
    """Whether a budget lets an eviction of `pod` pass, where `pods` are those that it selects and `expected` is their number."""
    if not pod.is_ready() and budget.get("unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    if "maxUnavailable" in budget:
        least = expected - resolve(budget["maxUnavailable"], expected, True)
    else:
        least = resolve(budget["minAvailable"], expected, True)
    return sum(one.is_ready() for one in pods) - 1 >= least
