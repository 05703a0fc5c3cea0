"""Probes, asked as the kubelet asks them: from outside the pod, with a new connection each time, and exec within the container."""

import http.client
import socket
import ssl
import threading

import grpc

from .network import url_host

SERVING = b"\x08\x01"  # HealthCheckResponse{status: SERVING}


def port_number(port, container):
    return port if isinstance(port, int) else next(p["containerPort"] for p in container["ports"] if p["name"] == port)


def ask_http(address, action, container, timeout_s):
    port = port_number(action["port"], container)
    host = action.get("host", address)
    if action.get("scheme", "HTTP").upper() == "HTTPS":
        connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=ssl._create_unverified_context())
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", action.get("path", "/"), headers={"User-Agent": "kube-probe/1.37", "Accept": "*/*"})
        answer = connection.getresponse()
        text = answer.read(10240).decode(errors="replace")
        return 200 <= answer.status < 400, f"{answer.status} {text}"
    finally:
        connection.close()


def ask_tcp(address, action, container, timeout_s):
    socket.create_connection((address, port_number(action["port"], container)), timeout_s).close()
    return True, "connected"


def ask_grpc(address, action, container, timeout_s):
    service = action.get("service", "").encode()
    request = b"\x0a" + bytes([len(service)]) + service if service else b""
    target = f"{'ipv6' if ':' in address else 'ipv4'}:{url_host(address)}:{action['port']}"
    options = [("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(target, options) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=bytes, response_deserializer=bytes)
        answer = check(request, timeout=timeout_s, metadata=[("user-agent", "kube-probe/1.37")])
    return answer == SERVING, f"status {answer.hex()}"


ASK = {"httpGet": ask_http, "tcpSocket": ask_tcp, "grpc": ask_grpc}


def ask(probe, address, container, running):
    """Whether it succeeded, and what came."""
    timeout_s = probe.get("timeoutSeconds", 1)
    try:
        if "exec" in probe:
            code, output = running.exec(probe["exec"]["command"], timeout_s)
            return code == 0, output
        kind = next(name for name in ASK if name in probe)
        return ASK[kind](address, probe[kind], container, timeout_s)
    except grpc.RpcError as error:
        return False, f"{error.code().name}: {error.details()}"
    except (OSError, http.client.HTTPException) as error:
        return False, repr(error)


class Prober(threading.Thread):
    """Asks one probe of one run of a container until `ended` is set. `changed` is called with True after successThreshold
    successes in a row, and with False after failureThreshold failures; the probe is asked no more if it returns true."""

    def __init__(self, probe, address, container, running, ended, changed):
        super().__init__(daemon=True)
        self.probe, self.address, self.container, self.running = probe, address, container, running
        self.ended, self.changed = ended, changed

    def run(self):
        row, last = 0, None
        if self.ended.wait(self.probe.get("initialDelaySeconds", 0)):
            return
        while True:
            good, why = ask(self.probe, self.address, self.container, self.running)
            if self.ended.is_set():
                return
            row, last = (row + 1 if good is last else 1), good
            if row >= self.probe.get("successThreshold" if good else "failureThreshold", 1 if good else 3) and self.changed(good, why):
                return
            if self.ended.wait(self.probe.get("periodSeconds", 10)):
                return
