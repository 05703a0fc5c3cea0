"""The files of deploy/, checked against the binaries' own flags, promtool and systemd; chart_test.py has the chart's values.
scripts/check-deploy runs it with what it needs; PENSTOCK_BIN_DIR says where binaries are."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import helm_python
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
BIN = pathlib.Path(os.environ["PENSTOCK_BIN_DIR"])
sys.path.insert(0, str(DEPLOY))
import render  # noqa: E402

import variants  # noqa: E402

VARIANTS = {name: render.render(render.values_of(values)) for name, values in render.VARIANTS.items()}


def run(*command):
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=False)


def of_kind(objects, kind):
    return [item for item in objects if item["kind"] == kind]


def containers(objects):
    for item in of_kind(objects, "Deployment"):
        for container in item["spec"]["template"]["spec"]["containers"]:
            yield item, container


class Manifests(unittest.TestCase):
    def test_lint(self):
        report = helm_python.lint(str(render.CHART))
        self.assertEqual(report["errors"], [])

    def test_what_is_made_from_the_chart_is_up_to_date(self):
        for path, text in render.expected().items():
            self.assertTrue(path.exists() and path.read_text() == text, f"{path}: run deploy/render.py")
        made = {path for path in render.expected() if "kustomize" in path.parts}
        self.assertEqual({path for path in (DEPLOY / "kustomize").rglob("*.yaml")}, made)

    def test_every_flag_is_one_of_the_binary(self):
        known, seen = {}, 0
        for name, values in variants.VARIANTS.items():
            for _, container in containers(render.render(values)):
                if not container.get("command", [""])[0].startswith("/usr/bin/penstock-"):
                    continue
                binary = pathlib.Path(container["command"][0]).name
                if binary not in known:
                    known[binary] = set(re.findall(r"--([a-z_]+)", run(BIN / binary, "--help").stdout))
                for argument in container["args"]:
                    flag = re.match(r"--([a-z_]+)", argument).group(1)
                    self.assertIn(flag, known[binary], f"{name}: {binary} {argument}")
                    seen += 1
        self.assertEqual(len(known), 3)
        self.assertGreater(seen, 1000)

    def test_selectors_find_their_pods_and_ports(self):
        for name, objects in VARIANTS.items():
            pods = {item["metadata"]["name"]: item["spec"]["template"] for item in of_kind(objects, "Deployment")}
            for kind in ("Service", "PodDisruptionBudget"):
                for item in of_kind(objects, kind):
                    selector = item["spec"]["selector"]
                    selector = selector.get("matchLabels", selector)
                    found = [pod for pod in pods.values() if selector.items() <= pod["metadata"]["labels"].items()]
                    self.assertEqual(len(found), 1, f"{name}: {kind} {item['metadata']['name']}")
            for item in of_kind(objects, "Service"):
                    pod = next(pod for pod in pods.values()
                               if item["spec"]["selector"].items() <= pod["metadata"]["labels"].items())
                    named = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
                    self.assertLessEqual({port["targetPort"] for port in item["spec"]["ports"]}, named)

    def test_keys_are_mounted_and_asked_for(self):
        objects = render.render({"apiKeys": {"secret": "penstock-keys"}})
        router = next(c for _, c in containers(objects) if c["name"] == "router")
        path = next(a.split("=")[1] for a in router["args"] if a.startswith("--keys_file="))
        mount = next(m for m in router["volumeMounts"] if m["name"] == "keys")
        self.assertEqual(path, mount["mountPath"] + "/keys.json")
        self.assertTrue(mount["readOnly"])

    def test_certificates_are_mounted_shown_and_probed_with(self):
        objects = render.render({"tls": {"cluster": "inside", "public": "outside"}})
        for item, container in containers(objects):
            secrets = {volume["name"]: volume["secret"]["secretName"]
                       for volume in item["spec"]["template"]["spec"]["volumes"] if "secret" in volume}
            folders = {mount["mountPath"]: secrets[mount["name"]]
                       for mount in container["volumeMounts"] if mount["name"] in secrets}
            flags = dict(a[2:].split("=", 1) for a in container["args"] if re.match("--(cluster|tls)_", a))
            router = container["name"] == "router"
            wanted = {"cluster_cert": "tls.crt", "cluster_key": "tls.key", "cluster_ca": "ca.crt"}
            wanted |= {"tls_cert": "tls.crt", "tls_key": "tls.key"} if router else {}
            self.assertEqual(set(flags), set(wanted))
            for flag, path in flags.items():
                folder, name = path.rsplit("/", 1)
                self.assertEqual(folders[folder], "inside" if flag.startswith("cluster") else "outside")
                self.assertEqual(name, wanted[flag])
            if router:
                self.assertEqual(container["livenessProbe"]["httpGet"], {"path": "/health", "port": "http"})
                self.assertEqual(container["readinessProbe"]["httpGet"], {"path": "/ready", "port": "http"})
                continue
            self.assertEqual(container["readinessProbe"]["exec"]["command"], ["/usr/bin/penstock", "health"])
            for probe in ("startupProbe", "livenessProbe"):  # without a certificate, which may have expired
                self.assertEqual(container[probe]["httpGet"], {"path": "/live", "port": "metrics"})
            environment = {entry["name"]: entry.get("value") for entry in container["env"]}
            port = container["ports"][0]["containerPort"]
            self.assertEqual(environment["PENSTOCK_ENDPOINT"], f"[$(POD_IP)]:{port}")
            for name in ("CERT", "KEY", "CA"):
                self.assertEqual(environment[f"PENSTOCK_{name}"], flags[f"cluster_{name.lower()}"])

    def test_http_takes_the_public_certificate_where_asked(self):
        objects = render.render({"tls": {"public": "outside", "http": True}})
        router = next(c for _, c in containers(objects) if c["name"] == "router")
        self.assertIn("--http_tls=true", router["args"])
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            self.assertEqual(router[probe]["httpGet"]["scheme"], "HTTPS")
        ports = [port for item in objects if item["kind"] == "Service" for port in item["spec"]["ports"] if port["name"] == "http"]
        self.assertEqual({port["appProtocol"] for port in ports}, {"https"})

    def test_what_is_mounted_for_blocks_is_used(self):
        for name, objects in VARIANTS.items():
            for _, container in containers(objects):
                mounts = [m["mountPath"] for m in container["volumeMounts"] if m["name"] == "nvme"]
                used = [a.split("=")[1] for a in container["args"] if a.startswith("--nvme_dir=")]
                self.assertEqual([m + "/kv" for m in mounts], used, name)

    def test_routers_look_up_the_headless_services(self):
        for _, objects in VARIANTS.items():
            services = {item["metadata"]["name"]: item for item in of_kind(objects, "Service")}
            router = next(c for item, c in containers(objects) if c["name"] == "router")
            names = [a.split("=")[1] for a in router["args"] if a.startswith("--workers_dns=")]
            self.assertEqual(len(names), 2)
            for name in names:
                host, port = name.split(":")
                self.assertEqual(services[host]["spec"]["clusterIP"], "None")
                self.assertTrue(services[host]["spec"]["publishNotReadyAddresses"])
                self.assertEqual(services[host]["spec"]["ports"][0]["port"], int(port))


class Network(unittest.TestCase):
    """Who may reach whom, by the policies of the default variant."""

    def setUp(self):
        self.policies = of_kind(VARIANTS["base"], "NetworkPolicy")
        self.pods = {c["name"]: item["spec"]["template"]["metadata"]["labels"]
                     for item, c in containers(VARIANTS["base"])}

    @staticmethod
    def matches(selector, labels):
        return selector.get("matchLabels", {}).items() <= labels.items()

    def allowed(self, source, namespace, role, port):
        """Whether a pod with labels `source` of a namespace ({} is our own) reaches a pod of `role`."""
        applied = [p for p in self.policies if self.matches(p["spec"]["podSelector"], self.pods[role])]
        self.assertTrue(applied, role)
        for policy in applied:
            for rule in policy["spec"]["ingress"]:
                if "ports" in rule and port not in [p["port"] for p in rule["ports"]]:
                    continue
                for peer in rule["from"]:
                    if "namespaceSelector" in peer:
                        if namespace and self.matches(peer["namespaceSelector"], namespace):
                            return True
                    elif not namespace and self.matches(peer["podSelector"], source):
                        return True
        return False

    def test_workers_are_for_this_release_alone(self):
        client = {"app": "client"}
        for role, port in (("prefill", 8091), ("decode", 8092)):
            self.assertTrue(self.allowed(self.pods["router"], {}, role, port))
            self.assertTrue(self.allowed(self.pods["prefill"], {}, role, 40000))
            self.assertFalse(self.allowed(client, {}, role, port))
            self.assertFalse(self.allowed(client, {}, role, port + 1000))
        self.assertTrue(self.allowed(client, {}, "router", 8090))
        self.assertTrue(self.allowed(client, {}, "router", 8000))
        self.assertFalse(self.allowed(client, {}, "router", 9090))

    def test_only_monitoring_scrapes(self):
        monitoring = {"kubernetes.io/metadata.name": "monitoring"}
        ports = {c["name"]: {p["name"]: p["containerPort"] for p in c["ports"]}["metrics"] for _, c in containers(VARIANTS["base"])}
        self.assertEqual(len(ports), 3)
        for role, port in ports.items():
            self.assertTrue(self.allowed({}, monitoring, role, port))
            self.assertFalse(self.allowed({}, monitoring, role, 8091))
            self.assertFalse(self.allowed({}, {"kubernetes.io/metadata.name": "other"}, role, port))


class Monitoring(unittest.TestCase):
    def test_promtool_accepts_rules_and_their_cases(self):
        for command in (("check", "config", "deploy/prometheus/prometheus.yaml"),
                        ("test", "rules", "deploy/prometheus/rules_test.yaml")):
            result = run("promtool", *command)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_promtool_accepts_the_rules_of_the_chart(self):
        rules, = (item for item in VARIANTS["gpu"] if item["kind"] == "PrometheusRule")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rules.yaml"
            path.write_text(yaml.safe_dump(rules["spec"]))
            result = run("promtool", "check", "rules", path)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_every_alert_has_a_case_and_a_page_and_is_seen_by_a_real_prometheus(self):
        rules = yaml.safe_load((DEPLOY / "prometheus/rules.yaml").read_text())
        cases = (DEPLOY / "prometheus/rules_test.yaml").read_text()
        seen = "".join((ROOT / f"tests/e2e/operator/{name}_test.py").read_text() for name in ("alerts", "kv_alerts"))
        alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
        self.assertEqual(set(alerts) - set(re.findall(r'"(Penstock\w+)"', seen)), set())
        for alert in alerts:
            page = ROOT / "docs/operations/alerts" / f"{alert}.md"
            self.assertTrue(page.exists(), page)
            fires = rf"alertname: {alert}\n\s+eval_time: \S+\n\s+exp_alerts: \[\{{"
            self.assertTrue(re.search(fires, cases), f"no case of rules_test.yaml sees {alert} fire")
        self.assertEqual({p.stem for p in (ROOT / "docs/operations/alerts").glob("*.md")}, set(alerts))

    def test_dashboards_are_what_their_source_says(self):
        result = run(sys.executable, "deploy/grafana/generate.py", "--check")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_expressions_of_panels_are_promql(self):
        groups = []
        for path in sorted((DEPLOY / "grafana").glob("*.json")):
            for panel in json.loads(path.read_text())["panels"]:
                for target in panel.get("targets", ()):
                    expr = target["expr"].replace("$__rate_interval", "5m").replace("$gpu_hour_price", "2.5")
                    expr = re.sub(r"\$(namespace|release|instance)", ".*", expr)
                    groups.append({"record": f"panel:{len(groups)}", "expr": expr})
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "panels.yaml"
            path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": groups}]}))
            result = run("promtool", "check", "rules", path)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertGreater(len(groups), 50)


class Image(unittest.TestCase):
    """The parts of the image that the chart relies on; image_test.py has the rest, and tests/deploy/package_test runs both stages in a chroot."""

    def setUp(self):
        self.dockerfile = (DEPLOY / "docker/Dockerfile").read_text()
        self.install = (DEPLOY / "docker/install").read_text()

    def test_the_user_is_that_of_the_pods(self):
        user = re.search(r"^USER (\d+):(\d+)$", self.dockerfile, re.M)
        for _, objects in VARIANTS.items():
            for item, _ in containers(objects):
                pod = item["spec"]["template"]["spec"]["securityContext"]
                self.assertEqual((str(pod["runAsUser"]), str(pod["runAsGroup"])), user.groups())
        self.assertIn(f"groupadd --gid {user[2]} penstock", self.install)
        self.assertIn(f"useradd --uid {user[1]} --gid {user[2]} ", self.install)

    def test_the_paths_are_those_of_the_pods(self):
        self.assertIn("ln -s /usr/share/penstock/models /models\n", self.install)
        models = {path.name for path in (ROOT / "models").iterdir() if (path / "config.json").exists()}
        for _, container in containers(VARIANTS["base"]):
            model = next(a.split("=")[1] for a in container["args"] if a.startswith("--model="))
            self.assertIn(model, {f"/models/{name}" for name in models})
            self.assertRegex(container["command"][0], "^/usr/bin/penstock-(router|prefill|decode)$")


def unit_settings(name):
    """The settings of a unit: a list of values each."""
    settings = {}
    for key, value in re.findall(r"^(\w+)=(.*)$", (DEPLOY / "systemd" / name).read_text(), re.M):
        settings.setdefault(key, []).append(value)
    return settings


def seconds_of_drain(role):
    """The default of --drain_s."""
    message = "RouterConfig" if role == "router" else "WorkerConfig"
    fields = re.search(rf"message {message} {{(.*?)^}}", (ROOT / "proto/config.proto").read_text(), re.M | re.S)[1]
    return int(re.search(r"drain_s .*default\) = \"(\d+)\"", fields)[1])


class Systemd(unittest.TestCase):
    UNITS = {"router": "penstock-router.service", "prefill": "penstock-prefill@.service",
             "decode": "penstock-decode@.service"}

    def test_units_are_valid(self):
        with tempfile.TemporaryDirectory() as folder:
            units = []
            for path in sorted((DEPLOY / "systemd").glob("*.service")):
                unit = pathlib.Path(folder) / path.name.replace("@", "@0")
                unit.write_text(path.read_text().replace("/usr/bin/", f"{BIN}/"))
                units.append(unit)
            self.assertEqual(len(units), 3)
            result = run("systemd-analyze", "verify", "--man=no", *units)
            self.assertEqual((result.returncode, result.stderr), (0, ""))

    def test_a_stop_waits_longer_than_a_drain(self):
        for role, name in self.UNITS.items():
            stop = int(unit_settings(name)["TimeoutStopSec"][0])
            self.assertGreaterEqual(stop, 2 * seconds_of_drain(role), name)

    def test_packaged_configurations_are_read_and_name_flags(self):
        for role, name in self.UNITS.items():
            settings = unit_settings(name)
            self.assertEqual(settings["EnvironmentFile"][0], f"-/etc/penstock/{role}.env")
            flags = set(re.findall(r"--([a-z_]+)", run(BIN / f"penstock-{role}", "--help").stdout))
            text = (DEPLOY / f"systemd/{role}.env").read_text()
            named = re.findall(r"^#?PENSTOCK_(\w+)=", text, re.M)
            self.assertIn("MODEL", named)
            for variable in named:
                self.assertIn(variable.lower(), flags, f"{role}.env")

    def test_the_packaged_router_knows_the_packaged_workers(self):
        values = {}
        for role in self.UNITS:
            text = (DEPLOY / f"systemd/{role}.env").read_text()
            values[role] = dict(re.findall(r"^PENSTOCK_(\w+)=(.*)$", text, re.M))
        self.assertEqual(values["router"]["WORKERS"].split(","),
                         [values["prefill"]["LISTEN"], values["decode"]["LISTEN"]])
        self.assertEqual({values[role]["MODEL"] for role in values}, {"/usr/share/penstock/models/penstock-tiny"})
        scraped = yaml.safe_load((DEPLOY / "prometheus/prometheus.yaml").read_text())
        self.assertEqual([values[role]["METRICS_LISTEN"] for role in ("router", "prefill", "decode")],
                         scraped["scrape_configs"][0]["static_configs"][0]["targets"])


if __name__ == "__main__":
    unittest.main()
