"""The Helm chart over many values (variants.py): every object fits Kubernetes' schemas and the restricted standard, and says what
the values asked for. scripts/check-deploy runs it."""

import copy
import json
import pathlib
import re
import sys
import unittest

import helm_python
import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy"))
import foreign  # noqa: E402
import render  # noqa: E402
import restricted  # noqa: E402
from variants import POD, REFUSED, ROLES, UPGRADES, VARIANTS  # noqa: E402

SCHEMA = json.loads((render.CHART / "values.schema.json").read_text())
DEFAULTS = yaml.safe_load((render.CHART / "values.yaml").read_text())
# The three newest of which the package has schemas; the chart's kubeVersion is the oldest that it takes.
PACKAGED = (pathlib.Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema").glob("v*-local-strict")
KUBERNETES = sorted(tuple(map(int, folder.name[1:].split(".")[:2])) for folder in PACKAGED)[-3:]
OLDEST = (1, 30)
OBJECTS = {name: render.render(values, upgrade=name in UPGRADES) for name, values in VARIANTS.items()}
# They ask for more than the standard gives, as their values say.
UNRESTRICTED = {"host network": "hostNetwork", "eight gpus, nccl": "hostNetwork"}


def pods(objects):
    """Kind, name and pod spec of everything that makes pods."""
    for item in objects:
        if item["kind"] in ("Deployment", "Job"):
            yield item["kind"], item["metadata"]["name"], item["spec"]["template"]["spec"]


def deployment(objects, role):
    return next(item for item in objects if item["kind"] == "Deployment" and item["metadata"]["labels"]["app.kubernetes.io/component"] == role)


def main_container(objects, role):
    return next(c for c in deployment(objects, role)["spec"]["template"]["spec"]["containers"] if c["name"] == role)


def flags(container):
    return dict(argument[2:].partition("=")[::2] for argument in container["args"])


def variables(container):
    return {entry["name"]: entry.get("value") for entry in container["env"]}


def of_kind(objects, kind):
    return [item for item in objects if item["kind"] == kind]


def is_valid(item, version):
    if item["kind"] in foreign.KINDS:
        return foreign.validate(item)
    return kubernetes_validate.validate(item, ".".join(map(str, version)), strict=True)


class Schemas(unittest.TestCase):
    def test_every_object_of_every_variant_fits(self):
        self.assertGreaterEqual(len(VARIANTS), 30)
        self.assertEqual(len(KUBERNETES), 3)
        seen, checked, kinds = set(), 0, set()
        for name, objects in OBJECTS.items():
            self.assertGreaterEqual(len(objects), 6, name)
            for item in objects:
                kinds.add(item["kind"])
                text = json.dumps(item, sort_keys=True)
                if text in seen:
                    continue
                seen.add(text)
                for version in [OLDEST, *KUBERNETES]:
                    if version == OLDEST and "resourceClaimTemplateName" in text:
                        continue  # Kubernetes 1.31 has this form of Dynamic Resource Allocation, as values.yaml says.
                    with self.subTest(variant=name, kind=item["kind"], name=item["metadata"]["name"], version=version):
                        is_valid(item, version)
                    checked += 1
        print(f"{len(VARIANTS)} variants, {sum(map(len, OBJECTS.values()))} objects of {len(kinds)} kinds, {len(seen)} different, "
              f"{checked} validations: Kubernetes {', '.join('.'.join(map(str, v)) for v in [OLDEST, *KUBERNETES])}", file=sys.stderr)
        templates = "".join(path.read_text() for path in (render.CHART / "templates").glob("*.yaml"))
        self.assertEqual(kinds, set(re.findall(r"^kind: (\w+)$", templates, re.M)), "a kind that no variant makes")

    def test_a_wrong_field_is_seen_in_every_kind(self):
        for kind in {item["kind"] for objects in OBJECTS.values() for item in objects}:
            item = copy.deepcopy(next(item for objects in OBJECTS.values() for item in objects if item["kind"] == kind))
            place = next((item[key] for key in ("spec", "roleRef", "metadata") if key in item))
            place["penstock"] = 1
            for version in KUBERNETES:
                with self.subTest(kind=kind, version=version), self.assertRaises(Exception) as raised:
                    is_valid(item, version)
                self.assertIn("penstock", str(raised.exception))

    def test_no_object_has_the_name_of_another(self):
        for name, objects in OBJECTS.items():
            names = [(item["kind"], item["metadata"]["name"]) for item in objects]
            self.assertEqual(len(names), len(set(names)), name)


class Values(unittest.TestCase):
    def properties(self, schema, path=()):
        """Path to schema of every value."""
        if "$ref" in schema:
            schema = SCHEMA["definitions"][schema["$ref"].rsplit("/", 1)[1]]
        if "properties" not in schema or schema.get("type") != "object":
            yield path
            return
        for name, inner in schema["properties"].items():
            yield from self.properties(inner, (*path, name))

    @staticmethod
    def find(values, path):
        for name in path:
            if not isinstance(values, dict) or name not in values:
                return None
            values = values[name]
        return values

    def paths(self):
        found = [path for path in self.properties(SCHEMA) if path != ("global",)]
        self.assertGreater(len(found), 150)
        return found

    def test_every_value_has_a_default_and_a_variant_that_sets_it(self):
        for path in self.paths():
            if path[-2:-1] == ("image",) and path[0] in ROLES:
                continue  # A role's image is empty; the variant "images" sets its parts.
            with self.subTest(value=".".join(path)):
                default = self.find(DEFAULTS, path)
                self.assertIsNotNone(default, "not in values.yaml")
                given = [self.find(values, path) for values in VARIANTS.values()]
                self.assertTrue(any(value is not None and value != default for value in given), "no variant sets it")

    def test_every_default_fits_the_schema_and_no_key_is_unknown(self):
        with helm_python.Chart.load(str(render.CHART)) as chart:
            chart.validate_schema(DEFAULTS)

    def test_every_value_is_explained(self):
        """A comment stands behind it, or above it or its section."""
        text = (render.CHART / "values.yaml").read_text()
        self.assertEqual(yaml.safe_load(text), DEFAULTS)
        explained_by_top = {name for name in POD} | {"image"}
        obvious = {"replicas", "mountPath", "resources", "annotations", "metricsPort", "port", "parentRefs", "hostnames", "podMonitor",
                   "dashboards", "repository", "enabled", "image", "priorityClassName", "initContainers", "containerSecurityContext", "podSecurityContext"}
        section, above, missing, seen = "", False, [], 0
        parents = {}  # indentation to whether a comment stands above or behind the parent
        for line in text.splitlines():
            if not line.strip() or line.strip().startswith("#"):
                above = bool(line.strip())
                continue
            indent, name, rest = re.match(r"( *)(\w+):(.*)$", line).groups()
            section = name if not indent else section
            seen += 1
            explained = above or "#" in rest or bool(indent) and parents.get(len(indent) - 2, False)
            parents[len(indent)] = explained and bool(indent)  # a section's comment is about the section
            if rest.strip() and not explained and name not in obvious and not (section in ROLES and name in explained_by_top):
                missing.append(f"{section}.{name}")
            above = False
        self.assertGreater(seen, 150)
        self.assertEqual(missing, [])

    def test_wrong_values_are_refused_with_their_name(self):
        for name, (values, named) in REFUSED.items():
            with self.subTest(name), self.assertRaises(helm_python.HelmError) as raised:
                render.render(values)
            self.assertIn(named, str(raised.exception), name)

    def test_a_misspelt_key_is_refused_in_every_section(self):
        sections = {path[:depth] for path in self.paths() for depth in range(len(path))}
        self.assertGreater(len(sections), 30)
        with helm_python.Chart.load(str(render.CHART)) as chart:
            for section in sections:
                values = {"misspelt": 1}
                for name in reversed(section):
                    values = {name: values}
                with self.subTest(section=".".join(section)), self.assertRaises(helm_python.HelmError):
                    chart.validate_schema(values)


class Restricted(unittest.TestCase):
    def test_every_pod_meets_the_standard(self):
        seen = 0
        for name, objects in OBJECTS.items():
            for kind, pod_name, pod in pods(objects):
                seen += 1
                with self.subTest(variant=name, kind=kind, pod=pod_name):
                    expected = ["hostNetwork is set"] if name in UNRESTRICTED and pod.get("hostNetwork") else []
                    self.assertEqual(restricted.violations(pod), expected)
        self.assertGreater(seen, 3 * len(VARIANTS))

    def test_each_control_is_seen(self):
        def security(**more):
            return lambda pod: pod["containers"][0]["securityContext"].update(more)

        def drop(key, inner=None):
            def change(pod):
                context = pod["securityContext"] if inner is None else pod[inner][0]["securityContext"]
                context.pop(key)
            return change

        breaks = [
            security(privileged=True), security(allowPrivilegeEscalation=True), security(capabilities={"drop": ["NET_RAW"]}),
            security(capabilities={"drop": ["ALL"], "add": ["IPC_LOCK"]}), security(runAsUser=0), security(runAsNonRoot=False),
            security(seccompProfile={"type": "Unconfined"}), security(procMount="Unmasked"),
            security(appArmorProfile={"type": "Unconfined"}), security(seLinuxOptions={"type": "spc_t"}),
            drop("allowPrivilegeEscalation", "containers"), drop("allowPrivilegeEscalation", "initContainers"),
            drop("runAsNonRoot"), drop("seccompProfile"),
            lambda pod: pod.update(hostPID=True), lambda pod: pod.update(hostIPC=True), lambda pod: pod.update(hostNetwork=True),
            lambda pod: pod["volumes"].append({"name": "dev", "hostPath": {"path": "/dev"}}),
            lambda pod: pod["securityContext"].update(runAsUser=0),
            lambda pod: pod["securityContext"].update(sysctls=[{"name": "kernel.msgmax", "value": "1"}]),
            lambda pod: pod["containers"][0]["ports"][0].update(hostPort=1),
            lambda pod: pod["containers"][0]["livenessProbe"].update(httpGet={"host": "example.com", "port": 80}),
        ]
        for index, change in enumerate(breaks):
            pod = copy.deepcopy(deployment(OBJECTS["gpu-node"], "decode")["spec"]["template"]["spec"])
            self.assertEqual(restricted.violations(pod), [])
            change(pod)
            self.assertNotEqual(restricted.violations(pod), [], f"break {index} is not seen")

    def test_our_containers_write_nowhere_but_volumes(self):
        for name, objects in OBJECTS.items():
            for _, pod_name, pod in pods(objects):
                for container in restricted.containers(pod):
                    if container["name"] in (*ROLES, "download", "rollout"):
                        self.assertTrue(container["securityContext"]["readOnlyRootFilesystem"], f"{name} {pod_name}")

    def test_only_the_upgrade_and_routers_that_scale_have_a_token(self):
        for name, objects in OBJECTS.items():
            scales = VARIANTS[name].get("autoscaling", {}).get("mode") == "act"
            for kind, pod_name, pod in pods(objects):
                wanted = pod_name.endswith("-upgrade") or name == "service account" and kind == "Deployment" or \
                    scales and pod_name.endswith("-router")
                if kind == "Deployment" or wanted:
                    self.assertEqual(pod["automountServiceAccountToken"], wanted, f"{name} {pod_name}")
                if kind == "Deployment":
                    self.assertFalse(pod["enableServiceLinks"])

    def test_openshift_chooses_the_ids(self):
        for name, objects in OBJECTS.items():
            for _, pod_name, pod in pods(objects):
                ids = {"runAsUser", "runAsGroup", "fsGroup"} & set(pod["securityContext"])
                self.assertEqual(len(ids), 0 if VARIANTS[name].get("openshift") else 3, f"{name} {pod_name}")
                self.assertTrue(pod["securityContext"]["runAsNonRoot"])


class Settings(unittest.TestCase):
    """The pods have the settings of the values."""

    def test_everything_of_a_pod_reaches_each_role(self):
        for name in ("everything of a pod, for all", "everything of a pod, in each role", "everything of a pod, in both"):
            objects = OBJECTS[name]
            for role in ROLES:
                template = deployment(objects, role)["spec"]["template"]
                pod, container = template["spec"], main_container(objects, role)
                with self.subTest(variant=name, role=role):
                    for entry in POD["env"]:
                        self.assertIn(entry, container["env"])
                    self.assertEqual(container["envFrom"], POD["envFrom"])
                    self.assertEqual(template["metadata"]["annotations"], POD["podAnnotations"])
                    team = "own" if name.endswith("both") else "serving"
                    self.assertEqual(template["metadata"]["labels"]["team"], team)
                    for key in ("nodeSelector", "tolerations", "affinity", "runtimeClassName", "priorityClassName", "schedulerName"):
                        self.assertEqual(pod[key], POD[key], key)
                    own = name.endswith("both")
                    self.assertEqual([c["name"] for c in pod["initContainers"]], ["before", "own"] if own else ["before"])
                    self.assertEqual([c["name"] for c in pod["containers"]], [role, "sidecar"])
                    volumes = {volume["name"] for volume in pod["volumes"]}
                    self.assertLessEqual({"scratch", "own"} if own else {"scratch"}, volumes)
                    self.assertIn({"name": "scratch", "mountPath": "/scratch"}, container["volumeMounts"])
                    self.assertEqual(pod["securityContext"]["supplementalGroups"], [4000])
                    self.assertIs(container["securityContext"]["privileged"], False)
                    racks = [(c["topologyKey"], c["maxSkew"], c["whenUnsatisfiable"]) for c in pod["topologySpreadConstraints"]]
                    self.assertEqual(racks, [("kubernetes.io/hostname", 1, "ScheduleAnyway"), ("topology.example.com/rack", 2, "DoNotSchedule")])
                    if role != "router":
                        claims = ["gpu", "nic"] if own else ["gpu"]
                        self.assertEqual([c["name"] for c in container["resources"]["claims"]], claims)

    def test_labels_of_a_user_break_no_selector(self):
        objects = render.render({"podLabels": {"app.kubernetes.io/component": "mine", "app.kubernetes.io/name": "mine"}})
        for role in ROLES:
            item = deployment(objects, role)
            self.assertLessEqual(item["spec"]["selector"]["matchLabels"].items(), item["spec"]["template"]["metadata"]["labels"].items())

    def test_no_label_promises_what_is_not_there(self):
        for name, objects in OBJECTS.items():
            self.assertNotIn("llm-d.ai", json.dumps(objects), name)
            self.assertNotIn("vllm", json.dumps([item["metadata"] for item in objects]), name)

    def test_images(self):
        images = {role: (main_container(OBJECTS["images"], role)["image"], main_container(OBJECTS["images"], role)["imagePullPolicy"]) for role in ROLES}
        self.assertEqual(images, {
            "router": ("registry.example.com/penstock-router:9", "Never"),
            "prefill": ("registry.example.com/penstock-gpu@sha256:" + "1" * 64, "Always"),
            "decode": ("registry.example.com/penstock:decode", "Always")})
        self.assertEqual({main_container(OBJECTS["defaults"], role)["image"] for role in ROLES}, {"penstock:0.1.0"})

    def test_addresses_are_right_for_both_ip_families(self):
        for name, objects in OBJECTS.items():
            for role in ROLES:
                container = main_container(objects, role)
                for flag, value in flags(container).items():
                    if flag == "kv_events_topic":  # no address, but a name that llm-d takes apart
                        self.assertRegex(value, r"^kv@\$\(POD_IP\)@[^@]+$", name)
                    elif "POD_IP" in value:
                        self.assertRegex(value, r"^\[\$\(POD_IP\)\]:\d+$", f"{name} {flag}")
                for value in variables(container).values():
                    self.assertFalse(value and "POD_IP" in value and not value.startswith("[$(POD_IP)]:"), name)

    def test_ports_of_probes_flags_and_services_agree(self):
        for name, objects in OBJECTS.items():
            router = flags(main_container(objects, "router"))
            for role in ROLES:
                container = main_container(objects, role)
                port = {p["name"]: p["containerPort"] for p in container["ports"]}
                given = flags(container)
                self.assertEqual(given["listen"], f"[$(POD_IP)]:{port['grpc']}", name)
                self.assertEqual(given["metrics_listen"], f"[$(POD_IP)]:{port['metrics']}", name)
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    if "grpc" in container[probe]:
                        self.assertEqual(container[probe]["grpc"]["port"], port["grpc"], name)
                    elif "httpGet" in container[probe] and role != "router":
                        self.assertEqual(container[probe]["httpGet"]["port"], "metrics", name)
                    elif "httpGet" in container[probe]:
                        self.assertEqual(container[probe]["httpGet"]["port"], "http", name)
                        self.assertEqual(given["http_listen"], f"[$(POD_IP)]:{port['http']}")
                    else:
                        self.assertEqual(variables(container)["PENSTOCK_ENDPOINT"], f"[$(POD_IP)]:{port['grpc']}", name)
                if role != "router":
                    service = next(s for s in of_kind(objects, "Service") if s["metadata"]["name"] == f"penstock-{role}")
                    self.assertEqual(service["spec"]["ports"][0]["port"], port["grpc"], name)
                    lookups = [a for a in main_container(objects, "router")["args"] if a == f"--workers_dns=penstock-{role}:{port['grpc']}"]
                    self.assertEqual(len(lookups), 1, name)
                policy = [p for p in of_kind(objects, "NetworkPolicy") if p["metadata"]["name"] == f"penstock-{role}"]
                if policy:
                    opened = {p["port"] for rule in policy[0]["spec"]["ingress"] for p in rule.get("ports", [])}
                    self.assertIn(port["metrics"], opened, name)
            self.assertIn("listen", router)

    def test_startup_has_its_budget_and_a_rollout_more(self):
        for name, objects in OBJECTS.items():
            for role in ROLES:
                item, container = deployment(objects, role), main_container(objects, role)
                probe = container["startupProbe"]
                budget = probe["periodSeconds"] * probe["failureThreshold"]
                wanted = VARIANTS[name].get(role, {}).get("probes", DEFAULTS[role]["probes"])["startup"]["budgetSeconds"]
                self.assertTrue(wanted <= budget < wanted + probe["periodSeconds"], f"{name} {role}: {budget}")
                self.assertGreater(item["spec"]["progressDeadlineSeconds"], budget)
                self.assertLessEqual(probe["timeoutSeconds"], probe["periodSeconds"])
        slow = main_container(OBJECTS["slow to start and to drain"], "decode")
        self.assertEqual(slow["livenessProbe"] | {"grpc": 0}, {"grpc": 0, "periodSeconds": 30, "timeoutSeconds": 20, "failureThreshold": 10})

    def test_a_kill_comes_after_the_pause_and_the_drain(self):
        for name, objects in OBJECTS.items():
            for role in ROLES:
                pod, container = deployment(objects, role)["spec"]["template"]["spec"], main_container(objects, role)
                pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
                self.assertGreater(pod["terminationGracePeriodSeconds"], pause + int(flags(container)["drain_s"]), f"{name} {role}")
        slow = deployment(OBJECTS["slow to start and to drain"], "router")["spec"]["template"]["spec"]
        self.assertEqual(slow["terminationGracePeriodSeconds"], 700)

    def test_probes_are_those_that_keys_and_certificates_let_through(self):
        for name in ("defaults", "keys", "certificates", "https", "keys and certificates"):
            values = VARIANTS[name]
            public, cluster = values.get("tls", {}).get("public"), values.get("tls", {}).get("cluster")
            for role in ROLES:
                container = main_container(OBJECTS[name], role)
                for probe, path, service in (("livenessProbe", "/health", "live"), ("startupProbe", "/health", "live"), ("readinessProbe", "/ready", None)):
                    asked = container[probe]
                    with self.subTest(variant=name, role=role, probe=probe):
                        if role == "router" and public:
                            scheme = {"scheme": "HTTPS"} if values["tls"].get("http") else {}
                            self.assertEqual(asked["httpGet"], {"path": path, "port": "http", **scheme})
                        elif role != "router" and cluster and service:
                            # Without a certificate: one that has expired ends no worker.
                            self.assertEqual(asked["httpGet"], {"path": "/live", "port": "metrics"})
                        elif role != "router" and cluster:
                            self.assertEqual(asked["exec"]["command"], ["/usr/bin/penstock", "health"])
                        else:
                            self.assertEqual(asked["grpc"].get("service"), service)

    def test_rdma_and_gpus(self):
        for role in ("prefill", "decode"):
            container = main_container(OBJECTS["rdma"], role)
            for kind, others in (("requests", {"cpu": "8"}), ("limits", {"memory": "64Gi"})):
                self.assertLessEqual({"nvidia.com/mig-3g.40gb": 1, "rdma/hca": 1, **others}.items(), container["resources"][kind].items())
            self.assertLessEqual({"UCX_TLS": "rc", "UCX_NET_DEVICES": "mlx5_0:1", "UCX_IB_GID_INDEX": "3"}.items(), variables(container).items())
            self.assertLessEqual({"device": "cuda:0", "tensor_parallel": "1", "gpu_memory_utilization": "0.8", "wire": "ucx"}.items(), flags(container).items())
            self.assertNotIn("kv_memory", flags(container))
            many = main_container(OBJECTS["eight gpus, nccl"], role)
            self.assertLessEqual({"NCCL_IB_HCA": "mlx5", "NCCL_DEBUG": "INFO"}.items(), variables(many).items())
            self.assertEqual(many["resources"]["limits"]["nvidia.com/gpu"], 8)
            self.assertEqual(flags(many)["tensor_parallel"], "8")
            pod = deployment(OBJECTS["eight gpus, nccl"], role)["spec"]["template"]["spec"]
            self.assertIn({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "16Gi"}}, pod["volumes"])
            self.assertEqual(pod["dnsPolicy"], "ClusterFirstWithHostNet")
            self.assertNotIn("nvidia.com/gpu", json.dumps(main_container(OBJECTS["defaults"], role)))
        shm = {role: [v for v in deployment(OBJECTS["different gpus"], role)["spec"]["template"]["spec"]["volumes"] if v["name"] == "shm"]
               for role in ("prefill", "decode")}
        self.assertEqual([len(shm["prefill"]), len(shm["decode"])], [1, 0], "only a worker of several GPUs has /dev/shm for NCCL")

    def test_deprecated_names_still_work(self):
        objects = OBJECTS["deprecated names"]
        self.assertEqual(variables(main_container(objects, "decode"))["UCX_TLS"], "rc")
        for _, name, pod in pods(objects):
            self.assertEqual(pod["securityContext"]["seccompProfile"]["type"], "Localhost", name)
        both = render.render({"decode": {"ucxTls": "tcp", "ucx": {"TLS": "rc"}}})
        self.assertEqual(variables(main_container(both, "decode"))["UCX_TLS"], "rc")

    def test_routers_that_scale_may_change_two_scales_and_one_lease(self):
        for name in ("autoscaling", "autoscaling with an account"):
            objects = OBJECTS[name]
            role, = of_kind(objects, "Role")
            rights = {(resource, verb, resource_name) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]
                      for resource_name in rule.get("resourceNames", ["*"])}
            lease, scales = "penstock-autoscaling", ("penstock-prefill", "penstock-decode")
            self.assertEqual(rights, {("leases", "get", lease), ("leases", "update", lease), ("leases", "create", "*")} |
                             {("deployments/scale", verb, scale) for verb in ("get", "patch") for scale in scales})
            binding, = of_kind(objects, "RoleBinding")
            account, = of_kind(objects, "ServiceAccount")
            pod = deployment(objects, "router")["spec"]["template"]["spec"]
            self.assertEqual({binding["subjects"][0]["name"], account["metadata"]["name"]}, {pod["serviceAccountName"]})
            given = flags(main_container(objects, "router"))
            self.assertEqual((given["autoscale_lease"], given["prefill_deployment"], given["decode_deployment"]), (lease, *scales))
            self.assertEqual(given["router_id"], "$(POD_NAME)")
        self.assertEqual(flags(main_container(OBJECTS["autoscaling"], "router"))["role_advice"], "act")
        self.assertEqual(flags(main_container(OBJECTS["defaults"], "router"))["autoscale"], "propose")
        self.assertEqual(of_kind(OBJECTS["defaults"], "Role"), [])
        policy, = (item for item in of_kind(OBJECTS["autoscaling"], "NetworkPolicy") if item["metadata"]["name"].endswith("-router"))
        self.assertIn([{"port": 16443, "protocol": "TCP"}], [rule.get("ports") for rule in policy["spec"]["egress"]])

    def test_each_pod_is_scaled_by_one_thing(self):
        for name, objects in OBJECTS.items():
            scaled = [item["spec"]["scaleTargetRef"]["name"] for item in objects if item["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")]
            if VARIANTS[name].get("autoscaling", {}).get("mode") == "act":
                scaled += [deployment(objects, role)["metadata"]["name"] for role in ("prefill", "decode")]
            self.assertEqual(len(scaled), len(set(scaled)), name)
            for role in ROLES:
                item = deployment(objects, role)
                self.assertNotEqual("replicas" in item["spec"], item["metadata"]["name"] in scaled, f"{name} {role}")
            if not VARIANTS[name].get("monitoring", {}).get("keda", {}).get("enabled"):
                self.assertEqual(of_kind(objects, "ScaledObject"), [], name)
        queries = [t["metadata"]["query"] for item in of_kind(OBJECTS["keda"], "ScaledObject") for t in item["spec"]["triggers"]]
        self.assertEqual(len(queries), 2)
        for query in queries:
            self.assertRegex(query, r'namespace="penstock",pod=~"penstock-(prefill|decode)-\.\*"')


