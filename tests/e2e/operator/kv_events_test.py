"""KV events, read by ZeroMQ's own library and decoded by the classes that vLLM publishes: an index that is built from them
equals what the workers report, whatever is evicted, restarted, missed or said by strangers."""

import itertools
import json
import os
import pathlib
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

from operations import BIN, MODEL, ROOT, Cluster, events_of, eventually, free_port, samples, scrape

VENV = BIN.parent / "openai-venv"


def run_with_clients():
    """Runs this file again with a Python that has the clients' packages."""
    made = subprocess.run([ROOT / "tests/e2e/python/venv", VENV], text=True, capture_output=True, check=False)
    if made.returncode != 0:
        print(f"the clients cannot be installed here: {made.stderr}", file=sys.stderr)
        sys.exit(77)
    os.execv(VENV / "bin/python", [VENV / "bin/python", "-B", *sys.argv])


if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
    run_with_clients()

import msgspec  # noqa: E402
import zmq  # noqa: E402

import strangers  # noqa: E402
from kv_events import ArrayBatch, EarlyBatch, MapBatch, Subscriber  # noqa: E402
from prompts import tokens  # noqa: E402

BLOCK = 16
LISTEN = "--kv_events_listen=127.0.0.1:0"


def cached(worker, tier="device"):
    """The number of blocks that the worker says it has cached."""
    return samples(scrape(worker))[f'penstock_kv_blocks{{state="cached",tier="{tier}"}}']


