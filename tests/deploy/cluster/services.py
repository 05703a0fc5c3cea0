"""Services of a cluster: their addresses, their endpoints, and their names."""

from .names import DOMAIN
from .rules import Port


def target_port(port, pod):
    target = port.get("targetPort", port["port"])
    if isinstance(target, int):
        return target
    return next(own["containerPort"] for container in pod.spec["containers"] for own in container.get("ports", ()) if own["name"] == target)


class Services:
    """`outside` has the addresses of names outside the cluster."""

    def __init__(self, cluster):
        self.cluster, self.numbers, self.outside = cluster, {}, {}

    def endpoints(self, service):
        """Pods that a Service sends to. One that shows pods that are not ready shows those that end as well, as Kubernetes does."""
        everyone = service["spec"].get("publishNotReadyAddresses")
        selected = [pod for pod in list(self.cluster.pods) if pod.namespace == service["metadata"]["namespace"]
                    and service["spec"]["selector"].items() <= pod.labels.items()]
        return [pod for pod in selected if pod.addresses and not pod.gone.is_set() and not pod.is_over() and (everyone or pod.is_ready())]

    def service_plans(self, service):
        """The families in which a Service has addresses."""
        both = service["spec"].get("ipFamilyPolicy") in ("PreferDualStack", "RequireDualStack")
        return self.cluster.network.plans if both else self.cluster.network.plans[:1]

    def cluster_addresses(self, service):
        key = (service["metadata"]["namespace"], service["metadata"]["name"])
        if key not in self.numbers:
            self.numbers[key] = len(self.numbers) + 1
        return [plan.service(self.numbers[key]) for plan in self.service_plans(service)]

    def look_up(self, name):
        if name in self.outside:
            return self.outside[name]
        parts = name.removesuffix(f".svc.{DOMAIN}").split(".")
        if not name.endswith(f".svc.{DOMAIN}") or len(parts) != 2:
            return None
        service = self.cluster.find("Service", parts[0], parts[1])
        if service is None:
            return None
        if service["spec"].get("clusterIP") != "None":
            return self.cluster_addresses(service)
        families = [plan.family for plan in self.service_plans(service)]
        return [address for pod in self.endpoints(service) for address in pod.addresses if (6 if ":" in address else 4) in families]

    def ports(self):
        found = []
        for service in self.cluster.of_kind("Service"):
            if service["spec"].get("clusterIP") == "None":
                continue
            pods = self.endpoints(service)
            for address in self.cluster_addresses(service):
                for port in service["spec"]["ports"]:
                    found.append(Port(address, port["port"], tuple(
                        (own, target_port(port, pod)) for pod in pods for own in pod.addresses if (":" in own) == (":" in address))))
        return found
