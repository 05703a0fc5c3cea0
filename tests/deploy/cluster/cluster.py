"""A cluster: it takes rendered objects and does what Kubernetes would do with them, on the machine that machine.enter made."""

import copy
import threading
import time

from . import image, rollout
from .names import NameServer
from .network import Network
from .pod import Pod
from .rollout import ReplicaSet
from .rules import Peer, matches, ruleset
from .services import Services

NAMESPACE = "penstock"
TICK_S = 0.05
# Until nodes know a change of endpoints, and until files of a Secret change. Real clusters need up to a minute for the latter.
PROPAGATION_S = 0.3
NODE_LABELS = {"node.kubernetes.io/instance-type": "p5.48xlarge", "rack": "a", "topology.example.com/rack": "a"}


class Cluster:
    """`authority` is trusted by all containers; `families` are IP versions; `openshift` gives pods without a user one of the
    namespace's."""

    def __init__(self, folder, programs, authority, families=(4,), nodes=3, openshift=False):
        self.folder, self.openshift, self.logs, self.authority = folder, openshift, folder / "logs", authority
        self.logs.mkdir(parents=True)
        self.root = image.make(folder / "image", programs, authority.text)
        self.network = Network(families, nodes, NODE_LABELS)
        self.objects, self.sets, self.pods, self.finished, self.made, self.versions = {}, {}, [], [], 0, 0
        self.namespaces = {name: {"kubernetes.io/metadata.name": name} for name in (NAMESPACE, "monitoring", "other")}
        self.services = Services(self)
        self.tokens, self.unschedulable = {}, {}
        self.lock, self.changed, self.stopping = threading.RLock(), threading.Event(), threading.Event()
        self.problems = []  # what a thread of the cluster could not do
        self.names = NameServer([plan.names for plan in self.network.plans], self.services.look_up)
        self.threads = [threading.Thread(target=self.loop, args=(work,), daemon=True) for work in (self.reconcile, self.renew_rules)]
        for thread in self.threads:
            thread.start()

    def loop(self, work):
        while not self.stopping.wait(TICK_S):
            try:
                work()
            except Exception as error:  # the tests look at it
                self.problems.append(repr(error))

    # ---- Objects ----

    def find(self, kind, name, namespace=NAMESPACE):
        return self.objects.get((kind, namespace, name))

    def next_version(self):
        """The resourceVersion of an object that changes."""
        with self.lock:
            self.versions += 1
            return str(self.versions)

    def of_kind(self, kind):
        with self.lock:
            return [item for (what, _, _), item in self.objects.items() if what == kind]

    def apply(self, items):
        """Creates or replaces objects, as `kubectl apply` does."""
        with self.lock:
            for item in copy.deepcopy(items):
                metadata = item["metadata"]
                key = (item["kind"], metadata.setdefault("namespace", NAMESPACE), metadata["name"])
                before = self.objects.get(key)
                same = before is not None and before.get("spec") == item.get("spec")
                metadata["generation"] = before["metadata"]["generation"] + (not same) if before else 1
                metadata["resourceVersion"] = self.next_version()
                if item["kind"] == "Deployment":
                    self.keep_scale(item, before)
                self.objects[key] = item
        self.touch()
        for item in items:
            if item["kind"] in ("Secret", "ConfigMap"):
                self.renew_files(item)

    def keep_scale(self, item, before):
        """Without `replicas` an autoscaler has the number: that of before, or its least."""
        if "replicas" not in item["spec"]:
            own = item["metadata"]["name"]
            least = [spec.get("minReplicas", spec.get("minReplicaCount")) for spec in (
                scaler["spec"] for kind in ("HorizontalPodAutoscaler", "ScaledObject") for scaler in self.of_kind(kind))
                if spec["scaleTargetRef"]["name"] == own]
            item["spec"]["replicas"] = before["spec"]["replicas"] if before else max(least, default=1)

    def delete(self, kind, name, namespace=NAMESPACE):
        with self.lock:
            self.objects.pop((kind, namespace, name), None)
        self.touch()

    def patch(self, name, spec):
        """Merges into a Deployment's spec."""
        with self.lock:
            item = self.find("Deployment", name)
            merged = {**item["spec"], **{key: value for key, value in spec.items() if value is not None}}
            merged = {key: value for key, value in merged.items() if spec.get(key, value) is not None}
            if merged != item["spec"]:
                item["spec"] = merged
                item["metadata"]["generation"] += 1
                item["metadata"]["resourceVersion"] = self.next_version()
            return item

    def scale(self, name, replicas):
        self.patch(name, {"replicas": replicas})

    def data_of(self, kind, name, namespace=NAMESPACE):
        item = self.find(kind, name, namespace)
        if item is None:
            raise LookupError(f"there is no {kind} {name}")
        return item.get("data", item.get("stringData", {}))

    def renew_files(self, item):
        for pod in list(self.pods):
            if pod.folders and pod.deleting is None:
                pod.renew_volumes(item["kind"], item["metadata"]["name"])

    def claim(self, name):
        folder = self.folder / "claims" / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        return folder

    def account(self, namespace, name):
        """The files of a service account."""
        token = f"token-{namespace}-{name}"
        self.tokens[token] = (namespace, name)
        return {"token": token, "ca.crt": self.authority.text, "namespace": namespace}

    # ---- Controllers ----

    def reconcile(self):
        with self.lock:
            for pod in [pod for pod in self.pods if pod.gone.is_set()]:
                self.pods.remove(pod)
                self.finished.append(pod)
            for item in self.of_kind("Deployment"):
                self.reconcile_deployment(item)

    def active(self, name):
        """Pods of a ReplicaSet that count."""
        return [pod for pod in self.pods if pod.owner == name and pod.deleting is None and not pod.is_over()]

    def reconcile_deployment(self, item):
        name, spec = item["metadata"]["name"], item["spec"]
        sets = self.sets.setdefault(name, {})
        least_s = spec.get("minReadySeconds", 0)
        wanted_hash = rollout.hash_of(spec["template"])
        if wanted_hash not in sets and not spec.get("paused"):
            sets[wanted_hash] = ReplicaSet(f"{name}-{wanted_hash}", wanted_hash, spec["template"])
            item["progress"] = time.monotonic()
        for one in sets.values():
            one.available = sum(pod.is_available(least_s) for pod in self.active(one.name))
        current = [one for one in sets.values() if one.wanted or one.hash == wanted_hash]
        new = sets.get(wanted_hash)
        if spec.get("paused") or new is None:
            for one in current[:1]:  # a Deployment in the middle of an update is not scaled here
                one.wanted = spec["replicas"] if len(current) == 1 else one.wanted
        else:
            rollout.roll(spec["replicas"], spec.get("strategy", {}).get("rollingUpdate", {}), new, [one for one in current if one is not new])
        for one in sets.values():
            self.reconcile_set(one)
        status = self.status(item, sets, new)
        if status != item.get("status"):
            item["status"], item["metadata"]["resourceVersion"] = status, self.next_version()

    def reconcile_set(self, one):
        pods = self.active(one.name)
        for pod in rollout.first_to_go(pods)[:max(0, len(pods) - one.wanted)]:
            pod.delete()
        for _ in range(one.wanted - len(pods)):
            self.add_pod(one)

    def add_pod(self, one):
        metadata = one.template.get("metadata", {})
        labels = {**metadata.get("labels", {}), "pod-template-hash": one.hash}
        node, reasons = rollout.place(one.template["spec"], labels, self.network.nodes, self.pods)
        if node is None:
            self.unschedulable[one.name] = reasons
            return
        self.made += 1
        self.start_pod(Pod(self, f"{one.name}-{self.made:05d}", NAMESPACE, one.name, labels, one.template["spec"], node))

    def start_pod(self, pod):
        self.pods.append(pod)
        pod.start()
        return pod

    def run_pod(self, name, spec, labels=None, namespace=NAMESPACE, node=None):
        """A pod of no controller."""
        with self.lock:
            node = node or rollout.place(spec, labels or {}, self.network.nodes, self.pods)[0]
            return self.start_pod(Pod(self, name, namespace, None, labels or {}, spec, node))

    def status(self, item, sets, new):
        """What `kubectl get deployment` shows. The reason of a failure comes after progressDeadlineSeconds without progress."""
        pods = [pod for one in sets.values() for pod in self.active(one.name)]
        updated = self.active(new.name) if new else []
        state = (len(pods), len(updated), sum(one.available for one in sets.values()))
        before = item.get("status", {})
        if state != before.get("state"):
            item["progress"] = time.monotonic()
        stuck = time.monotonic() - item.get("progress", time.monotonic()) > item["spec"].get("progressDeadlineSeconds", 600)
        done = state == (item["spec"]["replicas"],) * 3
        reason = "ProgressDeadlineExceeded" if stuck and not done else "NewReplicaSetAvailable" if done else "ReplicaSetUpdated"
        return {"observedGeneration": item["metadata"]["generation"], "state": state,
                "replicas": state[0], "updatedReplicas": state[1], "availableReplicas": state[2],
                "conditions": [{"type": "Progressing", "reason": reason, "status": str(not stuck)}]}

    # ---- Services and policies ----

    def touch(self):
        self.changed.set()

    def renew_rules(self):
        if not self.changed.is_set():
            return
        self.changed.clear()
        time.sleep(PROPAGATION_S)
        with self.lock:
            ports, policies = self.services.ports(), self.of_kind("NetworkPolicy")
            pods = [pod for pod in self.pods if pod.addresses and not pod.gone.is_set()]
        for node in self.network.nodes:
            peers = [Peer(tuple(pod.addresses), pod.namespace, pod.labels, pod.node is node, pod.host_network) for pod in pods]
            text = ruleset(ports, policies, peers, self.namespaces, [plan.machine for plan in self.network.plans])
            if text != node.rules:
                node.set_rules(text)

    # ---- Operators ----

    def budget_admits(self, pod):
        for budget in self.of_kind("PodDisruptionBudget"):
            selector = budget["spec"]["selector"]
            if not matches(selector, pod.labels):
                continue
            pods = [one for one in self.pods if matches(selector, one.labels) and one.namespace == pod.namespace]
            expected = sum(item["spec"]["replicas"] for item in self.of_kind("Deployment")
                           if matches(selector, item["spec"]["template"]["metadata"]["labels"]))
            if not rollout.admits(budget["spec"], pod, pods, expected):
                return False
        return True

    def drain(self, node, patience_s=300):
        """As `kubectl drain`: cordons the node and evicts its pods as far as budgets admit, until none is left. Gives the number of
        evictions that a budget put off."""
        node.cordoned, end, refused = True, time.monotonic() + patience_s, 0
        while time.monotonic() < end:
            pods = [pod for pod in list(self.pods) if pod.node is node and pod.owner and not pod.gone.is_set()]
            if not pods:
                return refused
            for pod in pods:
                with self.lock:
                    if pod.deleting is None and self.budget_admits(pod):
                        pod.delete()
                    elif pod.deleting is None:
                        refused += 1
            time.sleep(0.5)
        raise TimeoutError(f"{node.name} is not empty after {patience_s} s")

    def lose(self, node):
        """The node falls silent: no packet passes and its processes end, without a word to anyone."""
        node.lost = True
        node.disconnect()
        for pod in list(self.pods):
            if pod.node is node:
                pod.crash()

    def notice(self, node):
        """Kubernetes has noticed the loss: the node's pods are no endpoints any more, and others are made for them."""
        with self.lock:
            for pod in self.pods:
                if pod.node is node:
                    pod.ready_since, pod.deleting = None, time.monotonic()
        self.touch()

    def kill(self, pod):
        """Its processes end at once, and Kubernetes forgets it, as by `kubectl delete pod --force`."""
        pod.crash()
        pod.delete()

    def find_lost(self, node):
        """The node is back, empty, as after its machine has started again."""
        for pod in list(self.pods):
            if pod.node is node:
                pod.remove()
        node.reconnect()
        node.lost = False

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        for pod in list(self.pods):
            pod.crash()
        self.names.stop()

    def remove_all(self, patience_s=120):
        """Ends every pod as its end is meant to be, and forgets all objects."""
        with self.lock:
            self.objects.clear()
            self.sets.clear()
            leaving = [pod for pod in self.pods if not pod.crashed]
            for pod in leaving:
                pod.delete()
        end = time.monotonic() + patience_s
        for pod in leaving:
            if not pod.gone.wait(max(0, end - time.monotonic())):
                raise TimeoutError(f"{pod.name} does not end")
        return leaving
