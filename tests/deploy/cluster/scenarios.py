"""What happens to clusters, and what must be true then. Each function gives the figures of its row."""

import time
from concurrent.futures import ThreadPoolExecutor

from . import variants_here
from .installed import ROLES, Installed, check, eventually, merged
from .leaders import await_leader

# Two pods of each role that fit a small machine; all probes and pauses are the chart's own.
WORKER = {"replicas": 2, "kvMemory": "64MiB", "dramMemory": "64MiB", "extraArgs": ["--threads=1"]}
SMALL = {"router": {"replicas": 2}, "prefill": WORKER, "decode": WORKER}


# ---- Install ----

def install(folder, programs, name, hurry=False):
    """The variant's pods become ready by their own probes, answer over both APIs' Services, are reached by those alone whom the
    policies name, and end in their time."""
    values, families, upgrade = variants_here.of(name)
    installed = Installed(folder, programs, values, families, hurry=hurry)
    begun = time.monotonic()
    if upgrade:  # an upgrade of a release with the same values otherwise
        installed.apply({key: value for key, value in values.items() if key != "upgrade"})
        eventually(installed.is_rolled_out, 120, "the release before")
        installed.apply(merged(values, {"logLevel": "debug"}), "upgrade")
    else:
        installed.apply(values)
    installed.await_ready()
    ready_s = time.monotonic() - begun
    pods = installed.pods()
    check(not sum(pod.restarts for pod in pods), "a container was restarted")
    client = installed.bystander("client")
    installed.await_rules()
    answer = installed.generate(client)
    load = installed.load(requests=1, clients=1)
    load.stop()
    check(not load.failed(), load.failed())
    check_policies(installed, client)
    if installed.values["autoscaling"]["mode"] == "act" and 443 in installed.values["autoscaling"]["apiPorts"]:
        await_leader(installed)
    ended_s = installed.uninstall()
    check(not installed.cluster.problems, installed.cluster.problems)
    return {"pods": len(pods), "ready_s": ready_s, "ended_s": ended_s, "answer": answer}


def check_policies(installed, client):
    """Connections of pods of other namespaces, and of a client, against what values.yaml says about them."""
    values, pods = installed.values, {role: installed.pods(role)[0] for role in ROLES}
    strangers = {name: installed.bystander(f"from-{name}", name) for name in ("other", "monitoring", "gateways")}
    installed.await_rules()
    open_to_all = not values["networkPolicy"]["enabled"]
    everyone = open_to_all or bool(values["apiKeys"]["secret"] or values["networkPolicy"]["clients"])
    routed = any(values["gateway"][kind]["enabled"] for kind in ("http", "grpc"))
    wanted = {"client": (True, open_to_all, open_to_all), "other": (everyone, open_to_all, open_to_all),
              "monitoring": (everyone, open_to_all, True), "gateways": (everyone or routed, open_to_all, open_to_all)}
    for name, pod in {"client": client, **strangers}.items():
        for role, target in pods.items():
            if target.host_network:
                continue  # policies do not hold there, as docs/operations/kubernetes.md says
            to_router, to_worker, to_metrics = wanted[name]
            ports = {8000: to_router, 8090: to_router} if role == "router" else {values[role]["port"]: to_worker}
            pool = values["gateway"]["inferencePool"]
            if role == "router" and pool["enabled"]:
                ports[pool["pickerPort"]] = to_router
            ports[values[role]["metricsPort"]] = to_metrics
            found = installed.reaches(pod, [(target.addresses[0], port) for port in ports])
            found = {port: reached for (_, port), reached in found.items()}
            check(found == ports, f"{name} to {role}: reached {found}, expected {ports}")


