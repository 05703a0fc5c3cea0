"""The routers' own autoscaling (docs/operations/autoscaling.md): which router decides, under load, in a dry run, and without rights."""

import time

from .installed import check, eventually
from .leaders import LEASE, await_leader, holder, metrics, said, terms
from .scenarios import answered, await_answers, ended_well, small, watch

# Averages and waiting times are divided by this: a minute of the averages is 1 s, and a worker goes after 10 s in which it was spare.
SPEED = 60
SCALES = ("penstock-prefill", "penstock-decode")
# Of LeaseTimes: how long others wait for a renewal, and the time between two calls.
LEASE_S, RETRY_S = 15, 2
# Targets that one busy worker of a small machine cannot keep.
TIGHT = {"ttftMs": 1, "tpotMs": 1}
# Prompts that are computed, with short answers.
BUSY = {"requests": 8, "clients": 6, "salted": True, "request": {"max_tokens": 40}}
# Both roles are idle for almost all of the time. One that is seen at work needs another worker, as a target of 1 ms leaves no time to wait.
QUIET = {"requests": 4, "clients": 1, "pause_s": 3, "request": {"max_tokens": 4}}
ONE = {"minReplicas": 1, "maxReplicas": 1}


def values(mode, prefill, decode):
    """`prefill` and `decode` are bounds of replicas. Every prompt goes to a prefill worker."""
    return {
        "autoscaling": {"mode": mode, "startUpSeconds": 5, "prefill": prefill, "decode": decode},
        "router": {"slo": TIGHT, "extraArgs": [f"--autoscale_speed={SPEED}"]},
        "prefill": {"replicas": 1}, "decode": {"replicas": 1, "extraArgs": ["--threads=1", "--local_prefill_max_tokens=0"]}}


def replicas(installed):
    return tuple(installed.cluster.find("Deployment", name)["spec"]["replicas"] for name in SCALES)


def await_replicas(installed, wanted, patience_s):
    """Until Deployments and pods are so many."""
    try:
        eventually(lambda: replicas(installed) == wanted and installed.are_ready() and not installed.leaving(), patience_s, f"{wanted} workers")
    except AssertionError as error:
        said = [line for pod in installed.pods("router") for line in pod.log_text().splitlines() if "scale_" in line]
        raise AssertionError(f"{error}; there are {replicas(installed)}\n" + "\n".join(said[-20:])) from error


def leader(folder, programs, hurry=False):
    """The leader is cut off from the API server, the next one is killed, and the one after that ends: at any time one router decides,
    and each does."""
    two = {"minReplicas": 2, "maxReplicas": 2}
    installed, _ = small(folder, programs, values("act", ONE, two), hurry)
    cluster, most = installed.cluster, []

    def see():
        leaders = [pod.name for pod in installed.pods("router") if metrics(pod).get("penstock_router_scale_leader") == 1]
        most.append(leaders if len(leaders) > 1 else [])
    stop = watch(installed, see)
    first = await_leader(installed)
    await_replicas(installed, (1, 2), 30)
    first.node.cut(first.addresses[0], cluster.network.plans[0].api)
    cluster.scale("penstock-decode", 3)  # above the limit: whoever decides takes it back
    second = await_leader(installed, first.name, LEASE_S + 10)
    await_replicas(installed, (1, 2), 30)
    first.node.mend()
    eventually(lambda: said(first, "scale_api_recovered"), 10, "the first leader's recovery")
    check(said(first, "scale_lease_lost"), "the router that was cut off did not say that it stopped")
    cluster.kill(second)
    cluster.scale("penstock-decode", 3)
    third = await_leader(installed, second.name, LEASE_S + 10)
    await_replicas(installed, (1, 2), 30)
    third.delete()
    fourth = await_leader(installed, third.name, 40)
    stop()
    check(said(third, "scale_lease_released"), "a router that ends gives the Lease back")
    check(not any(most), f"two leaders at once: {[names for names in most if names][:3]}")
    had = terms(installed)
    check([term.pod for term in had] == [pod.name for pod in (first, second, third, fourth)], had)
    check(all(term.changes for term in had[:3]), f"a leader that changed nothing: {had}")
    waits = [after.begun - before.renewed for before, after in zip(had, had[1:])]
    check(all(LEASE_S <= wait <= LEASE_S + 3 * RETRY_S for wait in waits[:2]), f"the Lease was taken {waits} s after its last renewal")
    return {"leaders": len(had), "taken_s": max(waits[:2]), "given_s": waits[2], **ended_well(installed)}


