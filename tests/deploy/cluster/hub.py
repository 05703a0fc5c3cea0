"""A hub of models outside the cluster: a folder of files, and Hugging Face's API with a token. Both have the bundled model."""

import http.server
import json
import socket
import ssl
import threading

from .image import ROOT
from .machine import run
from .network import MACHINE_LINK

MODEL = ROOT / "models/penstock-tiny"
HOSTS = ("models.example.com", "hub.example.com", "huggingface.co")
ADDRESSES = {4: "203.0.113.10", 6: "2001:db8::10"}
TOKEN, COMMIT = "right", "c0ffee"


def answer(path, token):
    """Status and body."""
    files = {file.name: file for file in MODEL.iterdir()}
    if path.startswith("/tiny/"):
        name = path.removeprefix("/tiny/")
        return (200, files[name].read_bytes()) if name in files else (404, b"")
    if token != f"Bearer {TOKEN}":
        return 401, b""
    if path.startswith("/api/models/") and path.endswith("/revision/main"):
        return 200, json.dumps({"sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}).encode()
    name = path.rsplit("/", 1)[1]
    return (200, files[name].read_bytes()) if f"/resolve/{COMMIT}/" in path and name in files else (404, b"")


class Hub:
    """`asked` is a list of the paths that were answered, with their status."""

    def __init__(self, cluster, authority):
        asked = self.asked = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                status, body = answer(self.path, self.headers.get("Authorization"))
                asked.append((self.path, status))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        pair, folder = authority.issue([f"DNS:{host}" for host in HOSTS]), cluster.folder / "hub"
        folder.mkdir()
        for name, text in pair.items():
            (folder / name).write_text(text)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        self.servers = []
        for plan in cluster.network.plans:
            address = ADDRESSES[plan.family]
            run("ip", "addr", "add", f"{address}/{plan.pod_bits}", "dev", MACHINE_LINK, *(["nodad"] if plan.family == 6 else []))
            for host in HOSTS:
                cluster.services.outside.setdefault(host, []).append(address)
            server = server_of(plan.family)((address, 443), Handler)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            self.servers.append(server)

    def stop(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()


def server_of(family):
    """A class of HTTP servers for addresses of an IP version."""
    return type("Server", (http.server.ThreadingHTTPServer,), {"address_family": socket.AF_INET6 if family == 6 else socket.AF_INET})
