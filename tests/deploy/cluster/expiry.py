"""What certificates do to a cluster: renewed under load, expired, renewed again."""

import time

from .installed import check, eventually
from .scenarios import answered, await_answers, small

# Liveness decides within 4 s, so that a probe that needs a valid certificate would restart a worker here.
SOON = {"probes": {"liveness": {"periodSeconds": 2, "timeoutSeconds": 2, "failureThreshold": 2}}}
CERTIFIED = {"tls": {"cluster": "inside", "clusterRouter": "router-inside", "public": "outside", "http": True}, "prefill": SOON, "decode": SOON}
EXPIRY = "penstock_tls_certificate_expiry_timestamp_seconds"


def stamp(seconds):
    """A time as openssl reads it."""
    return time.strftime("%Y%m%d%H%M%SZ", time.gmtime(seconds))


def certificates(folder, programs, hurry=False, lived_s=12, expired_s=15):
    """Certificates are renewed under load; then nobody renews them and they expire; then they are renewed."""
    installed, _ = small(folder, programs, CERTIFIED, hurry)
    load = installed.load(requests=8)
    await_answers(load, 5)
    installed.renew_certificates()
    await_reread(installed, 1)
    await_answers(load, 20)
    client, monitor = installed.bystander("client"), installed.bystander("prometheus", "monitoring")
    ends = int(time.time() + lived_s)
    installed.renew_certificates(starts=stamp(ends - 3600), ends=stamp(ends))
    await_reread(installed, 2)
    await_answers(load, 5)
    load.stop()
    figures = answered(load)
    check(time.time() < ends, "it took too long until the certificates were in use")
    for pod in installed.pods():
        said = set(expiries(installed, monitor, pod))
        check(said == {float(ends)}, f"{pod.name} says that its certificates end at {said}, not at {ends}")
    time.sleep(max(0, ends + 1 - time.time()))
    check_expired(installed, client)
    time.sleep(max(0, ends + expired_s - time.time()))
    check(not sum(pod.restarts for pod in installed.pods()), f"pods were restarted:\n{installed.describe()}")
    renewed = time.monotonic()
    installed.renew_certificates()
    installed.await_ready(330)
    installed.await_rules()
    eventually(lambda: succeeds(installed, client), 60, "an answer after the renewal")
    recovered_s = time.monotonic() - renewed
    after = installed.load("load-after")
    await_answers(after, 10)
    after.stop()
    answered(after)
    return {**figures, "recovered_s": recovered_s}


def await_reread(installed, times):
    eventually(lambda: all(pod.log_text().count("certificates_reread") >= times for pod in installed.pods()), 30, "certificates that are in use")


def expiries(installed, monitor, pod):
    """The metric's values that are not 0, as Prometheus scrapes them."""
    port = next(port["containerPort"] for port in pod.spec["containers"][0]["ports"] if port["name"] == "metrics")
    program = f"import urllib.request as r; print(r.urlopen('http://{pod.addresses[0]}:{port}/metrics', timeout=5).read().decode())"
    code, text = installed.run_in(monitor, "python3", "-c", program)
    check(code == 0, text)
    return [float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(EXPIRY + "{") and not line.endswith(" 0")]


def fetch(installed, client, scheme):
    """What a client of the routers' HTTP port meets: exit code and text."""
    context = "context=ssl.create_default_context(cafile='/ca/ca.crt')" if scheme == "https" else ""
    program = f"import ssl, urllib.request as r; print(r.urlopen('{scheme}://penstock:8000/v1/models', timeout=5, {context}).read().decode())"
    return installed.run_in(client, "python3", "-c", program)


def succeeds(installed, client):
    try:
        installed.generate(client)
    except AssertionError:
        return False
    return fetch(installed, client, "https")[0] == 0


def check_expired(installed, client):
    """Errors that name the certificate, on both public ports; and no way around TLS."""
    code, text = fetch(installed, client, "https")
    check(code != 0 and "certificate has expired" in text, f"HTTPS: {text[-300:]}")
    code, text = fetch(installed, client, "http")
    check(code != 0, f"plain HTTP was answered: {text}")
    try:
        installed.generate(client)
        check(False, "gRPC was answered")
    except AssertionError as error:
        check("certificate" in str(error).lower() or "handshake" in str(error).lower(), f"gRPC: {error}")
    for pod in installed.pods("decode"):
        code, text = installed.run_in(pod, "/usr/bin/penstock", "health")
        check(code != 0, f"{pod.name} was asked with an expired certificate and answered: {text}")
