"""The parts of tests/deploy/cluster against what Kubernetes documents, with small web servers as pods: a cluster that admits
everything would prove nothing about the chart. scripts/check-deploy runs it."""

import json
import os
import pathlib
import subprocess
import threading
import time
import unittest

from cluster import machine, rollout, rules
from cluster.rollout import ReplicaSet
from cluster.spec import expand

FOLDER = machine.enter()

from cluster.api import Api  # noqa: E402
from cluster.certificates import Authority  # noqa: E402
from cluster.cluster import NAMESPACE, Cluster  # noqa: E402
from cluster.names import DOMAIN  # noqa: E402
from cluster.pod import ACCOUNT  # noqa: E402

PROGRAMS = pathlib.Path(os.environ["PENSTOCK_BIN_DIR"])
# Says its name; /ready and /live are refused while a file of that name is in /tmp. Ends in its own time after SIGTERM.
WEB = """
import http.server, os, signal, socket, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        refused = os.path.isfile("/tmp" + self.path)
        self.send_response(503 if refused else 200)
        self.end_headers()
        self.wfile.write(socket.gethostname().encode())
    def log_message(self, *_): pass
class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = Server((sys.argv[1], 8000), Handler)
if sys.argv[2] != "deaf":
    signal.signal(signal.SIGTERM, lambda *_: threading.Timer(float(sys.argv[2]), os._exit, [0]).start())
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
server.serve_forever()
"""


def eventually(done, patience_s=30, what="it"):
    end = time.monotonic() + patience_s
    while not done():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not happen within {patience_s} s")
        time.sleep(0.05)


def config_map(name, data):
    return {"kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def web_pod(labels=None, leave="0", grace_s=5, **more):
    probe = {"httpGet": {"path": "/live", "port": "http"}, "periodSeconds": 1}
    container = {"name": "web", "command": ["python3", "/web/web.py"], "args": ["$(POD_IP)", leave],
                 "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                 "ports": [{"name": "http", "containerPort": 8000}], "startupProbe": {**probe, "failureThreshold": 30},
                 "livenessProbe": {**probe, "failureThreshold": 2}, "readinessProbe": {
                     "httpGet": {"path": "/ready", "port": 8000}, "periodSeconds": 1, "failureThreshold": 1},
                 "volumeMounts": [{"name": "web", "mountPath": "/web"}, {"name": "tmp", "mountPath": "/tmp"}]}
    return {"metadata": {"labels": labels or {"app": "web"}}, "spec": {
        "terminationGracePeriodSeconds": grace_s, "automountServiceAccountToken": False, "containers": [{**container, **more}],
        "volumes": [{"name": "web", "configMap": {"name": "web"}}, {"name": "tmp", "emptyDir": {}}]}}


def deployment(replicas=2, template=None, name="web", surge=1, unavailable=0):
    return {"kind": "Deployment", "metadata": {"name": name}, "spec": {
        "replicas": replicas, "strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}},
        "template": template or web_pod()}}


def service(name="web", **more):
    return {"kind": "Service", "metadata": {"name": name}, "spec": {
        "selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}], **more}}


class Decisions(unittest.TestCase):
    """The pure functions."""

    def test_references_to_variables(self):
        self.assertEqual(expand("[$(IP)]:$(PORT) $$(IP) $(NONE)", {"IP": "::1", "PORT": "1"}), "[::1]:1 $(IP) $(NONE)")

    def step(self, desired, surge, unavailable, new, old):
        """Wanted numbers after one step, from (wanted, available) of both."""
        one, other = ReplicaSet("new", "n", {}, *new), ReplicaSet("old", "o", {}, *old)
        rollout.roll(desired, {"maxSurge": surge, "maxUnavailable": unavailable}, one, [other])
        return one.wanted, other.wanted

    def test_rolling_updates_keep_their_limits(self):
        self.assertEqual(self.step(3, 1, 0, (0, 0), (3, 3)), (1, 3), "one more, and none away before it is available")
        self.assertEqual(self.step(3, 1, 0, (1, 0), (3, 3)), (1, 3))
        self.assertEqual(self.step(3, 1, 0, (1, 1), (3, 3)), (1, 2))
        self.assertEqual(self.step(3, 0, 1, (0, 0), (3, 3)), (0, 2), "first one away")
        self.assertEqual(self.step(3, 0, 1, (0, 0), (2, 2)), (1, 2))
        self.assertEqual(self.step(3, 0, 1, (1, 0), (2, 2)), (1, 2))
        self.assertEqual(self.step(3, "25%", "25%", (0, 0), (3, 3)), (1, 3), "percents: surge is rounded up, unavailable down")
        self.assertEqual(self.step(2, 0, 1, (0, 0), (2, 1)), (0, 1), "the one that is not available goes first")
        self.assertEqual(self.step(1, 0, 0, (0, 0), (1, 1)), (0, 0), "both zero count as one unavailable")
        self.assertEqual(self.step(1, 1, 0, (3, 3), (0, 0)), (1, 0))

    def test_rules_select_as_labels_say(self):
        labels = {"app": "a", "tier": "x"}
        for selector, selects in (({}, True), ({"matchLabels": {"app": "a"}}, True), ({"matchLabels": {"app": "b"}}, False),
                                  ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["x", "y"]}]}, True),
                                  ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, False)):
            self.assertEqual(rules.matches(selector, labels), selects, selector)