class Routes(unittest.TestCase):
    def test_only_the_api_is_behind_the_gateway(self):
        proxy = (ROOT / "deploy/proxy/haproxy.cfg").read_text()
        paths = re.search(r"acl api path (.*)", proxy)[1].split()
        services = [path.strip("/") for path in re.search(r"acl service path_beg (.*)", proxy)[1].split()]
        http, grpc = (of_kind(OBJECTS["gateway"], kind)[0]["spec"] for kind in ("HTTPRoute", "GRPCRoute"))
        self.assertEqual([m["path"] for m in http["rules"][0]["matches"]],
                         [{"type": "PathPrefix", "value": "/v1"}, *({"type": "Exact", "value": path} for path in paths)])
        self.assertEqual([m["method"]["service"] for m in grpc["rules"][0]["matches"]], services)
        self.assertEqual(http["rules"][0]["timeouts"], {"request": "30m"})

    def test_routes_reach_ports_of_the_service(self):
        for name, objects in OBJECTS.items():
            ports = {s["metadata"]["name"]: {p["name"]: p["port"] for p in s["spec"]["ports"]} for s in of_kind(objects, "Service")}
            for kind, port in (("HTTPRoute", "http"), ("GRPCRoute", "grpc")):
                for item in of_kind(objects, kind):
                    backend, = item["spec"]["rules"][0]["backendRefs"]
                    if "port" in backend:  # an InferencePool has none
                        self.assertEqual(backend["port"], ports[backend["name"]][port], name)

    def test_an_inference_pool_is_the_routers_and_their_picker(self):
        for name in ("inference pool", "inference pool with keys and certificates"):
            objects, values = OBJECTS[name], VARIANTS[name]["gateway"]["inferencePool"]
            pool, = of_kind(objects, "InferencePool")
            router = next(d for d in of_kind(objects, "Deployment") if d["metadata"]["name"] == "penstock-router")
            self.assertEqual(pool["spec"]["selector"], router["spec"]["selector"])
            container = main_container(objects, "router")
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            self.assertEqual(pool["spec"]["targetPorts"], [{"number": ports["http"]}])
            picker = pool["spec"]["endpointPickerRef"]
            service = next(s for s in of_kind(objects, "Service") if s["metadata"]["name"] == picker["name"])
            self.assertEqual(service["spec"]["type"], "ClusterIP", "a load balancer of the routers does not show the picker")
            self.assertEqual(service["spec"]["selector"], router["spec"]["selector"]["matchLabels"])
            port, = service["spec"]["ports"]
            self.assertEqual((port["port"], port["targetPort"]), (picker["port"]["number"], "picker"))
            self.assertEqual(ports["picker"], picker["port"]["number"])
            self.assertEqual(port["appProtocol"], "https" if values.get("pickerTls") == "cluster" else "kubernetes.io/h2c")
            self.assertIn(f"--endpoint_picker_listen=[$(POD_IP)]:{ports['picker']}", container["args"])
            policy = next(p for p in of_kind(objects, "NetworkPolicy") if p["metadata"]["name"] == "penstock-router")
            self.assertIn({"port": ports["picker"], "protocol": "TCP"}, policy["spec"]["ingress"][0]["ports"])
            self.assertEqual(picker["failureMode"], values.get("failureMode", "FailOpen"))
        backend, = of_kind(OBJECTS["inference pool"], "HTTPRoute")[0]["spec"]["rules"][0]["backendRefs"]
        self.assertEqual(backend, {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "penstock"})
        for name, objects in OBJECTS.items():
            if not VARIANTS[name].get("gateway", {}).get("inferencePool", {}).get("enabled"):
                self.assertNotIn("endpoint_picker", " ".join(main_container(objects, "router")["args"]), name)