class KvEvents(unittest.TestCase):
    def start(self, flags=(), **more):
        self.cluster = Cluster(1, 1, [LISTEN, *flags], decode_flags=["--local_prefill_max_tokens=0", "--kv_events_encoding=map"], **more)
        self.addCleanup(self.cluster.stop)
        self.context = zmq.Context()
        self.addCleanup(self.context.destroy, linger=0)
        self.prefill, self.decode = (self.cluster.worker(name) for name in ("prefill-0", "decode-0"))

    def subscribe(self, worker, batch=None, **more):
        """Returns when the worker knows of it, so that it misses nothing that comes from then on."""
        def subscribers():
            return samples(scrape(worker))["penstock_kv_event_subscribers"]

        before = subscribers()
        subscriber = Subscriber(self.context, events_of(worker), batch or (ArrayBatch if worker is self.prefill else MapBatch), **more)
        self.addCleanup(subscriber.close)
        eventually(lambda: subscribers() > before, what=f"a subscriber of {worker.name}")
        return subscriber

    def ask(self, prompt, **more):
        body = json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": 8, "ignore_eos": True, **more}).encode()
        url = f"http://{self.cluster.http()}/v1/completions"
        with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"}), timeout=60) as answer:
            return json.load(answer)

    def ask_when_served(self, prompt):
        """The answer, or None while no worker is ready."""
        try:
            return self.ask(prompt)
        except urllib.error.HTTPError as error:
            self.assertEqual(error.code, 503)
            return None

    def assert_equals_the_worker(self, subscriber, worker, prompt=()):
        """Waits until both have the prompt's full blocks, too: a worker frees a prompt after the answer's end."""
        end = len(prompt) // BLOCK * BLOCK

        def equal():
            subscriber.follow(50)
            index = subscriber.index
            return len(index.blocks()) == cached(worker) and (end == 0 or tuple(prompt[:end]) in index.prefixes())
        try:
            eventually(equal)
        except AssertionError:
            self.fail(f"the index has {len(subscriber.index.blocks())} blocks, {worker.name} has {cached(worker)}")
        self.assertEqual(subscriber.index.problems, [])

    def test_an_index_equals_the_workers(self):
        self.start()
        workers = [(self.prefill, self.subscribe(self.prefill)), (self.decode, self.subscribe(self.decode))]
        shared = tokens("shared", 100)
        prompts = [shared + tokens(f"own {i}", 20 + 9 * i) for i in range(6)] + [tokens("short", 10)]
        for prompt in prompts:
            self.ask(prompt)
        for worker, subscriber in workers:
            subscriber.catch_up()
            for prompt in prompts:
                self.assert_equals_the_worker(subscriber, worker, prompt)
            self.assertEqual(subscriber.index.clears, 1)
            wanted = {tuple(prompt[:end]) for prompt in prompts for end in range(BLOCK, len(prompt) + 1, BLOCK)}
            self.assertLessEqual(wanted, subscriber.index.prefixes(), worker.name)
        # The prefill worker has prompts only, the decode worker their answers, too.
        self.assertEqual(workers[0][1].index.prefixes(), wanted)
        self.ask(shared + tokens("live", 50))
        for worker, subscriber in workers:
            self.assert_equals_the_worker(subscriber, worker, shared + tokens("live", 50))
            self.assertEqual(subscriber.topics, {f"kv@{worker.name}@{MODEL.name}"})

    def test_what_is_evicted_is_removed(self):
        self.start(["--kv_memory=16MiB", "--dram_memory=8MiB"])
        workers = [(self.prefill, self.subscribe(self.prefill)), (self.decode, self.subscribe(self.decode))]
        for _, subscriber in workers:
            subscriber.catch_up()
        number = 0

        def evicted():
            nonlocal number
            for _ in range(4):
                number += 1
                self.ask(tokens(f"evicted {number}", 400))
            for _, subscriber in workers:
                subscriber.follow(0)
            return all(samples(scrape(worker))['penstock_kv_events_total{type="removed"}'] > 5 for worker, _ in workers)
        eventually(evicted, what="evictions")
        for worker, subscriber in workers:
            self.assert_equals_the_worker(subscriber, worker)
            def in_host_memory():
                subscriber.follow(50)
                return subscriber.index.blocks("CPU")
            eventually(in_host_memory, what="blocks in host memory")
            # Each block is told of in the fastest tier that has it.
            def below():
                subscriber.follow(50)
                return len(subscriber.index.blocks("CPU")) <= cached(worker, "dram")
            eventually(below, what="as many blocks in host memory as the worker has there")
            self.assertTrue(all(len(media) == 1 for media in subscriber.index.media.values()))
            # Those in host memory are known with their tokens.
            self.assertEqual(len(subscriber.index.prefixes("CPU")), len(subscriber.index.blocks("CPU")))
        self.ask(tokens(f"evicted {number - 6}", 400))  # restored from host memory, perhaps
        for worker, subscriber in workers:
            self.assert_equals_the_worker(subscriber, worker)

    def test_who_missed_batches_gets_them_again(self):
        self.start()
        for i in range(5):
            self.ask(tokens(f"before {i}", 64))
        eventually(lambda: cached(self.prefill) >= 20)
        early, late = self.subscribe(self.prefill), self.subscribe(self.prefill)
        early.catch_up()
        self.ask(tokens("after", 64))
        self.assert_equals_the_worker(early, self.prefill, tokens("after", 64))
        self.assert_equals_the_worker(late, self.prefill, tokens("after", 64))  # its first batch has a number that makes it ask
        self.assertGreater(late.replayed, 1)
        self.assertEqual(early.index.media, late.index.media)
        self.assertEqual([number for number, _ in early.replay(early.next - 2)], [early.next - 2, early.next - 1])
        self.assertEqual(early.replay(early.next), [])
        with self.context.socket(zmq.REQ) as socket:  # which takes one answer only
            socket.connect(f"tcp://{events_of(self.prefill)}")
            socket.send((early.next - 1).to_bytes(8, "big"))
            self.assertTrue(socket.poll(30_000))
            number, payload = socket.recv_multipart()
            self.assertEqual(int.from_bytes(number, "big"), early.next - 1)
            msgspec.msgpack.decode(payload, type=ArrayBatch)
        for _, payload in early.replay(0):  # by those who know fewer fields
            msgspec.msgpack.decode(payload, type=EarlyBatch)

    def test_a_worker_that_starts_again_counts_from_zero(self):
        self.start()
        port = free_port()
        worker = self.prefill
        worker.stop()
        worker.flags = [flag for flag in worker.flags if flag != LISTEN] + [f"--kv_events_listen=127.0.0.1:{port}", "--kv_events_topic=mine"]
        worker.restart()
        worker.await_ready()
        subscriber = self.subscribe(worker, topic="mine")
        eventually(lambda: self.ask_when_served(tokens("one", 64)), what="an answer after the restart")
        subscriber.catch_up()
        self.assert_equals_the_worker(subscriber, worker, tokens("one", 64))
        worker.stop()
        worker.restart()
        worker.await_ready()
        again = eventually(lambda: subscriber.replay(0), what="the first batch")
        self.assertEqual([number for number, _ in again], [0])
        events = subscriber.decoder.decode(again[0][1]).events
        self.assertEqual([type(event).__name__ for event in events], ["AllBlocksCleared"])
        # The old socket connects again, and hears the new numbers.
        asked = itertools.count()
        def heard():
            self.ask_when_served(tokens(f"two {next(asked)}", 64))
            return subscriber.live.poll(100)
        eventually(heard, what="a batch of the new process")
        topic, number, payload = subscriber.live.recv_multipart()
        self.assertEqual(topic, b"mine")
        self.assertEqual(dict(subscriber.replay(0))[int.from_bytes(number, "big")], payload)

    def test_salted_prompts_are_told_by_hash_alone(self):
        self.start()
        for worker in (self.prefill, self.decode):
            self.subscribe(worker).catch_up()
        self.ask(tokens("secret", 80), cache_salt="a tenant's secret")
        self.ask(tokens("public", 80))
        for worker in (self.prefill, self.decode):
            subscriber = self.subscribe(worker)
            subscriber.catch_up()
            eventually(lambda worker=worker: cached(worker) >= 10, what="the blocks of both prompts")
            self.assert_equals_the_worker(subscriber, worker, tokens("public", 80))
            known = [prefix for prefix in subscriber.index.prefixes() if len(prefix) <= 80]
            self.assertEqual(len(known), 5)
            self.assertTrue(all(list(prefix) == tokens("public", 80)[:len(prefix)] for prefix in known))

    def test_strangers_change_nothing(self):
        self.start()
        subscriber = self.subscribe(self.prefill)
        subscriber.catch_up()
        host, port = events_of(self.prefill).rsplit(":", 1)
        port = strangers.Port("prefill-0", host, int(port))
        descriptors = strangers.descriptors(self.prefill.process.pid)
        hello = strangers.zeromq_subscriber()
        for words in [*strangers.garbage(7), *strangers.openings(), hello[:64] + b"\x04\xff" * 3000, hello + b"\x02" + b"\xff" * 9,
                      hello + b"\x00\x05\x01none" * 5000, hello + b"\x04\x07\x04PINGxx" * 20_000]:
            strangers.say(port, words, patience_s=0.02)
        with subprocess.Popen([sys.executable, ROOT / "tests/e2e/operator/strangers.py", "silent", f"{host}:{port.port}"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True) as crowd:
            self.assertEqual(crowd.stdout.readline(), "begun\n")
            self.ask(tokens("meanwhile", 64))
            self.assert_equals_the_worker(subscriber, self.prefill, tokens("meanwhile", 64))
            late = self.subscribe(self.prefill)
            late.catch_up()
            self.assert_equals_the_worker(late, self.prefill, tokens("meanwhile", 64))
            crowd.communicate("")
        self.assertIsNone(self.prefill.process.poll())
        eventually(lambda: samples(scrape(self.prefill))["penstock_kv_event_connections_refused_total"] > 10, what="refusals that are counted")
        eventually(lambda: strangers.descriptors(self.prefill.process.pid) <= descriptors + 4, what="descriptors as before")

    def test_other_messages_of_zeromq_change_nothing(self):
        self.start()
        subscriber = self.subscribe(self.prefill)
        for kind, message in ((zmq.DEALER, [b"x"]), (zmq.DEALER, [b"", b"not 8 bytes"]), (zmq.DEALER, [b"", b"12345678", b"more"]),
                              (zmq.PUSH, [b"x"]), (zmq.XSUB, [b"\x05"]), (zmq.DEALER, [b"", b"\xff" * 8])):
            with self.context.socket(kind) as socket:
                socket.connect(f"tcp://{events_of(self.prefill)}")
                socket.setsockopt(zmq.SNDTIMEO, 200)
                try:
                    socket.send_multipart(message)
                except zmq.Again:
                    pass  # a PUSH socket finds no peer
                socket.poll(100)
                socket.close(linger=0)
        self.ask(tokens("after", 64))
        subscriber.catch_up()
        self.assert_equals_the_worker(subscriber, self.prefill, tokens("after", 64))

    def test_it_is_off_unless_asked_for_and_asks_before_it_is_seen(self):
        self.cluster = Cluster(1, 1)
        self.addCleanup(self.cluster.stop)
        for worker in self.cluster.workers:
            self.assertNotIn("kv_events=", worker.ready.read_text())
            self.assertEqual(samples(scrape(worker))["penstock_kv_event_batches_total"], 0)
        for flag, words in (("--kv_events_listen=0.0.0.0:0", "kv_events_listen=0.0.0.0:0 can be reached from other machines"),
                            ("--kv_events_listen=nowhere", "kv_events_listen"),
                            (f"--kv_events_topic={'x' * 256}", "kv_events_topic has 256 bytes; at most 255 are allowed"),
                            ("--kv_events_encoding=json", "kv_events_encoding")):
            done = subprocess.run([BIN / "penstock-prefill", f"--model={MODEL}", "--listen=127.0.0.1:0", flag], text=True, capture_output=True,
                                  timeout=60, check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
