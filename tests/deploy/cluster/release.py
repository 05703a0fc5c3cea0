"""A release as Helm makes it: hooks before, objects, hooks after; a hook's Job runs to its end."""

import time

from .pod import Pod
from . import rollout

DEADLINE_S = 3600


class HookFailed(Exception):
    """A Job of a hook has failed; Helm then calls the release failed."""


def hooks_of(item):
    return item["metadata"].get("annotations", {}).get("helm.sh/hook", "").split(",")


def weight(item):
    return int(item["metadata"].get("annotations", {}).get("helm.sh/hook-weight", "0"))


def run_job(cluster, item):
    """Its pods one after the other, until one has succeeded. Gives the pod."""
    spec, name = item["spec"], item["metadata"]["name"]
    end = time.monotonic() + spec.get("activeDeadlineSeconds", DEADLINE_S)
    for number in range(spec.get("backoffLimit", 6) + 1):
        labels = spec["template"]["metadata"].get("labels", {})
        pod_spec = spec["template"]["spec"]
        with cluster.lock:
            node, why = rollout.place(pod_spec, labels, cluster.network.nodes, cluster.pods)
            if node is None:
                raise HookFailed(f"no node for {name}: {why}")
            own = f"{name}-{time.time_ns() % 10**9}-{number}"
            pod = cluster.start_pod(Pod(cluster, own, item["metadata"]["namespace"], None, labels, pod_spec, node))
        while not pod.is_over() and time.monotonic() < end:
            time.sleep(0.05)
        over, log = pod.phase, pod.log_text() if pod.log(pod_spec["containers"][0]["name"]).exists() else str(pod.events)
        pod.delete()
        if over == "Succeeded":
            return log
        if time.monotonic() >= end:
            raise HookFailed(f"{name} took longer than {spec.get('activeDeadlineSeconds')} s: {log}")
    raise HookFailed(f"{name} failed: {log}")


def run_hooks(cluster, items, event):
    """The logs of the Jobs of one event's hooks."""
    mine, logs = sorted((item for item in items if event in hooks_of(item)), key=weight), []
    for item in mine:
        cluster.apply([item])
        if item["kind"] == "Job":
            logs.append(run_job(cluster, cluster.find("Job", item["metadata"]["name"])))
    for item in mine:
        if "hook-succeeded" in item["metadata"]["annotations"].get("helm.sh/hook-delete-policy", ""):
            cluster.delete(item["kind"], item["metadata"]["name"])
    return logs


def apply(cluster, items, event):
    """`event` is install or upgrade; the logs of its Jobs."""
    logs = run_hooks(cluster, items, f"pre-{event}")
    cluster.apply([item for item in items if hooks_of(item) == [""]])
    return logs + run_hooks(cluster, items, f"post-{event}")