class Base(unittest.TestCase):
    FAMILIES = (4,)

    @classmethod
    def setUpClass(cls):
        cls.authority = Authority()
        cls.cluster = Cluster(FOLDER / cls.__name__, PROGRAMS, cls.authority, cls.FAMILIES)
        cls.api = Api(cls.cluster, cls.authority)
        cls.cluster.apply([config_map("web", {"web.py": WEB})])

    @classmethod
    def tearDownClass(cls):
        cls.api.stop()
        cls.cluster.stop()
        cls.cluster.network.remove()

    def tearDown(self):
        self.cluster.remove_all()
        for node in self.cluster.network.nodes:
            node.cordoned = False
        self.assertEqual(self.cluster.problems, [])
        self.cluster.apply([config_map("web", {"web.py": WEB})])

    def pods(self, app="web"):
        return [pod for pod in self.cluster.pods if pod.labels.get("app") == app and pod.deleting is None]

    def await_ready(self, count, app="web"):
        eventually(lambda: [pod.is_ready() for pod in self.pods(app)] == [True] * count, what=f"{count} ready pods")
        return self.pods(app)

    def settled(self):
        """Nodes know of all changes."""
        time.sleep(0.5)
        eventually(lambda: not self.cluster.changed.is_set(), what="rules on nodes")
        time.sleep(0.5)

    def python(self, pod, program):
        """Exit code and output of a program in a pod."""
        running = next(iter(pod.running.values()))
        return running.exec(["python3", "-c", program], 20)

    def client(self, name="client", namespace=NAMESPACE, labels=None, settled=True):
        spec = {"terminationGracePeriodSeconds": 1, "automountServiceAccountToken": True,
                "containers": [{"name": "client", "command": ["python3", "-c", "import signal; signal.pause()"]}]}
        pod = self.cluster.run_pod(name, spec, labels or {"app": "client"}, namespace)
        eventually(lambda: pod.phase == "Running" and pod.running, what="a client")
        if settled:
            self.settled()
        return pod

    def ask(self, pod, url, timeout_s=1, times=1):
        """The names of the pods that answered, with None for no answer."""
        program = ("import urllib.request as r\n"
                   f"for _ in range({times}):\n"
                   f" try: print(r.urlopen({url!r}, timeout={timeout_s}).read().decode())\n"
                   " except OSError: print('-')")
        code, text = self.python(pod, program)
        self.assertEqual(code, 0, text)
        return {None if name == "-" else name for name in text.split()}

    def resolve(self, pod, name):
        code, text = self.python(pod, f"import socket; print(' '.join(sorted({{a[4][0] for a in socket.getaddrinfo({name!r}, 80)}})))")
        return set(text.split()) if code == 0 else None


