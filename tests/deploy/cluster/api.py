"""The API server: HTTPS with the tokens of service accounts, whose rights are those of the rendered Roles (rights.py), for the objects of
resources.py. It keeps a record of all calls."""

import copy
import dataclasses
import http.server
import json
import ssl
import threading
import time

from . import rights
from .hub import server_of
from .resources import RESOURCES, Refused


@dataclasses.dataclass(frozen=True)
class Call:
    """An answered call. `pod` is the name of the pod that made it, `item` the object that it got."""
    time: float
    pod: str
    ask: rights.Ask
    status: int
    item: dict


def carry_out(cluster, ask, path, token, body, content_type):
    """Status and object; Refused."""
    account = cluster.tokens.get(token)
    if account is None:
        raise Refused(401, "Unauthorized")
    if ask is None:
        raise Refused(404, f"there is nothing at {path}")
    if not rights.may(account, ask, cluster.of_kind("RoleBinding"), cluster.of_kind("Role")):
        raise Refused(403, rights.refusal(account, ask))
    handler = RESOURCES.get((ask.group, ask.resource))
    if handler is None:
        raise Refused(404, "the server could not find the requested resource")
    return handler(cluster, ask, body, content_type)


class Api:
    """Serves on the addresses of the network's plans, with a certificate of `authority`. `calls` are in the order in which they were
    carried out, one at a time."""

    def __init__(self, cluster, authority):
        self.cluster, self.calls = cluster, []
        pair = authority.issue([f"IP:{plan.api}" for plan in cluster.network.plans])
        folder = cluster.folder / "api"
        folder.mkdir()
        for name, text in pair.items():
            (folder / name).write_text(text)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        handler = type("Handler", (Handler,), {"api": self})
        self.servers = []
        for plan in cluster.network.plans:
            server = server_of(plan.family)((plan.api, 443), handler)
            # A caller that is silent delays its own thread alone.
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.servers.append(server)

    def answer(self, method, path, token, body, content_type, address):
        """Status and object."""
        ask = rights.ask_of(method, path)
        with self.cluster.lock:
            try:
                status, item = carry_out(self.cluster, ask, path, token, body, content_type)
            except Refused as refused:
                status, item = refused.code, refused.status()
            item = copy.deepcopy(item)
            self.calls.append(Call(time.time(), self.pod_at(address), ask, status, item))
        return status, item

    def pod_at(self, address):
        return next((pod.name for pod in self.cluster.pods if address in pod.addresses and not pod.host_network), "")

    def stop(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api = None

    def handle(self):
        try:
            super().handle()
        except OSError:  # the caller has gone
            self.close_connection = True

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        status, item = self.api.answer(self.command, self.path, token, body, self.headers.get("Content-Type"), self.client_address[0])
        data = json.dumps(item).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_PATCH = do_PUT = do_POST = do_DELETE = do_GET

    def log_message(self, *_):
        pass
