"""One container: a process in namespaces of its own, by crun."""

import json
import os
import signal
import subprocess
import tempfile
import time

CRUN = ("crun", "--cgroup-manager=disabled", "--root=/run/crun")
START_S = 30


class Container:
    """Starts at once. The process is the first of its PID namespace, as in Kubernetes."""

    def __init__(self, name, config, folder, log):
        self.name, self.log, self.folder, self.process = name, log, folder, config["process"]
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        pid_file = folder / "pid"
        with open(log, "ab") as file:
            self.crun = subprocess.Popen([*CRUN, "run", f"--bundle={folder}", f"--pid-file={pid_file}", name], stdin=subprocess.DEVNULL, stdout=file,
                                         stderr=file)
        end = time.monotonic() + START_S
        while not pid_file.exists() or not pid_file.read_text():
            if self.crun.poll() is not None or time.monotonic() > end:
                break
            time.sleep(0.005)
        self.pid = int(pid_file.read_text()) if pid_file.exists() else None
        self.started = time.monotonic()

    def exit_code(self):
        """None while it runs."""
        return self.crun.poll()

    def wait(self, timeout_s=None):
        """The exit code, or None after the time."""
        try:
            return self.crun.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def signal(self, number):
        """Sends it to the first process. It may have ended already."""
        if self.crun.poll() is None and self.pid:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def kill(self):
        self.signal(signal.SIGKILL)
        self.crun.wait()

    def exec(self, words, timeout_s):
        """The exit code and the output of another process in the container, with the user and the rights of the first; None after
        the time."""
        with tempfile.NamedTemporaryFile("w", dir=self.folder, suffix=".json") as file:
            file.write(json.dumps({**self.process, "args": list(words)}))
            file.flush()
            process = subprocess.Popen([*CRUN, "exec", f"--process={file.name}", self.name], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT)
            try:
                output = process.communicate(timeout=timeout_s)[0]
                return process.returncode, output.decode(errors="replace")
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                return None, f"no answer within {timeout_s} s"
