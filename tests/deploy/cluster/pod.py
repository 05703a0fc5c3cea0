"""A pod's life as the kubelet leads it: volumes, init containers, containers with their probes and restarts; at its end preStop,
SIGTERM, the grace period, SIGKILL."""

import json
import shutil
import signal
import threading
import time

from . import spec as oci, volumes
from .container import Container
from .names import resolv_conf
from .network import remove_pod
from .probes import Prober

BACKOFF_S, BACKOFF_MAX_S = 10, 300
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class Pod:
    """`started` tells whether each container has; all fields are written under `lock` by threads of the pod."""

    def __init__(self, cluster, name, namespace, owner, labels, spec, node):
        self.cluster, self.name, self.namespace, self.owner = cluster, name, namespace, owner
        self.labels, self.spec, self.node = labels, spec, node
        self.openshift = cluster.openshift
        self.folder = cluster.folder / "pods" / name
        self.host_network = spec.get("hostNetwork", False)
        self.space = node.space if self.host_network else name
        self.addresses, self.folders, self.probers = [], {}, []
        self.phase, self.ready_since, self.started = "Pending", None, {}
        self.readiness, self.restarts, self.events = {}, 0, []
        self.created, self.deleting, self.killed, self.crashed = time.monotonic(), None, [], False
        self.ending, self.gone = threading.Event(), threading.Event()
        self.lock = threading.RLock()
        self.running = {}  # container's name to Container
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)

    def start(self):
        self.thread.start()

    def tell(self, what, **more):
        self.events.append({"time": time.time(), "pod": self.name, "event": what, **more})

    # ---- State, as controllers and Services see it ----

    def is_ready(self):
        return self.ready_since is not None and self.deleting is None

    def is_available(self, min_ready_s):
        since = self.ready_since
        return since is not None and self.deleting is None and time.monotonic() - since >= min_ready_s

    def is_over(self):
        return self.phase in ("Succeeded", "Failed")

    # ---- Beginning ----

    def run(self):
        try:
            self.prepare()
            for container in self.spec.get("initContainers", ()):
                if not self.run_init(container):
                    return
            self.phase = "Running"
            threads = [threading.Thread(target=self.keep, args=(container,), daemon=True) for container in self.spec["containers"]]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if self.phase == "Running" and not self.crashed:
                self.phase = "Failed"
        except Exception as error:  # the test sees it as the pod's end
            if not self.ending.is_set():
                self.tell("failed", why=repr(error))
                self.phase = "Failed"

    def prepare(self):
        self.folder.mkdir(parents=True)
        self.addresses = self.node.addresses if self.host_network else self.node.add_pod(self.space)
        for volume in self.spec.get("volumes", ()):
            self.folders[volume["name"]] = volumes.make(volume, self.folder / "volumes" / volume["name"], self.cluster, self.group())
        (self.folder / "resolv.conf").write_text(resolv_conf(self.namespace, [plan.names for plan in self.cluster.network.plans]))
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n" + "".join(f"{address} {self.name}\n" for address in self.addresses))
        self.cluster.touch()

    def renew_volumes(self, kind, name):
        """Writes the new data of a Secret or ConfigMap, as the kubelet does some time after a change."""
        for volume in self.spec.get("volumes", ()):
            if volumes.shows(volume, kind, name):
                volumes.write(self.folders[volume["name"]], volume, self.cluster.data_of, self.group())

    def group(self):
        """The group of its volumes' files."""
        return oci.fs_group(self.spec.get("securityContext") or {}, self.openshift) or 0

    def files(self):
        """The kubelet's own: destination to path."""
        files = {"/etc/resolv.conf": self.folder / "resolv.conf", "/etc/hosts": self.folder / "hosts"}
        if self.spec.get("automountServiceAccountToken", True):
            token = self.folder / "account"
            if not token.exists():
                token.mkdir()
                volumes.write_data(token, self.cluster.account(self.namespace, self.spec.get("serviceAccountName", "default")), 0o644, 0)
            files[ACCOUNT] = token
        return files

    def launch(self, container, run_number):
        variables = oci.environment(container, self, self.cluster.data_of, self.cluster.network.plans[0].api)
        config = oci.config(container, self, variables, self.cluster.root, self.folders, self.files(), self.space)
        name = f"{self.name}.{container['name']}.{run_number}"
        self.tell("started", container=container["name"], run=run_number)
        return Container(name, config, self.folder / f"{container['name']}.{run_number}", self.log(container["name"]))

    def log(self, container):
        return self.cluster.logs / f"{self.name}.{container}.log"

    def log_text(self, container=None):
        return self.log(container or self.spec["containers"][0]["name"]).read_text(errors="replace")

    def run_init(self, container):
        """Until it has succeeded; False where the pod ends before."""
        for number in range(100):
            # An image of others has an entry point that ends.
            running = self.launch({"command": ["/usr/bin/true"], **container}, number)
            with self.lock:
                self.running[container["name"]] = running
            code = running.wait()
            if self.ending.is_set():
                return False
            if code == 0:
                return True
            self.tell("init failed", container=container["name"], code=code)
            if self.spec.get("restartPolicy") == "Never":
                self.phase = "Failed"
                return False
            if self.ending.wait(min(BACKOFF_S * 2 ** number, BACKOFF_MAX_S)):
                return False
        return False

    # ---- Middle ----

    def keep(self, container):
        """Runs a container again and again, with the kubelet's pauses; a Job's once."""
        name = container["name"]
        for number in range(1000):
            with self.lock:
                if self.ending.is_set():
                    return
                running = self.running[name] = self.launch(container, number)
            ended = threading.Event()
            self.watch(container, running, ended)
            code = running.wait()
            ended.set()
            self.set_ready(name, False)
            self.started[name] = False
            self.tell("ended", container=name, code=code)
            if self.ending.is_set():
                return
            if self.spec.get("restartPolicy") == "Never":
                self.phase = "Succeeded" if code == 0 else "Failed"
                return
            self.restarts += 1
            lived_s = time.monotonic() - running.started
            pause_s = 0 if lived_s > 600 or number == 0 else min(BACKOFF_S * 2 ** (number - 1), BACKOFF_MAX_S)
            if self.ending.wait(pause_s):
                return

    def watch(self, container, running, ended):
        """Starts the probes of one run of a container. Liveness and readiness wait for the startup probe."""
        name = container["name"]

        def started(good, why):
            if good:
                self.watch_started(container, running, ended)
            else:
                self.fail_liveness(container, "startup", why, running, ended)
            return True

        if "startupProbe" in container:
            Prober(container["startupProbe"], self.addresses[0], container, running, ended, started).start()
        else:
            self.watch_started(container, running, ended)

    def watch_started(self, container, running, ended):
        name, address = container["name"], self.addresses[0]
        self.started[name] = True

        def live(good, why):
            if not good:
                self.fail_liveness(container, "liveness", why, running, ended)
            return not good

        def ready(good, why):
            self.set_ready(name, good, why)

        if "livenessProbe" in container:
            Prober(container["livenessProbe"], address, container, running, ended, live).start()
        if "readinessProbe" in container:
            Prober(container["readinessProbe"], address, container, running, ended, ready).start()
        else:
            self.set_ready(name, True)

    def fail_liveness(self, container, which, why, running, ended):
        if self.ending.is_set():
            return
        self.tell(f"{which} failed", container=container["name"], why=why)
        ended.set()
        threading.Thread(target=self.end_container, args=(container, running), daemon=True).start()

    def set_ready(self, name, ready, why=""):
        with self.lock:
            if self.readiness.get(name) == ready or self.crashed:
                return
            self.readiness[name] = ready
            all_ready = all(self.readiness.get(container["name"]) for container in self.spec["containers"])
            self.tell("ready" if ready else "not ready", container=name, why=why)
            self.ready_since = (self.ready_since or time.monotonic()) if all_ready else None
        self.cluster.touch()

    # ---- End ----

    def grace_s(self):
        return self.spec.get("terminationGracePeriodSeconds", 30)

    def delete(self):
        """Begins the end; `gone` is set when it has come."""
        with self.lock:
            if self.deleting is not None:
                return
            self.deleting = time.monotonic()
            self.ending.set()
        self.tell("deleted")
        self.cluster.touch()
        threading.Thread(target=self.end, daemon=True).start()

    def end(self):
        with self.lock:
            running = [(container, self.running[container["name"]]) for container in self.spec["containers"] if container["name"] in self.running]
            init = [self.running[container["name"]] for container in self.spec.get("initContainers", ()) if container["name"] in self.running]
        for one in init:
            one.signal(signal.SIGTERM)
        threads = [threading.Thread(target=self.end_container, args=(container, one), daemon=True) for container, one in running]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for one in init:
            one.kill()
        self.remove()

    def end_container(self, container, running):
        """preStop counts towards the grace period."""
        end = time.monotonic() + self.grace_s()
        hook = container.get("lifecycle", {}).get("preStop", {})
        if running.exit_code() is None and "sleep" in hook:
            running.wait(min(hook["sleep"]["seconds"], self.grace_s()))
        elif running.exit_code() is None and "exec" in hook:
            running.exec(hook["exec"]["command"], self.grace_s())
        self.stop_container(running, max(0, end - time.monotonic()))

    def stop_container(self, running, grace_s):
        """SIGTERM, and SIGKILL if it still runs after the grace period."""
        begun = time.monotonic()
        running.signal(signal.SIGTERM)
        code = running.wait(grace_s)
        if code is None:
            self.killed.append(running.name)
            self.tell("killed", container=running.name, grace_s=grace_s)
            running.kill()
        self.tell("terminated", container=running.name, code=code, took_s=round(time.monotonic() - begun, 2))

    def crash(self):
        """All processes end at once, as with their node. Nobody is told, so that the pod looks as before."""
        self.crashed = True
        self.ending.set()
        with self.lock:
            for running in self.running.values():
                running.signal(signal.SIGKILL)

    def remove(self):
        """Its record, links and volumes; the logs stay."""
        self.thread.join(30)
        (self.cluster.logs / f"{self.name}.events").write_text("".join(json.dumps(event) + "\n" for event in self.events))
        if not self.host_network and self.addresses:
            remove_pod(self.space)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.gone.set()
        self.cluster.touch()
