"""A headless Chromium, driven by the W3C WebDriver protocol, which is JSON over HTTP."""

import base64
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request

from operations import eventually

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = None if CHROMIUM and DRIVER else "chromium and chromium-driver are not installed (scripts/setup installs them)"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's name for a reference
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Shift": "\ue008", "Space": " "}


class Browser:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="penstock-browser-")
        self.log = pathlib.Path(self.folder.name) / "driver.log"
        self.session = self.driver = None
        try:
            self.base = f"http://127.0.0.1:{self.start_driver()}"
            flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     "--no-first-run", "--disable-extensions", "--disable-component-update", "--disable-background-networking",
                     f"--user-data-dir={self.folder.name}/profile"]
            started = self.ask("POST", "/session", {"capabilities": {"alwaysMatch": {
                "browserName": "chrome", "goog:chromeOptions": {"binary": CHROMIUM, "args": flags},
                "goog:loggingPrefs": {"browser": "ALL"}}}})
            self.session = f"/session/{started['sessionId']}"
        except BaseException:
            self.stop()
            raise

    def start_driver(self):
        """Its port. It takes a free one over IPv4 and ends when that is not free over IPv6, so it may need several tries."""
        for _ in range(10):
            with open(self.log, "w") as log:
                self.driver = subprocess.Popen([DRIVER, "--port=0"], stdout=log, stderr=log)
            started = eventually(lambda: re.search(r"started successfully on port (\d+)", self.log.read_text())
                                 or self.driver.poll() is not None, what="chromedriver")
            if started is not True:
                return started.group(1)
        raise AssertionError(f"chromedriver does not start: {self.log.read_text()}")

    def stop(self):
        try:
            if self.session:
                self.ask("DELETE", self.session)
        finally:
            if self.driver:
                self.driver.terminate()
                self.driver.wait()
            self.folder.cleanup()

    def ask(self, method, path, body=None):
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.read().decode()[:600]}") from error

    def open(self, url):
        self.ask("POST", self.session + "/url", {"url": url})

    def run(self, script, *arguments):
        """The value that `script`, a function's body, returns in the page."""
        return self.ask("POST", self.session + "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector):
        return self.run("const e = document.querySelector(arguments[0]); return e ? e.textContent : null", selector)

    def type(self, *keys):
        """Keys as they are pressed, one after the other, wherever the focus is; a pair is held together."""
        actions = []
        for key in keys:
            held = [KEYS.get(k, k) for k in (key if isinstance(key, tuple) else (key,))]
            actions += [{"type": "keyDown", "value": k} for k in held] + [{"type": "keyUp", "value": k} for k in reversed(held)]
        self.ask("POST", self.session + "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def console(self):
        """Messages that were logged since the last call: [(level, message)]. Not those of the browser about network
        interfaces, which other tests make and remove at the same time: it then repeats its requests."""
        logged = self.ask("POST", self.session + "/se/log", {"type": "browser"})
        return [(entry["level"], entry["message"]) for entry in logged if "net::ERR_NETWORK_CHANGED" not in entry["message"]]

    def command(self, name, **parameters):
        """Sends a command of Chromium's DevTools protocol."""
        return self.ask("POST", self.session + "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def prefer(self, **features):
        """prefer(color_scheme="dark", reduced_motion="reduce")"""
        self.command("Emulation.setEmulatedMedia", features=[
            {"name": f"prefers-{name.replace('_', '-')}", "value": value} for name, value in features.items()])

    def resize(self, width, height):
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def screenshot(self, path, whole=True):
        picture = self.command("Page.captureScreenshot", captureBeyondViewport=whole)
        pathlib.Path(path).write_bytes(base64.b64decode(picture["data"]))
