"""The calls of Kubernetes' API that Jobs of the chart make: Deployments are read and patched, with the rights that Roles give."""

import http.server
import json
import re
import ssl
import threading

from .hub import server_of

PATH = re.compile(r"/apis/apps/v1/namespaces/([^/]+)/deployments/([^/]+)$")


def may(cluster, namespace, account, verb, name):
    """Whether a RoleBinding gives the account the verb for this Deployment."""
    for binding in cluster.of_kind("RoleBinding"):
        who = {(subject["kind"], subject["name"], subject["namespace"]) for subject in binding["subjects"]}
        role = cluster.find("Role", binding["roleRef"]["name"], namespace)
        if binding["metadata"]["namespace"] != namespace or ("ServiceAccount", account[1], account[0]) not in who or role is None:
            continue
        for rule in role["rules"]:
            if "apps" in rule["apiGroups"] and "deployments" in rule["resources"] and verb in rule["verbs"] and \
                    name in rule.get("resourceNames", [name]):
                return True
    return False


def answer(cluster, method, path, token, body):
    """Status and object."""
    found = PATH.match(path)
    account = cluster.tokens.get(token)
    if account is None:
        return 401, {"message": "no such token"}
    if not found:
        return 404, {"message": f"nothing at {path}"}
    namespace, name = found.groups()
    if not may(cluster, namespace, account, {"GET": "get", "PATCH": "patch"}[method], name):
        return 403, {"message": f"{account[1]} may not {method} deployment {name}"}
    with cluster.lock:
        item = cluster.find("Deployment", name, namespace)
        if item is None:
            return 404, {"message": f"there is no deployment {name}"}
        if method == "PATCH":
            patch = json.loads(body)
            if set(patch) != {"spec"}:
                return 422, {"message": "this server merges a spec and nothing else"}
            item = cluster.patch(name, patch["spec"])
        return 200, json.loads(json.dumps({key: value for key, value in item.items() if key != "progress"}))


class Api:
    """Serves on the addresses of the network's plans, with a certificate of `authority`."""

    def __init__(self, cluster, authority):
        calls = self.calls = []
        pair = authority.issue([f"IP:{plan.api}" for plan in cluster.network.plans])
        folder = cluster.folder / "api"
        folder.mkdir()
        for name, text in pair.items():
            (folder / name).write_text(text)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
                status, item = answer(cluster, self.command, self.path, token, body)
                calls.append((self.command, self.path, status))
                data = json.dumps(item).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_PATCH = do_GET

            def log_message(self, *_):
                pass

        self.servers = []
        for plan in cluster.network.plans:
            server = server_of(plan.family)((plan.api, 443), Handler)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.servers.append(server)

    def stop(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()
