#!/usr/bin/env python3
"""A model of random weights served by a prefill and a decode worker that share a GPU: whether every
answer is what one process gives, and TTFT, TPOT and how much of the KV's way compute hides.

    PENSTOCK_BIN_DIR=... PENSTOCK_SOURCE_DIR=... tests/cuda/gpu/end_to_end.py [--shape NAME] [--weights FORM]
        [--numerics exact|fast] [--json FILE]

Exit 0: all answers are right; 1: not."""

import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import urllib.request

import random_model

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "e2e/operator"))
from operations import BIN, Server, eventually, samples, scrape  # noqa: E402

# GPU memory: of the first process, and of both together. An emulated GPU belongs to one process.
RUNS = {
    "tiny": dict(prompts=[5, 40, 33], tokens=5, load=dict(requests=3, concurrency=2, prompt=24, output=4), memory=(0.1, 0.2),
                 decode=dict(streams=[1, 2], output=8), prefill=dict(requests=2, prompt=100), long=dict(requests=1, prompt=150)),
    "llama-3-8b": dict(prompts=[1, 16, 100, 513, 1024, 1500, 2048, 8000], tokens=64,
                       load=dict(requests=64, concurrency=16, prompt=1024, output=128), memory=(0.45, 0.9),
                       decode=dict(streams=[1, 16, 64, 128], output=256), prefill=dict(requests=16, prompt=2000),
                       long=dict(requests=4, prompt=7900)),
}
RUNS["llama-3-8b-quarter"] = RUNS["llama-3-8b"]  # of its layers
EMULATED_MEMORY = (0.036, 0.036)
PATIENCE_S = 180


def prompts(run):
    """Bytes are the first 256 ids of the tokenizer."""
    pick = random.Random(3)
    return [[pick.randrange(97, 123) for _ in range(length)] for length in run["prompts"]]