class Policies(unittest.TestCase):
    def clients(self, values):
        policy = next(p for p in of_kind(render.render(values), "NetworkPolicy") if p["metadata"]["name"] == "penstock-router")
        return policy["spec"]["ingress"][0].get("from")

    def test_who_may_call_the_routers(self):
        own, gateways = {"podSelector": {}}, {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "gateways"}}}
        self.assertEqual(self.clients({}), [own])
        self.assertIsNone(self.clients({"apiKeys": {"secret": "k"}}), "with keys everyone may call")
        self.assertEqual(self.clients(VARIANTS["gateway"]), [own, gateways])
        self.assertEqual(self.clients({"apiKeys": {"secret": "k"}, "networkPolicy": {"clients": [gateways]}}), [gateways])

    def test_dns_is_reached_wherever_it_is(self):
        for policy in of_kind(OBJECTS["defaults"], "NetworkPolicy"):
            dns = [rule for rule in policy["spec"]["egress"] if {"port": 53, "protocol": "UDP"} in rule.get("ports", [])]
            self.assertEqual([rule.get("to") for rule in dns], [None], "a cache on the node is no pod")

    def test_kv_events_are_for_their_subscribers_alone(self):
        for name, objects in OBJECTS.items():
            values = VARIANTS[name].get("kvEvents", {})
            for role in ROLES:
                container = main_container(objects, role)
                ports = {p["name"]: p["containerPort"] for p in container["ports"]}
                published = bool(values.get("enabled")) and role != "router"
                self.assertEqual("kv-events" in ports, published, name)
                self.assertEqual("kv_events_listen" in flags(container), published, name)
                if not published:
                    continue
                self.assertEqual(flags(container)["kv_events_listen"], f"[$(POD_IP)]:{ports['kv-events']}", name)
                for policy in (p for p in of_kind(objects, "NetworkPolicy") if p["metadata"]["name"] == f"penstock-{role}"):
                    rules = [rule for rule in policy["spec"]["ingress"] if {"port": ports["kv-events"], "protocol": "TCP"} in rule.get("ports", [])]
                    self.assertEqual([rule["from"] for rule in rules], [values["subscribers"]], name)

    def test_the_hub_is_reached_by_pods_that_fetch(self):
        for name, wanted in (("gpu-node", True), ("gpu-4x4", False), ("defaults", False)):
            for policy in of_kind(OBJECTS[name], "NetworkPolicy"):
                ports = [p["port"] for rule in policy["spec"]["egress"] for p in rule.get("ports", [])]
                self.assertEqual(443 in ports, wanted, name)


