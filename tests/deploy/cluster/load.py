"""A client pod, and what came of its requests."""

import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[3]
FILES = {"client.py": ROOT / "tests/deploy/cluster/client.py", "load.py": ROOT / "tests/e2e/operator/load.py"}
PLAN = {"clients": 4, "seed": 1, "requests": 12, "stall_s": 60, "connect_s": 5, "pause_s": 0, "salted": False}


class Load:
    """Begins at once. `plan` replaces entries of PLAN; "url" is that of the Service."""

    def __init__(self, cluster, name, plan, ca="", labels=None, namespace="penstock", node=None):
        data = {file: path.read_text() for file, path in FILES.items()}
        data["plan.json"] = json.dumps({**PLAN, **plan, **({"ca": "/client/ca.crt"} if ca else {})})
        data["ca.crt"] = ca
        cluster.apply([{"kind": "ConfigMap", "metadata": {"name": name}, "data": data}])
        container = {"name": "client", "command": ["python3", "-u", "/client/client.py", "/client/plan.json"],
                     "volumeMounts": [{"name": "client", "mountPath": "/client"}]}
        spec = {"restartPolicy": "Never", "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 120, "containers": [container],
                "volumes": [{"name": "client", "configMap": {"name": name}}]}
        self.pod = cluster.run_pod(name, spec, labels or {"app": "client"}, namespace, node)

    def lines(self):
        """What the client has said so far; other output of it is an error."""
        path = self.pod.log("client")
        text = path.read_text() if path.exists() else ""
        found = []
        for line in text.splitlines(keepends=True):
            if line.endswith("\n"):
                if not line.startswith("{"):
                    raise AssertionError(f"the client failed: {text[-2000:]}")
                found.append(json.loads(line))
        return found

    def is_ready(self):
        """Whether the undisturbed answers are there."""
        if self.pod.is_over():
            raise AssertionError(f"the client ended: {self.pod.log_text()[-2000:]}{self.pod.events}")
        return any("baseline" in line for line in self.lines())

    def answers(self):
        return [line for line in self.lines() if "request" in line]

    def failed(self):
        return [line for line in self.answers() if line["fault"]]

    def retries(self):
        return sum(len(line["met"]) for line in self.answers())

    def stop(self):
        """Open requests end; then all of them are in `answers`."""
        self.pod.delete()
        if not self.pod.gone.wait(150):
            raise AssertionError("the client does not end")
        return self