class Parts(Base):
    def test_services_send_to_ready_pods_alone(self):
        self.cluster.apply([deployment(3), service(), service("all", clusterIP="None"),
                            service("everyone", clusterIP="None", publishNotReadyAddresses=True)])
        pods, client = self.await_ready(3), self.client()
        self.assertEqual(len({pod.node for pod in pods}), 3, "spread over nodes")
        self.assertEqual(self.ask(client, "http://web/", times=30), {pod.name for pod in pods})
        self.assertEqual(self.resolve(client, f"all.{NAMESPACE}.svc.{DOMAIN}"), {pod.addresses[0] for pod in pods})
        self.python(pods[0], "open('/tmp/ready', 'w')")
        eventually(lambda: not pods[0].is_ready(), what="a pod that is not ready")
        self.settled()
        self.assertEqual(self.ask(client, "http://web/", times=20), {pod.name for pod in pods[1:]})
        self.assertEqual(self.resolve(client, "all"), {pod.addresses[0] for pod in pods[1:]})
        self.assertEqual(self.resolve(client, "everyone"), {pod.addresses[0] for pod in pods})
        self.assertIsNone(self.resolve(client, "none"))

    def test_liveness_restarts_with_a_pause(self):
        self.cluster.apply([deployment(1)])
        pod, = self.await_ready(1)
        self.python(pod, "open('/tmp/live', 'w')")
        eventually(lambda: pod.restarts == 1, what="a restart")
        self.assertFalse(pod.is_ready())
        # The folder of the pod is still there, so the next run is refused by its startup probe.
        eventually(lambda: self.python(pod, "import os; os.remove('/tmp/live')")[0] == 0, what="the next run")
        self.await_ready(1)
        self.assertIn("liveness failed", [event["event"] for event in pod.events])

    def test_the_end_of_a_pod_is_sigterm_grace_sigkill(self):
        hook = {"preStop": {"sleep": {"seconds": 1}}}
        cases = {"1": (5, 0, 2, 3.5), "deaf": (3, 1, 2.9, 4.5)}
        self.cluster.apply([deployment(1, web_pod({"app": leave}, leave, grace_s, lifecycle=hook), f"web-{leave}")
                            for leave, (grace_s, *_) in cases.items()])
        pods = {leave: self.await_ready(1, leave)[0] for leave in cases}
        begun = time.monotonic()
        for pod in pods.values():
            pod.delete()
        for leave, (_, killed, least_s, most_s) in cases.items():
            self.assertTrue(pods[leave].gone.wait(10))
            self.assertEqual(len(pods[leave].killed), killed, leave)
            self.assertTrue(least_s <= time.monotonic() - begun <= most_s, (leave, time.monotonic() - begun))

    def test_a_lost_node_is_silent_until_it_is_noticed(self):
        self.cluster.apply([deployment(3), service()])
        pods, client = self.await_ready(3), self.client()
        node = next(pod.node for pod in pods if pod.node is not client.node)
        lost = next(pod for pod in pods if pod.node is node)
        self.addCleanup(self.cluster.find_lost, node)
        self.cluster.lose(node)
        self.assertEqual(self.ask(client, f"http://{lost.addresses[0]}:8000/"), {None})
        self.assertEqual(len(self.ask(client, "http://web/", 0.3, times=20)), 3, "two pods, and no answer")
        self.cluster.notice(node)
        eventually(lambda: len([pod for pod in self.pods() if pod.is_ready()]) == 3, what="a pod elsewhere")
        self.settled()
        self.assertNotIn(None, self.ask(client, "http://web/", times=20))