class EndToEnd:
    def __init__(self, shape, weights, numerics, suffix, folder):
        self.run, self.weights, self.numerics, self.suffix, self.folder = RUNS[shape], weights, numerics, suffix, pathlib.Path(folder)
        self.memory = EMULATED_MEMORY if suffix else self.run["memory"]
        self.model = self.folder / shape
        print(f"writing a checkpoint of random weights: {shape} ...", flush=True)
        random_model.write(shape, self.model)
        self.servers = []
        self.seed = 0  # of the latest load

    def expected(self):
        """The answers of one process, which has the GPU for itself."""
        lines = "".join(" ".join(map(str, ids)) + "\n" for ids in prompts(self.run))
        print("asking one process ...", flush=True)
        result = subprocess.run([BIN / f"penstock-aggregated{self.suffix}", self.model, "cuda:0", str(self.memory[0]),
                                 str(max(self.run["prompts"])), str(self.run["tokens"]), self.weights, self.numerics], input=lines, text=True,
                                capture_output=True, timeout=PATIENCE_S, check=False)
        if result.returncode != 0:
            raise AssertionError(f"one process alone: {result.stderr}")
        return [[int(token) for token in line.split()] for line in result.stdout.splitlines()]

    def serve(self):
        print("starting workers ...", flush=True)
        for role, memory in zip(("prefill", "decode"), self.memory):
            self.start(role, ["--device=cuda:0", f"--gpu_memory_utilization={memory}", "--wire_codec=raw", f"--weights={self.weights}",
                              f"--numerics={self.numerics}"], f"penstock-{role}{self.suffix}")
        endpoints = [f"--workers={server.listen}" for server in self.servers]
        self.start("router", ["--model_name=random", "--http_listen=127.0.0.1:0", *endpoints])
        self.router = self.servers[-1]
        eventually(lambda: self.cli("health", "--endpoint", self.router.listen).returncode == 0, what="a router that serves")

    def start(self, name, flags, program=None):
        """One after the other: each takes what memory the others leave."""
        self.servers.append(Server(self.folder, name, flags, model=self.model, program=program))
        self.servers[-1].await_ready(PATIENCE_S)

    def stop(self):
        for server in self.servers:
            server.stop()

    def cli(self, *arguments, text=None):
        return subprocess.run([BIN / "penstock", *map(str, arguments)], input=text, text=True, capture_output=True, timeout=PATIENCE_S,
                              check=False)

    def answer(self, seed, ids):
        body = json.dumps({"model": "random", "prompt": ids, "max_tokens": self.run["tokens"], "seed": seed, "temperature": 1,
                           "ignore_eos": True, "return_token_ids": True})
        request = urllib.request.Request(f"http://{self.router.http()}/v1/completions", body.encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
            return json.load(response)["choices"][0]["token_ids"]

    def bench(self, requests, concurrency, prompt, output, temperature=0):
        """Closed-loop load of random prompts, all of which are answered."""
        self.seed += 1
        result = self.cli("bench", "serve", "--endpoint", f"http://{self.router.http()}", "--token-ids", "97:122", "--json", "--requests", requests,
                          "--concurrency", concurrency, "--prompt-tokens", prompt, "--output-tokens", output, "--seed", self.seed,
                          "--temperature", temperature)
        if result.returncode != 0:
            raise AssertionError(f"penstock bench serve: {result.stderr}")
        found = json.loads(result.stdout)
        if found["failed"] != 0 or found["completed"] != requests:
            raise AssertionError(f"{found['failed']} of {requests} requests failed")
        return found

    def load(self):
        """TTFT and TPOT of several streams at a time."""
        load = self.bench(**self.run["load"])
        return {name: value for name, value in load.items() if name.endswith(("_ttft_ms", "_tpot_ms"))}

    def decode(self):
        """Answers behind short prompts: the decode worker has the GPU nearly for itself."""
        def measured(streams, temperature):
            before = steps(self.servers[1])
            load = self.bench(requests=streams, concurrency=streams, prompt=16, output=self.run["decode"]["output"], temperature=temperature)
            count, seconds = (after - earlier for after, earlier in zip(steps(self.servers[1]), before, strict=True))
            return {"streams": streams, "temperature": temperature, "tpot_ms": load["median_tpot_ms"], "step_ms": seconds / count * 1e3,
                    "tokens_per_s": load["output_throughput"]}
        return [measured(streams, temperature) for temperature in (0, 1) for streams in self.run["decode"]["streams"]]

    def prefill(self):
        """Prompts with answers of one token, whose KV stays with the prefill worker: alone, four at a time, and long ones alone."""
        run, long = self.run["prefill"], self.run["long"]
        alone, four = (self.bench(concurrency=streams, output=1, **run) for streams in (1, 4))
        far = self.bench(concurrency=1, output=1, **long)
        return {"ttft_ms": alone["median_ttft_ms"], "tokens_per_s": run["requests"] * run["prompt"] / four["duration"],
                "long_tokens": long["prompt"], "long_ttft_ms": far["median_ttft_ms"],
                "long_tokens_per_s": long["requests"] * long["prompt"] / far["duration"]}

    def one_prompt(self, seed):
        """The handoff of the longest prompt's KV when nothing else was going on."""
        text = "".join(random.Random(seed).choices("penstock", k=max(self.run["prompts"])))
        result = self.cli("generate", "--endpoint", self.router.listen, "--json", "--stats", "--max-tokens", self.run["tokens"], "-", text=text)
        if result.returncode != 0:
            raise AssertionError(f"penstock generate: {result.stderr}")
        return json.loads(result.stdout.splitlines()[-1])["stats"]

    def measure(self):
        expected = self.expected()
        self.serve()
        print("asking them ...", flush=True)
        answers = [self.answer(seed, ids) for seed, ids in enumerate(prompts(self.run))]
        right = sum(answer == wanted for answer, wanted in zip(answers, expected, strict=True))
        return {"answers": len(answers), "right": right, "one_prompt": [self.one_prompt(seed) for seed in (4, 5, 6)], "load": self.load(),
                "decode": self.decode(), "prefill": self.prefill(), "stages": self.stages(), "landed": self.landed()}

    def stages(self):
        """Mean times of the stages of all requests, in ms, as the router measured them."""
        found = samples(scrape(self.router))
        family = "penstock_request_stage_seconds"
        names = [name.split('"')[1] for name in found if name.startswith(f"{family}_sum")]
        return {name: 1e3 * found[f'{family}_sum{{stage="{name}"}}'] / max(1, found[f'{family}_count{{stage="{name}"}}']) for name in names}

    def landed(self):
        """Slabs by the memory in which they came to the decode worker."""
        found = samples(scrape(self.servers[1]))
        return {memory: int(found[f'penstock_kv_landed_slabs_total{{memory="{memory}"}}']) for memory in ("gpu", "host")}


def steps(server):
    """How many steps of decoding a worker has done, and the seconds that they took."""
    found = samples(scrape(server))
    return [found[f'penstock_iteration_duration_seconds_{what}{{phase="decode"}}'] for what in ("count", "sum")]


def table(found):
    one, load = min(found["one_prompt"], key=lambda one: one["kv_transfer_ms"]), found["load"]
    yield "answers as one process gives them", f"{found['right']} of {found['answers']}"
    yield "layers sent while later ones computed", f"{one['layers_overlapped']} of {one['layers']}, {one['kv_transfer_ms']} ms not hidden"
    yield "KV moved", f"{one['kv_bytes_moved'] / 1e6:.1f} MB by {one['transport']}"
    yield "slabs that landed in GPU, in host memory", f"{found['landed']['gpu']}, {found['landed']['host']}"
    yield "alone: TTFT, TPOT", f"{one['ttft_ms']} ms, {one['tpot_ms']} ms"
    yield "under load: TTFT median, p99", f"{load['median_ttft_ms']:.1f} ms, {load['p99_ttft_ms']:.1f} ms"
    yield "under load: TPOT median, p99", f"{load['median_tpot_ms']:.2f} ms, {load['p99_tpot_ms']:.2f} ms"
    for row in found["decode"]:
        yield (f"{row['streams']} streams, short prompts, temperature {row['temperature']}",
               f"TPOT {row['tpot_ms']:.2f} ms, step {row['step_ms']:.2f} ms, {row['tokens_per_s']:.0f} tokens/s")
    yield "prompts alone: TTFT; four at a time", f"{found['prefill']['ttft_ms']:.1f} ms; {found['prefill']['tokens_per_s']:.0f} tokens/s"
    far = found["prefill"]
    yield f"prompts of {far['long_tokens']} tokens alone: TTFT; in all", f"{far['long_ttft_ms']:.1f} ms; {far['long_tokens_per_s']:.0f} tokens/s"
    yield "stages of a request", ", ".join(f"{name} {ms:.2f} ms" for name, ms in found["stages"].items())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--shape", choices=RUNS, default="llama-3-8b")
    parser.add_argument("--weights", choices=("checkpoint", "int8", "int4"), default="checkpoint", help="in which form workers hold them")
    parser.add_argument("--numerics", choices=("exact", "fast"), default="exact", help="of the workers: fast computes prompts by the library")
    parser.add_argument("--suffix", default="", help="of the workers' programs: -emulated has no GPU")
    parser.add_argument("--json", type=pathlib.Path, help="a file for what was found")
    arguments = parser.parse_args()
    if arguments.suffix and arguments.numerics == "fast":
        os.environ["PENSTOCK_EMULATED_HOPPER"] = "1"  # which has the library's attention
    with tempfile.TemporaryDirectory(prefix="penstock-gpu-") as folder:
        run = EndToEnd(arguments.shape, arguments.weights, arguments.numerics, arguments.suffix, folder)
        try:
            found = {"shape": arguments.shape, "weights": arguments.weights, "numerics": arguments.numerics, **run.measure()}
        except AssertionError as error:
            logs = "\n".join(f"{server.name}: {server.log.read_text()[-2000:]}" for server in run.servers)
            sys.exit(f"{error}\n{logs}")
        finally:
            run.stop()
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))
    for name, value in table(found):
        print(f"{name:44} {value}")
    sys.exit(0 if found["right"] == found["answers"] else 1)


if __name__ == "__main__":
    main()
