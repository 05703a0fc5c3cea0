"""Upgrades Deployments one after the other: resumes one, waits until all its pods are of the new version and ready, and
goes on to the next. Ends with an error where one fails, so that those behind it keep their old version.

The Job of `helm upgrade` runs it in the cluster (templates/upgrade.yaml). It needs only Python."""

import argparse
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class Api:
    def __init__(self, server, token_file, ca_file, namespace):
        self.base = f"{server}/apis/apps/v1/namespaces/{namespace}/deployments/"
        self.token_file = token_file
        self.context = ssl.create_default_context(cafile=ca_file) if server.startswith("https") else None

    def call(self, name, patch=None):
        with open(self.token_file, encoding="utf-8") as file:  # The kubelet renews it.
            headers = {"Authorization": f"Bearer {file.read().strip()}", "Accept": "application/json"}
        data = None
        if patch is not None:
            data, headers["Content-Type"] = json.dumps(patch).encode(), "application/merge-patch+json"
        request = urllib.request.Request(self.base + name, data, headers, method="PATCH" if data else "GET")
        with urllib.request.urlopen(request, timeout=30, context=self.context) as answer:
            return json.load(answer)


def state(deployment):
    """"done", "waiting" or "failed", and what to say about it."""
    spec, status = deployment["spec"], deployment.get("status", {})
    wanted = spec.get("replicas", 1)
    if status.get("observedGeneration", 0) < deployment["metadata"]["generation"]:
        return "waiting", "the cluster has not seen the change yet"
    updated, total, available = (status.get(key, 0) for key in ("updatedReplicas", "replicas", "availableReplicas"))
    if updated >= wanted and total == updated and available >= wanted:
        return "done", f"{available} of {wanted} pods are new and ready"
    for condition in status.get("conditions", []):
        if condition["type"] == "Progressing" and condition.get("reason") == "ProgressDeadlineExceeded":
            return "failed", f"no progress: {updated} of {wanted} pods are new, {available} ready; {condition.get('message', '')}"
    return "waiting", f"{updated} of {wanted} pods are new, {available} ready, {total - updated} old"


def roll(api, name, pause_s):
    """Whether the Deployment now has only new pods."""
    said, misses = "", 0
    while True:
        try:
            deployment = api.call(name)
            if deployment["spec"].get("paused"):
                deployment = api.call(name, {"spec": {"paused": False}})
                print(f"{name}: resumed", flush=True)
            misses = 0
        except urllib.error.HTTPError as error:
            if error.code in (401, 403, 404):
                print(f"{name}: {error}", flush=True)
                return False
            misses += 1
        except (OSError, ValueError) as error:  # The API server restarts, or is not reachable for a moment.
            misses += 1
            print(f"{name}: {error}", flush=True)
        if misses == 0:
            what, why = state(deployment)
            if why != said:
                print(f"{name}: {why}", flush=True)
            said = why
            if what != "waiting":
                return what == "done"
        elif misses > 60:
            print(f"{name}: the API server does not answer", flush=True)
            return False
        time.sleep(pause_s)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--server", help="URL of the API server; empty: that of the cluster around")
    parser.add_argument("--account", default=ACCOUNT, help="directory of the service account's token and ca.crt")
    parser.add_argument("--pause-s", type=float, default=2, help="seconds between two looks")
    parser.add_argument("deployments", nargs="+", help="names, in their order")
    options = parser.parse_args()
    server = options.server
    if not server:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    api = Api(server, f"{options.account}/token", f"{options.account}/ca.crt", options.namespace)
    for name in options.deployments:
        if not roll(api, name, options.pause_s):
            print(f"{name} failed: those behind it keep their version", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