class Upgrades(unittest.TestCase):
    def test_the_order(self):
        objects = OBJECTS["an upgrade"]
        paused = {role: deployment(objects, role)["spec"].get("paused", False) for role in ROLES}
        self.assertEqual(paused, {"router": True, "prefill": True, "decode": False})
        job = next(item for item in of_kind(objects, "Job") if item["metadata"]["name"] == "penstock-upgrade")
        arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
        self.assertEqual(arguments, ["--namespace=penstock", "penstock-decode", "penstock-prefill", "penstock-router"])
        self.assertEqual(job["spec"]["activeDeadlineSeconds"], 900)
        for item in objects:
            if item["metadata"]["name"] == "penstock-upgrade":
                self.assertEqual(item["metadata"]["annotations"]["helm.sh/hook"], "post-upgrade,post-rollback")
        weights = {item["kind"]: int(item["metadata"]["annotations"].get("helm.sh/hook-weight", 0))
                   for item in objects if item["metadata"]["name"] == "penstock-upgrade"}
        self.assertEqual(set(weights), {"ServiceAccount", "Role", "RoleBinding", "ConfigMap", "Job"})
        self.assertTrue(all(weight < weights["Job"] for kind, weight in weights.items() if kind != "Job"))

    def test_its_rights_are_those_that_it_needs(self):
        objects = OBJECTS["an upgrade"]
        role, = of_kind(objects, "Role")
        names = {item["metadata"]["name"] for item in of_kind(objects, "Deployment")}
        self.assertEqual(role["rules"], [{"apiGroups": ["apps"], "resources": ["deployments"], "resourceNames": sorted(names), "verbs": ["get", "patch"]}])

    def test_without_it_nothing_is_paused(self):
        for name, objects in OBJECTS.items():
            if name != "an upgrade":
                self.assertNotIn('"paused": true', json.dumps(objects), name)
                self.assertEqual([i for i in objects if i["metadata"]["name"] == "penstock-upgrade"], [], name)


