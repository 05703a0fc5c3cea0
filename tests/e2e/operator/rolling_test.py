"""Every process of a cluster is restarted, one after the other, while clients ask: none of them loses a request, and
none gets another token than without."""

import json
import pathlib
import re
import signal
import unittest
import urllib.request

from load import Load, long_prompts, prompts
from operations import Cluster, Server, eventually

REQUESTS, CLIENTS = 24, 6
LONG_REQUESTS, LONG_CLIENTS = 6, 2  # keep prefill workers busy while answers are long
AFTER = 6  # answers that are awaited behind each restart


def report(router):
    with urllib.request.urlopen(f"http://{router.http()}/cluster", timeout=10) as answer:
        return json.load(answer)


class RollingRestart(unittest.TestCase):
    def setUp(self):
        # Ends of prompts that come again would stay on decode workers, and prefill workers had little to do.
        self.cluster = Cluster(decode_flags=["--local_prefill_max_tokens=0"])
        self.addCleanup(self.cluster.stop)
        folder = pathlib.Path(self.cluster.folder.name)
        workers = [f"--workers={worker.listen}" for worker in self.cluster.workers]
        self.routers = [Server(folder, f"router-{i}", ["--model_name=tiny", "--http_listen=127.0.0.1:0", *workers]) for i in range(2)]
        for router in self.routers:
            self.addCleanup(router.stop)
        for router in self.routers:
            router.await_ready()
            eventually(lambda: self.sees_all(router), what="a router that sees every worker")
            router.flags.append(f"--http_listen={router.http()}")  # a restart keeps the port

    def sees_all(self, router):
        return [worker["state"] for worker in report(router)["workers"]] == ["ready"] * 4

    def lives(self, router):
        return {worker["name"]: worker["life"] for worker in report(router)["workers"]}

    def busy(self, server):
        if server in self.routers:
            return report(server)["requests"]["open"] > 0
        return any(worker["name"] == server.name and worker["running"] > 0 for worker in report(self.routers[0])["workers"])

    def restart(self, server):
        eventually(lambda: self.busy(server), what=f"work for {server.name}")
        before = self.lives(self.routers[0]) if server not in self.routers else {}
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(60), 0, server.log.read_text())
        self.logs[server.name] = server.log.read_text()
        server.restart()
        server.await_ready()
        for router in self.routers:
            eventually(lambda: self.sees_all(router), what=f"{server.name} with {router.name}")
        if before:
            after = self.lives(self.routers[0])
            self.assertEqual({name for name in after if after[name] != before[name]}, {server.name})

    def test_no_request_is_lost_and_no_token_changes(self):
        self.logs = {}
        endpoints = [router.http() for router in self.routers]
        load = Load(endpoints, prompts(REQUESTS, seed=8), CLIENTS)
        long_load = Load(endpoints, long_prompts(LONG_REQUESTS, seed=9), LONG_CLIENTS, salted=True)
        try:
            for server in [*self.cluster.workers, *self.routers]:
                self.restart(server)
                done = load.done
                eventually(lambda: load.done >= done + AFTER or load.failed, what=f"answers after {server.name}")
                self.assertEqual(load.failed + long_load.failed, [], f"after {server.name}: {self.logs[server.name]}")
            eventually(lambda: long_load.done > LONG_REQUESTS or long_load.failed, what="answers to long prompts")
        finally:
            load.stop()
            long_load.stop()
        self.assertGreater(long_load.done, LONG_REQUESTS)
        self.assertEqual(load.failed + long_load.failed, [])
        self.assertGreater(load.done, AFTER * 6)
        moved = sum(int(count) for name in ("decode-0", "decode-1")
                    for count in re.findall(r"event=draining state=done .* moved=(\d+)", self.logs[name]))
        self.assertGreater(moved, 0, "running answers leave a decode worker that drains")


if __name__ == "__main__":
    unittest.main()