def refuse_without_gpu(folder, programs, name):
    """A variant for GPUs: routers are as on CPUs; each worker accepts its flags and says that it misses a GPU."""
    values, families, _ = variants_here.of_gpu(name)
    installed = Installed(folder, programs, values, families)
    items = [item for item in installed.rendered(values, "install") if item["kind"] == "Deployment"]
    for item in items:
        spec = item["spec"]["template"]["spec"]
        role = item["metadata"]["labels"]["app.kubernetes.io/component"]
        if role == "router":
            continue
        spec = {**spec, "restartPolicy": "Never", "initContainers": [], "resourceClaims": []}
        for container in spec["containers"]:
            container["resources"] = {}
        pod = installed.cluster.run_pod(f"{role}-0", spec, item["spec"]["template"]["metadata"]["labels"])
        eventually(pod.is_over, 30, f"the end of {role}")
        text = pod.log_text(role)
        check("this build has no CUDA" in text, f"{role}: {text}")
    return {"pods": len(items) - 1}


# ---- Under load ----

def small(folder, programs, more=None, hurry=False, nodes=3, withheld=()):
    """A release of SMALL that is ready, without the kinds of `withheld`, and values."""
    values = merged(SMALL, more or {})
    installed = Installed(folder, programs, values, hurry=hurry, nodes=nodes)
    installed.withheld.update(withheld)
    installed.apply(values)
    installed.await_ready()
    eventually(installed.is_rolled_out, 60, "the Deployments' status")
    installed.await_rules()
    return installed, values


def await_answers(load, count):
    before = len(load.answers())
    eventually(lambda: len(load.answers()) >= before + count or load.failed(), 60, "answers")
    check(not load.failed(), load.failed()[:3])


def answered(load):
    """Figures of a load that has stopped. No request failed, and no token changed."""
    check(not load.failed(), f"{len(load.failed())} of {len(load.answers())} failed: {load.failed()[:3]}")
    return {"requests": len(load.answers()), "failed": 0, "changed": 0, "retries": load.retries()}


def watch(installed, see):
    """Calls `see` all the time, until the function that it gives is called."""
    pool, ended = ThreadPoolExecutor(1), []

    def loop():
        while not ended:
            see()
            time.sleep(0.05)
    future = pool.submit(loop)

    def stop():
        ended.append(True)
        future.result()
        pool.shutdown()
    return stop


def upgrade(folder, programs, hurry=False):
    """`helm upgrade` to another template of all pods: decode workers, then prefill workers, then routers."""
    installed, values = small(folder, programs, hurry=hurry)
    load = installed.load(requests=8)
    old = {pod.name for pod in installed.pods()}
    await_answers(load, 5)
    order, begun = [], time.monotonic()

    def see():
        for pod in installed.pods():
            role = pod.labels["app.kubernetes.io/component"]
            if pod.name not in old and role not in order:
                order.append(role)
    stop = watch(installed, see)
    logs = installed.apply(merged(values, {"logLevel": "warning"}), "upgrade")
    took_s = time.monotonic() - begun
    stop()
    await_answers(load, 5)
    load.stop()
    check(not old & {pod.name for pod in installed.pods()}, "old pods are left")
    check(order == ["decode", "prefill", "router"], f"the order was {order}")
    check("resumed" in logs[-1], logs)
    return {**answered(load), "took_s": took_s, **ended_well(installed)}


def ended_well(installed):
    """No container was killed after its grace period, or ended with an error."""
    pods = [pod for pod in [*installed.cluster.finished, *installed.cluster.pods] if not pod.crashed]
    killed = [name for pod in pods for name in pod.killed]
    codes = {event["container"]: event["code"] for pod in pods for event in pod.events if event["event"] == "ended" and event["code"] != 0}
    check(not killed and not codes, f"killed after the grace period: {killed}; exit codes {codes}")
    return {"killed": 0}