def grows(folder, programs, hurry=False):
    """A load that needs more workers, and then a small one: 1 + 1 workers become 3 + 2, and 1 + 1 again."""
    installed, _ = small(folder, programs, values("act", {"minReplicas": 1, "maxReplicas": 3}, {"minReplicas": 1, "maxReplicas": 2}), hurry)
    check(replicas(installed) == (1, 1), "without a load there is one worker of each role")
    await_leader(installed)
    few = installed.load("few", **QUIET)
    begun = time.monotonic()
    many = installed.load("many", **BUSY)
    await_replicas(installed, (3, 2), 60)
    up_s = time.monotonic() - begun
    await_answers(many, 20)
    many.stop()
    begun = time.monotonic()
    await_replicas(installed, (1, 1), 120)
    down_s = time.monotonic() - begun
    await_answers(few, 2)
    few.stop()
    terms(installed)
    figures = [answered(load) for load in (many, few)]
    return {**{key: sum(row[key] for row in figures) for key in figures[0]}, "up_s": up_s, "down_s": down_s, **ended_well(installed)}


def proposes(folder, programs, hurry=False):
    """A dry run under the same load: all routers say what they would do, and nothing changes."""
    bounds = {"minReplicas": 1, "maxReplicas": 3}
    installed, _ = small(folder, programs, values("propose", bounds, {**bounds, "maxReplicas": 2}), hurry)
    pods, versions = {pod.name for pod in installed.pods()}, generations(installed)
    load = installed.load(**BUSY)
    begun = time.monotonic()
    await_proposal(installed, (3, 2), 60)
    up_s = time.monotonic() - begun
    load.stop()
    begun = time.monotonic()
    await_proposal(installed, (1, 1), 60)
    down_s = time.monotonic() - begun
    for pod in installed.pods("router"):
        check(said(pod, "scale_decided") and all(line["mode"] == "propose" for line in said(pod, "scale_decided")), pod.log_text()[-2000:])
        check(not pod.spec["automountServiceAccountToken"], "a router that only proposes has a token")
    check({pod.name for pod in installed.pods()} == pods and generations(installed) == versions, "something was changed")
    check(not installed.api.calls, f"calls of the API: {installed.api.calls[:3]}")
    return {**answered(load), "up_s": up_s, "down_s": down_s, **ended_well(installed)}


def generations(installed):
    return {item["metadata"]["name"]: item["metadata"]["generation"] for item in installed.cluster.of_kind("Deployment")}


def await_proposal(installed, wanted, patience_s):
    """Until every router wants so many workers."""
    def proposed(pod):
        found = metrics(pod)
        return tuple(found.get(f'penstock_router_scale_replicas{{role="{role}"}}') for role in ("prefill", "decode"))
    eventually(lambda: all(proposed(pod) == wanted for pod in installed.pods("router")), patience_s, f"the proposal of {wanted} workers")


def refused(folder, programs, hurry=False):
    """The API server refuses what the routers ask, first everything and then changes alone: they say so once, count it, and serve on; with
    all rights they begin to decide."""
    installed, chosen = small(folder, programs, values("act", ONE, {"minReplicas": 2, "maxReplicas": 2}), hurry, withheld={"RoleBinding"})
    load = installed.load(requests=8)
    routers = installed.pods("router")
    eventually(lambda: all(errors(pod, "lease") >= 4 for pod in routers), 30, "refused calls")
    for pod in routers:
        check_said_once(pod, "lease", 'cannot get resource "leases" in API group "coordination.k8s.io" in the namespace "penstock"')
        check(metrics(pod)["penstock_router_scale_leader"] == 0, f"{pod.name} decides without the Lease")
    check(replicas(installed) == (1, 1) and holder(installed) == "", "something was changed without rights")
    installed.withheld.clear()
    items = installed.rendered(chosen, "install")
    role, = (item for item in items if item["kind"] == "Role" and item["metadata"]["name"] == LEASE)
    rules = [{**rule, "verbs": [verb for verb in rule["verbs"] if verb != "patch"]} for rule in role["rules"]]
    installed.cluster.apply([{**role, "rules": rules}, *(item for item in items if item["kind"] == "RoleBinding")])
    leads = await_leader(installed, patience_s=20)
    eventually(lambda: errors(leads, "write") >= 3, 30, "refused changes")
    check_said_once(leads, "write", 'cannot patch resource "deployments/scale" in API group "apps" in the namespace "penstock"')
    check(replicas(installed) == (1, 1), "something was changed without rights")
    begun = time.monotonic()
    installed.cluster.apply([role])
    await_replicas(installed, (1, 2), 30)
    recovered_s = time.monotonic() - begun
    eventually(lambda: len(said(leads, "scale_api_recovered")) == 2, 10, "the router's word that it may")
    await_answers(load, 5)
    load.stop()
    terms(installed)
    return {**answered(load), "recovered_s": recovered_s, **ended_well(installed)}


def errors(pod, step):
    return metrics(pod).get(f'penstock_router_scale_api_errors_total{{step="{step}"}}', 0)


def check_said_once(pod, step, why):
    lines = [line["error"] for line in said(pod, "scale_api_failed") if line["step"] == step]
    check(len(lines) == 1, f"{pod.name} has {len(lines)} lines about {errors(pod, step)} errors: {lines[:3]}")
    check("status 403" in lines[0] and why in lines[0], lines[0])