class Models(unittest.TestCase):
    def test_every_role_has_the_model_that_it_names(self):
        for name in ("a model by URI", "a model by a job, from a mirror", "gpu-node", "gpu-4x4"):
            objects, model = OBJECTS[name], {**DEFAULTS["model"], **VARIANTS[name]["model"]}
            for role in ROLES:
                pod, container = deployment(objects, role)["spec"]["template"]["spec"], main_container(objects, role)
                self.assertEqual(flags(container)["model"], model["path"])
                self.assertIn({"name": "model", "mountPath": model["mountPath"], "readOnly": True}, container["volumeMounts"])
                loads = [c for c in pod.get("initContainers", []) if c["name"] == "download"]
                self.assertEqual(len(loads), 0 if model["download"].get("how") == "job" else 1, f"{name} {role}")
                for load in loads:
                    self.assertIn({"name": "model", "mountPath": model["mountPath"]}, load["volumeMounts"])
                    self.assertEqual("--without-weights" in load["args"], role == "router", f"{name} {role}")

    def test_a_router_fetches_all_into_a_shared_volume(self):
        objects = render.render({"model": {"path": "/models/x", "volume": {"persistentVolumeClaim": {"claimName": "c"}}, "download": {"uri": "hf://a/b"}}})
        for role in ROLES:
            load, = deployment(objects, role)["spec"]["template"]["spec"]["initContainers"]
            self.assertNotIn("--without-weights", load["args"], "else workers would find a model without weights")

    def test_the_job_comes_before_the_pods_with_its_token(self):
        objects = OBJECTS["a model by a job, from a mirror"]
        job, = of_kind(objects, "Job")
        self.assertEqual(job["metadata"]["annotations"]["helm.sh/hook"], "pre-install,pre-upgrade")
        container, = job["spec"]["template"]["spec"]["containers"]
        self.assertEqual(container["args"], ["--uri=hf://org/llama@main", "--to=/srv/llama", "--owner=job", "--endpoint=https://hub.example.com"])
        self.assertEqual(container["env"], [{"name": "MODEL_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "secret"}}}])
        script = next(item for item in of_kind(objects, "ConfigMap") if item["metadata"]["name"] == "penstock-download")
        self.assertEqual(script["metadata"]["annotations"]["helm.sh/hook"], "pre-install,pre-upgrade")
        self.assertEqual(script["data"]["download.py"] + "\n", (render.CHART / "files/download.py").read_text())

    def test_files_are_named(self):
        load = deployment(OBJECTS["a model by URI"], "decode")["spec"]["template"]["spec"]["initContainers"][0]
        named = VARIANTS["a model by URI"]["model"]["download"]["files"]
        self.assertLessEqual({"config.json", "tokenizer.json", "model.safetensors"}, set(named))
        self.assertEqual([a for a in load["args"] if a.startswith("--file=")], [f"--file={name}" for name in named])


class Alerts(unittest.TestCase):
    """Two releases in a cluster do not alert about each other, and an alert leads to its page."""

    def setUp(self):
        rules, = of_kind(OBJECTS["monitoring"], "PrometheusRule")
        self.rules = rules["spec"]["groups"][0]["rules"]

    def test_every_selector_is_of_this_release(self):
        ours = 'namespace="penstock",release="penstock"'
        for rule in self.rules:
            with self.subTest(rule["alert"]):
                queries = rule["expr"] + "".join(re.findall(r"`([^`]*)`", rule["annotations"]["summary"]))
                names = re.findall(r"\b(?:penstock_\w+|process_\w+|up(?={))", queries)
                selectors = re.findall(r"{([^{}]*)}", queries)
                self.assertEqual(len(names), len(selectors))
                for selector in selectors:
                    self.assertIn(ours, selector)
                self.assertEqual((rule["labels"]["namespace"], rule["labels"]["release"]), ("penstock", "penstock"))

    def test_series_have_the_label_that_rules_select(self):
        monitor, = of_kind(OBJECTS["monitoring"], "PodMonitor")
        self.assertIn({"targetLabel": "release", "replacement": "penstock"}, monitor["spec"]["podMetricsEndpoints"][0]["relabelings"])

    def test_runbooks_are_where_the_values_say(self):
        for rule in self.rules:
            self.assertEqual(rule["annotations"]["runbook_url"], f"https://git.example.com/runbooks/{rule['alert']}.md")

    def test_targets_are_those_of_the_routers(self):
        found = flags(main_container(OBJECTS["targets"], "router"))
        self.assertEqual((found["ttft_target_ms"], found["tpot_target_ms"]), ("500", "40"))


if __name__ == "__main__":
    unittest.main()
