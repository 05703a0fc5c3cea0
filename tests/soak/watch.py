"""Looks at every process once a second: its memory and descriptors, and whether it has ended by itself."""

import collections
import threading
import time

EVERY_S = 1


class Watch:
    def __init__(self, cluster, tally):
        self.file = open(cluster.folder / "watched.csv", "w")
        self.cluster, self.tally, self.stopping = cluster, tally, threading.Event()
        self.memory, self.descriptors = collections.defaultdict(list), collections.defaultdict(list)  # (name, life) to (age, value)
        self.started, self.of_files = {}, {}
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stopping.wait(EVERY_S):
            for server in self.cluster.servers():
                self.look(server)

    def look(self, server):
        process, life = server.process, (server.name, server.lives)
        if server.leaving:
            return
        if process.poll() is not None:
            if process is server.process and not server.leaving:
                self.crashed(server, process.returncode)
            return
        try:
            (memory, of_files), descriptors = server.memory_kib(), server.descriptors()
        except (OSError, KeyError):
            return  # it has just ended
        age = time.monotonic() - self.started.setdefault(life, time.monotonic())
        self.file.write(f"{time.time():.0f},{server.name},{server.lives},{age:.0f},{memory},{of_files},{descriptors}\n")
        # The pages of files as they were first: they count, but they do not grow.
        self.memory[life].append((age, memory - of_files + self.of_files.setdefault(life, of_files)))
        self.descriptors[life].append((age, descriptors))

    def crashed(self, server, code):
        server.leaving = True
        lines = server.log.read_text(errors="replace").strip().splitlines()[-3:]
        self.tally.problem(f"{server.name} (life {server.lives}) ended by itself with {code}: {' | '.join(lines)[-600:]}")
        try:
            server.start_again()
        except AssertionError as error:
            self.tally.problem(f"{server.name} did not start again: {error}")

    def stop(self):
        self.stopping.set()
        self.thread.join()
        self.file.close()