def scale(folder, programs, hurry=False):
    """1 + 1 workers to 3 + 2 and back."""
    one = {"prefill": {"replicas": 1}, "decode": {"replicas": 1}}
    installed, _ = small(folder, programs, one, hurry)
    load = installed.load(requests=8)
    times = []
    for prefill, decode in ((3, 2), (1, 1)):
        begun = time.monotonic()
        installed.cluster.scale("penstock-prefill", prefill)
        installed.cluster.scale("penstock-decode", decode)
        eventually(lambda: installed.are_ready() and not installed.leaving(), 120, "the new number of pods")
        times.append(time.monotonic() - begun)
        await_answers(load, 20)
    load.stop()
    return {**answered(load), "up_s": times[0], "down_s": times[1], **ended_well(installed)}


def drain(folder, programs, hurry=False):
    """`kubectl drain` of a node, with the chart's PodDisruptionBudgets, then of another."""
    installed, _ = small(folder, programs, hurry=hurry)
    cluster = installed.cluster
    load = installed.load(node=cluster.network.nodes[2], requests=8)
    least, refused, begun = {role: 2 for role in ROLES}, 0, time.monotonic()

    def see():
        for role in ROLES:
            least[role] = min(least[role], sum(pod.is_ready() for pod in installed.pods(role)))
    stop = watch(installed, see)
    for node in cluster.network.nodes[:2]:
        refused += cluster.drain(node)
        installed.await_ready()
        await_answers(load, 5)
        node.cordoned = False
    took_s = time.monotonic() - begun
    stop()
    load.stop()
    check(min(least.values()) >= 1, f"fewer pods than the budgets say: {least}")
    return {**answered(load), "took_s": took_s, "refused": refused, **ended_well(installed)}


def lost_node(folder, programs, hurry=False, notice_s=5):
    """A node falls silent. Kubernetes notices after notice_s: 50 s by default, and 300 s more until it makes other pods."""
    installed, _ = small(folder, programs, hurry=hurry, nodes=4)
    cluster = installed.cluster
    home = cluster.network.nodes[3]
    load = installed.load(node=home, stall_s=5, connect_s=1)
    await_answers(load, 5)
    node = max(cluster.network.nodes[:3], key=lambda one: len(installed.roles_on(one)))
    roles = installed.roles_on(node)
    lost, lost_clock = time.time(), time.monotonic()
    cluster.lose(node)
    time.sleep(notice_s)
    noticed = time.time()
    cluster.notice(node)
    installed.await_ready()
    pods_s = time.monotonic() - lost_clock
    installed.await_rules()
    await_more = len(load.answers()) + 10
    eventually(lambda: len(load.answers()) >= await_more, 60, "answers")
    load.stop()
    figures = lost_figures(load, lost, noticed, pods_s)
    # A time of a machine that does nothing else: the hurried scenario runs beside others, and waits for what it expects.
    check(hurry or figures["recovered_s"] <= 15, f"recovered after {figures['recovered_s']:.1f} s and the {noticed - lost:.1f} s until it was noticed")
    return {**figures, "roles": "+".join(roles), "notice_s": notice_s}


def lost_figures(load, lost, noticed, pods_s):
    """Streams through a router that is lost break off, because its end of the connection is lost; nothing else may fail."""
    broken = [line for line in load.failed() if "broke" in line["fault"]]
    others = [line for line in load.failed() if line not in broken]
    check(not others, others[:3])
    late = [line for line in broken if line["begun"] > noticed]
    check(not late, f"requests broke after the loss was noticed: {late[:3]}")
    check(len(broken) <= 4 * 2, f"{len(broken)} requests broke off")
    troubled = [line["ended"] for line in load.answers() if line["met"] or line["fault"]]
    clean_s = max([pods_s, *(ended - lost for ended in troubled)])
    recovered_s = clean_s - (noticed - lost)
    ended = sorted(line["ended"] for line in load.answers() if not line["fault"])
    gaps = [after - before for before, after in zip(ended, ended[1:])]
    return {"requests": len(load.answers()), "failed": 0, "changed": 0, "broken": len(broken), "retries": load.retries(), "recovered_s": recovered_s,
            "gap_s": max(gaps)}