class Rights(Base):
    """What pods may do, and what they are given."""

    def test_policies_hold(self):
        rule = {"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}, {"namespaceSelector": {"matchLabels": {
            "kubernetes.io/metadata.name": "monitoring"}}}], "ports": [{"port": 8000, "protocol": "TCP"}]}
        policy = {"kind": "NetworkPolicy", "metadata": {"name": "web"}, "spec": {
            "podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress", "Egress"], "ingress": [rule],
            "egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}]}}
        self.cluster.apply([deployment(1), service(), policy])
        web, = self.await_ready(1)
        clients = {name: self.client(name, namespace, {"app": name}, settled=False) for name, namespace in (
            ("friend", NAMESPACE), ("stranger", NAMESPACE), ("prometheus", "monitoring"), ("neighbour", "other"))}
        self.settled()
        url = f"http://web.{NAMESPACE}/"
        answers = {name: self.ask(client, url) for name, client in clients.items()}
        self.assertEqual(answers, {"friend": {web.name}, "stranger": {None}, "prometheus": {web.name}, "neighbour": {None}})
        self.assertIsNotNone(self.resolve(web, "web"), "names may be looked up")
        port = "import socket; s = socket.socket(); s.bind(('', 8000)); s.listen(); print('listens', flush=True); s.accept()"
        target = clients["friend"]
        listening = subprocess.Popen(["ip", "netns", "exec", target.space, "python3", "-c", port], stdout=subprocess.PIPE, text=True)
        self.addCleanup(listening.stdout.close)
        self.assertEqual(listening.stdout.readline(), "listens\n")
        call = f"import socket; socket.create_connection(({target.addresses[0]!r}, 8000), 2)"
        self.assertNotEqual(self.python(web, call)[0], 0, "egress")
        self.assertEqual(self.python(clients["stranger"], call)[0], 0)
        listening.wait(10)

    def test_a_drain_respects_the_budget(self):
        budget = {"kind": "PodDisruptionBudget", "metadata": {"name": "web"}, "spec": {
            "maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": {"matchLabels": {"app": "web"}}}}
        for node in self.cluster.network.nodes[1:]:
            node.cordoned = True
        self.cluster.apply([deployment(3), budget])
        self.await_ready(3)
        for node in self.cluster.network.nodes[1:]:
            node.cordoned = False
        watched = []
        ended = repeat(lambda: watched.append(sum(pod.is_ready() for pod in self.pods())))
        refused = self.cluster.drain(self.cluster.network.nodes[0], 60)
        ended.set()
        self.assertGreater(refused, 0)
        self.assertGreaterEqual(min(watched), 2)
        self.assertEqual({pod.node.number for pod in self.await_ready(3)} & {1}, set())

    def test_a_job_has_the_rights_of_its_role(self):
        role = {"kind": "Role", "metadata": {"name": "reader"}, "rules": [
            {"apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": ["web"], "verbs": ["get"]}]}
        binding = {"kind": "RoleBinding", "metadata": {"name": "reader"}, "roleRef": {"kind": "Role", "name": "reader"},
                   "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": NAMESPACE}]}
        self.cluster.apply([deployment(1), deployment(1, name="other"), role, binding])
        client = self.client()
        call = ("import os, ssl, urllib.request as r; c = ssl.create_default_context(cafile='%s/ca.crt'); "
                "q = r.Request('https://' + os.environ['KUBERNETES_SERVICE_HOST'] + '/apis/apps/v1/namespaces/penstock/deployments/%s', %s, "
                "{'Authorization': 'Bearer ' + open('%s/token').read()}, method='%s'); print(r.urlopen(q, context=c).status)")
        for name, method, data, status in (("web", "GET", None, "200"), ("other", "GET", None, "403"), ("web", "PATCH", b"{}", "403")):
            text = self.python(client, call % (ACCOUNT, name, data, ACCOUNT, method))[1]
            self.assertIn(status, text, (name, method))

    def test_changed_secrets_reach_the_files(self):
        self.cluster.apply([{"kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "1"}}])
        template = web_pod()
        template["spec"]["volumes"].append({"name": "s", "secret": {"secretName": "s", "defaultMode": 0o440}})
        template["spec"]["securityContext"] = {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001}
        template["spec"]["containers"][0]["volumeMounts"].append({"name": "s", "mountPath": "/s", "readOnly": True})
        self.cluster.apply([deployment(1, template)])
        pod, = self.await_ready(1)
        read = "print(open('/s/a').read())"
        self.assertEqual(self.python(pod, read)[1].strip(), "1")
        self.cluster.apply([{"kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "2"}}])
        self.assertEqual(self.python(pod, read)[1].strip(), "2")
        self.assertNotEqual(self.python(pod, "open('/s/a', 'w')")[0], 0)
        self.assertNotEqual(self.python(pod, "open('/new', 'w')")[0], 0, "a read-only root")
        self.assertEqual(self.python(pod, "import os; print(os.getuid(), os.getpid() > 1)")[1].strip(), "10001 True")


class Calls(Base):
    """Kubernetes' API, as a service account with a Role calls it."""
    LEASES, DEPLOYMENTS = (f"/apis/{api}/v1/namespaces/{NAMESPACE}/{kind}" for api, kind in (
        ("coordination.k8s.io", "leases"), ("apps", "deployments")))
    RULES = [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["l"], "verbs": ["get", "update", "create"]},
             {"apiGroups": ["apps"], "resources": ["deployments/scale"], "resourceNames": ["web"], "verbs": ["get", "update", "patch"]}]
    CREATE = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]}

    def permit(self, rules):
        self.cluster.apply([
            {"kind": "Role", "metadata": {"name": "r"}, "rules": rules},
            {"kind": "RoleBinding", "metadata": {"name": "r"}, "roleRef": {"kind": "Role", "name": "r"},
             "subjects": [{"kind": "ServiceAccount", "name": "a", "namespace": NAMESPACE}]}])
        self.token = self.cluster.account(NAMESPACE, "a")["token"]

    def call(self, method, path, body=None, content_type="application/json"):
        return self.api.answer(method, path, self.token, json.dumps(body), content_type, "")

    def lease(self, holder, version=None, **spec):
        return {"kind": "Lease", "metadata": {"name": "l", **({"resourceVersion": version} if version else {})}, "spec": {"holderIdentity": holder, **spec}}

    def test_of_two_that_write_a_lease_one_gets_a_conflict(self):
        self.permit([*self.RULES, self.CREATE])
        one = self.LEASES + "/l"
        self.assertEqual(self.call("GET", one)[0], 404)
        status, lease = self.call("POST", self.LEASES, self.lease("a"))
        self.assertEqual((status, lease["spec"]["holderIdentity"]), (201, "a"))
        status, refusal = self.call("POST", self.LEASES, self.lease("b"))
        self.assertEqual((status, refusal["reason"]), (409, "AlreadyExists"))
        version = self.call("GET", one)[1]["metadata"]["resourceVersion"]
        self.assertEqual(self.call("PUT", one, self.lease("b", version))[0], 200)
        status, refusal = self.call("PUT", one, self.lease("a", version))
        self.assertEqual((status, refusal["reason"]), (409, "Conflict"))
        self.assertEqual(self.call("GET", one)[1]["spec"]["holderIdentity"], "b")

    def test_leases_are_validated(self):
        self.permit([*self.RULES, self.CREATE])
        self.call("POST", self.LEASES, self.lease("a"))
        version = self.call("GET", self.LEASES + "/l")[1]["metadata"]["resourceVersion"]
        for lease, wanted in ((self.lease("b"), 422), (self.lease("b", version, renewTime="2026-01-01T00:00:00Z"), 400),
                              (self.lease("b", version, leaseDurationSeconds=0), 422), ({"kind": "Scale"}, 400), ([], 400),
                              (self.lease("b", version, renewTime="2026-01-01T00:00:00.000000Z", leaseDurationSeconds=1), 200)):
            self.assertEqual(self.call("PUT", self.LEASES + "/l", lease)[0], wanted, lease)

    def test_a_scale_starts_and_ends_pods(self):
        self.permit(self.RULES)
        self.cluster.apply([deployment(1)])
        self.await_ready(1)
        path, patch = self.DEPLOYMENTS + "/web/scale", "application/merge-patch+json"
        status, scale = self.call("GET", path)
        self.assertEqual((status, scale["kind"], scale["spec"], scale["status"]["replicas"]), (200, "Scale", {"replicas": 1}, 1))
        self.assertEqual(self.call("PATCH", path, {"spec": {"replicas": 3}})[0], 415)
        self.assertEqual(self.call("PATCH", path, {"spec": {"replicas": -1}}, patch)[0], 422)
        self.assertEqual(self.call("PATCH", path, {"spec": {"replicas": 3}}, patch)[1]["spec"]["replicas"], 3)
        self.await_ready(3)
        self.assertEqual(self.call("PUT", path, {**scale, "spec": {"replicas": 2}})[0], 409, "read before the change")
        self.assertEqual(self.call("PUT", path, {**self.call("GET", path)[1], "spec": {"replicas": 2}})[0], 200)
        self.await_ready(2)
        self.assertEqual(self.call("PATCH", path, {"spec": {"replicas": 0}}, patch)[1]["spec"], {}, "zeros are left out")

    def test_a_refusal_names_who_may_not_do_what(self):
        self.permit(self.RULES)
        self.cluster.apply([deployment(1), deployment(1, name="other")])
        who = f'User "system:serviceaccount:{NAMESPACE}:a" cannot'
        for method, path, why in (
                ("PATCH", self.LEASES + "/l", f'leases.coordination.k8s.io "l" is forbidden: {who} patch resource "leases" in API group "coordination'),
                ("POST", self.LEASES, f'{who} create resource "leases"'),  # a name limits no create
                ("GET", self.LEASES + "/other", f'{who} get resource "leases"'), ("GET", self.LEASES, f'{who} list resource "leases"'),
                ("GET", self.DEPLOYMENTS + "/web", f'{who} get resource "deployments" in API group "apps"'),
                ("GET", self.DEPLOYMENTS + "/other/scale", f'deployments.apps "other" is forbidden: {who} get resource "deployments/scale"')):
            status, refusal = self.call(method, path, {})
            self.assertEqual((status, refusal["reason"]), (403, "Forbidden"), path)
            self.assertIn(why, refusal["message"])
        self.token = "guessed"
        self.assertEqual(self.call("GET", self.LEASES + "/l")[0], 401)


class OfIpv6(Base):
    FAMILIES = (6,)

    def test_pods_names_and_services_have_ipv6_alone(self):
        self.cluster.apply([deployment(2), service(), service("all", clusterIP="None")])
        pods, client = self.await_ready(2), self.client()
        self.assertTrue(all(":" in address for pod in pods for address in pod.addresses))
        self.assertEqual(self.resolve(client, "all"), {pod.addresses[0] for pod in pods})
        self.assertEqual(self.ask(client, "http://web/", times=20), {pod.name for pod in pods})


def repeat(work):
    """Calls `work` again and again until the event that it gives is set."""
    ended = threading.Event()

    def loop():
        while not ended.wait(0.05):
            work()
    threading.Thread(target=loop, daemon=True).start()
    return ended


if __name__ == "__main__":
    unittest.main()
