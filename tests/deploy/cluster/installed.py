"""A cluster with a release of the chart from some values, and what a test asks about it."""

import concurrent.futures
import hashlib
import json
import shutil
import sys
import time

import yaml

from . import image, release
from .api import Api
from .certificates import Authority
from .cluster import NAMESPACE, Cluster
from .hub import Hub
from .load import Load
from .names import DOMAIN

sys.path.insert(0, str(image.ROOT / "deploy"))
import render  # noqa: E402

MODEL = "penstock-tiny"
KEY = "psk-0123456789abcdef0123456789abcdef"
KEYS = {"tenants": [{"name": "acme", "requests": 64}], "keys": [
    {"id": "acme-test", "tenant": "acme", "sha256": hashlib.sha256(KEY.encode()).hexdigest(), "expires": "2099-12-31"}]}
PUBLIC_NAMES = ["DNS:penstock", f"DNS:penstock.{NAMESPACE}", f"DNS:penstock.{NAMESPACE}.svc", f"DNS:penstock.{NAMESPACE}.svc.{DOMAIN}"]
ROLES = ("router", "prefill", "decode")
# What variants name and a cluster would have.
SECRETS = {"more": {"FROM_SECRET": "1"}, "hf": {"secret": "right"}, "hf-token": {"token": "right"}}
CONFIG_MAPS = {"settings": {"io": "threads"}}
DEFAULTS = yaml.safe_load((render.CHART / "values.yaml").read_text())


class Unready(AssertionError):
    """Pods that are not ready in time."""


def eventually(done, patience_s, what):
    """What `done` gives once that is true."""
    end = time.monotonic() + patience_s
    while True:
        result = done()
        if result:
            return result
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {patience_s} s")
        time.sleep(0.05)


def check(true, what):
    if not true:
        raise AssertionError(what)


def merged(values, more):
    """Values as Helm merges them."""
    result = dict(values)
    for key, value in more.items():
        result[key] = merged(result[key], value) if isinstance(value, dict) and isinstance(result.get(key), dict) else value
    return result


class Installed:
    """`hurry` shortens minReadySeconds, for tests that run often; all else is as rendered, but for kinds that are `withheld`."""

    def __init__(self, folder, programs, values, families=(4,), nodes=3, hurry=False):
        self.values, self.hurry, self.withheld = merged(DEFAULTS, values), hurry, set()
        self.authority = Authority()
        self.cluster = Cluster(folder, programs, self.authority, families, nodes, self.values["openshift"])
        self.api, self.hub = Api(self.cluster, self.authority), Hub(self.cluster, self.authority)
        self.cluster.namespaces["monitoring"].update(self.values["monitoring"]["namespaceLabels"])
        self.cluster.namespaces["gateways"] = {"kubernetes.io/metadata.name": "gateways"}
        self.make_secrets()
        self.fill_claim()

    # ---- Around the release ----

    def make_secrets(self):
        self.put("ConfigMap", CONFIG_MAPS)
        self.put("Secret", SECRETS)
        if self.values["apiKeys"]["secret"]:
            self.put("Secret", {self.values["apiKeys"]["secret"]: {"keys.json": json.dumps(KEYS)}})
        self.renew_certificates()

    def put(self, kind, items):
        self.cluster.apply([{"kind": kind, "metadata": {"name": name}, "data": data} for name, data in items.items()])

    def renew_certificates(self, **times):
        """As cert-manager does: new certificates of the same CA in the same Secrets."""
        tls = self.values["tls"]
        for name, names in ((tls["cluster"], ["DNS:member"]), (tls["clusterRouter"], ["DNS:router"]), (tls["public"], PUBLIC_NAMES)):
            if name:
                self.put("Secret", {name: self.authority.issue(names, **times)})

    def fill_claim(self):
        """A shared volume has the model already, unless the chart fetches it."""
        model = self.values["model"]
        claim = model["volume"].get("persistentVolumeClaim")
        if claim and not model["download"]["uri"]:
            target = self.cluster.claim(claim["claimName"]) / model["path"].removeprefix(model["mountPath"] + "/")
            shutil.copytree(image.ROOT / "models" / MODEL, target)

    # ---- The release ----

    def rendered(self, values, event):
        items = render.render(values, upgrade=event == "upgrade")
        for item in items:
            if self.hurry and item["kind"] == "Deployment":
                item["spec"]["minReadySeconds"] = 1
        return [item for item in items if item["kind"] not in self.withheld]

    def apply(self, values, event="install"):
        """Logs of the release's Jobs."""
        self.values = merged(DEFAULTS, values)
        return release.apply(self.cluster, self.rendered(values, event), event)

    def pods(self, role=None):
        return [pod for pod in list(self.cluster.pods) if pod.owner and pod.deleting is None
                and role in (None, pod.labels["app.kubernetes.io/component"])]

    def leaving(self):
        return [pod for pod in list(self.cluster.pods) if pod.owner and pod.deleting is not None]

    def roles_on(self, node):
        return sorted({pod.labels["app.kubernetes.io/component"] for pod in self.pods() if pod.node is node})

    def wanted(self):
        return sum(item["spec"]["replicas"] for item in self.cluster.of_kind("Deployment"))

    def are_ready(self):
        pods = self.pods()
        return len(pods) == self.wanted() and all(pod.is_ready() for pod in pods)

    def await_ready(self, patience_s=90):
        try:
            eventually(self.are_ready, patience_s, "ready pods")
        except AssertionError as error:
            raise Unready(f"{error}\n{self.describe()}") from error

    def is_rolled_out(self):
        return all(item.get("status", {}).get("state") == (item["spec"]["replicas"],) * 3 and
                   item["status"]["observedGeneration"] == item["metadata"]["generation"] for item in self.cluster.of_kind("Deployment"))

    def describe(self):
        """As `kubectl describe pods` and `kubectl logs`."""
        lines = [f"not schedulable: {self.cluster.unschedulable}" if self.cluster.unschedulable else "", *self.cluster.problems]
        for pod in self.cluster.pods:
            if pod.owner and not pod.is_ready():
                last = [f"{event['event']} {event.get('why', '')} {event.get('code', '')}".strip() for event in pod.events[-4:]]
                lines.append(f"{pod.name} on {pod.node.name}: {pod.phase}, {pod.restarts} restarts; {'; '.join(last)}")
                for path in self.cluster.logs.glob(f"{pod.name}.*.log"):
                    lines.append(path.read_text(errors="replace")[-1500:])
        return "\n".join(filter(None, lines))

    def url(self):
        scheme = "https" if self.values["tls"]["http"] else "http"
        return f"{scheme}://penstock:{self.values['router']['service']['httpPort']}"

    def model_name(self):
        return self.values["model"]["name"] or self.values["model"]["path"].rsplit("/", 1)[1]

    def key(self):
        return KEY if self.values["apiKeys"]["secret"] else ""

    def load(self, name="load", node=None, **plan):
        """Clients that have their undisturbed answers."""
        plan = {"url": self.url(), "key": self.key(), **plan, "request": {"model": self.model_name(), **plan.get("request", {})}}
        load = Load(self.cluster, name, plan, self.authority.text, node=node)
        eventually(load.is_ready, 120, "undisturbed answers")
        return load

    # ---- Another pod's view ----

    def bystander(self, name, namespace=NAMESPACE, labels=None):
        """A pod that does nothing but run programs of the test."""
        container = {"name": "idle", "image": "idle", "volumeMounts": [{"name": "ca", "mountPath": "/ca"}]}
        self.put("ConfigMap", {"ca": {"ca.crt": self.authority.text}})
        spec = {"terminationGracePeriodSeconds": 5, "containers": [container], "volumes": [{"name": "ca", "configMap": {"name": "ca"}}]}
        pod = self.cluster.run_pod(name, spec, labels or {"app": name}, namespace)
        eventually(lambda: pod.phase == "Running" and "idle" in pod.running, 20, f"pod {name}")
        return pod

    def run_in(self, pod, *words, timeout_s=30):
        return next(iter(pod.running.values())).exec(words, timeout_s)

    def await_rules(self):
        """Until all nodes know all endpoints and policies."""
        eventually(lambda: not self.cluster.changed.is_set(), 20, "rules on nodes")
        time.sleep(0.6)

    def reaches(self, pod, targets):
        """(address, port) to whether a connection comes about."""
        program = ("import concurrent.futures as f, json, socket, sys\n"
                   "def one(to):\n try: socket.create_connection(tuple(to), 1.5).close(); return True\n except OSError: return False\n"
                   "print(json.dumps(list(f.ThreadPoolExecutor(32).map(one, json.loads(sys.argv[1])))))")
        code, text = self.run_in(pod, "python3", "-c", program, json.dumps(targets))
        if code != 0:
            raise AssertionError(f"{pod.name}: {text}")
        return dict(zip(map(tuple, targets), json.loads(text)))

    def generate(self, pod, prompt="Once upon a time"):
        """The text of an answer over gRPC, by the program that operators have."""
        scheme = "https://" if self.values["tls"]["public"] else ""
        words = ["/usr/bin/penstock", "generate", "--endpoint", f"{scheme}penstock:{self.values['router']['service']['port']}", "--max-tokens", "16",
                 "--temperature", "0"]
        words += ["--ca", "/ca/ca.crt"] if scheme else []
        words += ["--api-key", KEY] if self.key() else []
        code, text = self.run_in(pod, *words, prompt)
        if code != 0:
            raise AssertionError(f"penstock generate: {text}")
        return text

    # ---- The end ----

    def uninstall(self):
        """Every pod ends by itself in its time. Gives its longest end in seconds."""
        leaving = self.pods()
        begun = {pod: time.monotonic() for pod in leaving}
        with concurrent.futures.ThreadPoolExecutor(len(leaving) + 1) as pool:
            for pod in leaving:
                pod.owner = None  # nothing replaces it
            self.cluster.objects = {key: item for key, item in self.cluster.objects.items() if key[0] != "Deployment"}
            for pod in leaving:
                pod.delete()
            ended = list(pool.map(lambda pod: pod.gone.wait(pod.grace_s() + 30) and time.monotonic() - begun[pod], leaving))
        killed = [name for pod in leaving for name in pod.killed]
        codes = {event["container"]: event["code"] for pod in leaving for event in pod.events if event["event"] == "ended"}
        if killed or not all(ended) or set(codes.values()) - {0}:
            raise AssertionError(f"killed after the grace period: {killed}; exit codes {codes}")
        return max(ended)
