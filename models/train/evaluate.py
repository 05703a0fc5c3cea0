#!/usr/bin/env python3
"""Measures an exported checkpoint: held-out bits per byte, and recall accuracy by distance.

Example: python models/train/evaluate.py --model models/penstock-tiny --json eval.json
Weights are used exactly as stored (bf16); arithmetic is fp32, or with --bf16 every matrix
product's inputs are rounded to bf16 as well. Recall counts a value only when all of its digits
are the model's first choice given the context (teacher forcing; equal to greedy decoding).
"""

import argparse
import json
import math
import pathlib
import random
import sys

import torch
from tokenizers import Tokenizer

import corpus
from export import load_weights
from model import Config, Llama
from tasks import PASSKEY_SHAPES, Rows
from tokenizer import BOS

DISTANCES = [32, 64, 128, 256, 512, 1024, 1536, 1900]


def load(path):
    c = json.loads((pathlib.Path(path) / "config.json").read_text())
    cfg = Config(vocab=c["vocab_size"], d=c["hidden_size"], layers=c["num_hidden_layers"],
                 heads=c["num_attention_heads"], kv_heads=c["num_key_value_heads"],
                 head_dim=c["head_dim"], ff=c["intermediate_size"], theta=c["rope_theta"],
                 eps=c["rms_norm_eps"], context=c["max_position_embeddings"])
    tok = Tokenizer.from_file(str(pathlib.Path(path) / "tokenizer.json"))
    return load_weights(Llama(cfg), path).eval(), tok


def round_matmul_inputs(model):
    """Rounds the activations that enter every linear layer to bf16."""
    for m in model.modules():
        if isinstance(m, torch.nn.Linear):
            m.register_forward_pre_hook(lambda _, x: (x[0].to(torch.bfloat16).float(),))


@torch.no_grad()
def bits_per_byte(model, tok, docs, window, limit):
    """Consecutive windows of `window` tokens, each with a bos in front and scored whole."""
    ids, nats, count = [], 0.0, 0
    for d in docs:
        ids += tok.encode(d, add_special_tokens=False).ids
    ids = ids[:limit]
    for at in range(0, len(ids), window - 1):
        x = torch.tensor([[BOS] + ids[at:at + window - 1]])
        logits = model(x)[0, :-1]
        nats += torch.nn.functional.cross_entropy(logits, x[0, 1:], reduction="sum").item()
        count += x.shape[1] - 1
    size = len(tok.decode(ids).encode())
    return {"bits_per_byte": nats / math.log(2) / size, "perplexity_per_token":
            math.exp(nats / count), "tokens": count, "bytes": size}


def recall_prompt(rows, distance, task):
    """(ids, answers): the last `answers` ids are the value; distance is from value to value."""
    rng = rows.rng
    if task == "passkey":
        shape, key, digits = rng.choice(PASSKEY_SHAPES), "", 5
    else:
        shape, key, digits = (" The code of {k} is ", "."), rng.choice(rows.keys), 4
    value = rows.value(digits)
    fact, _ = rows.state(shape, key, value, False)
    ask = rows.encode(shape[0].format(k=key))
    if task == "passkey":
        ask = rows.encode(" What is" + shape[0].lower().replace(" is ", "?")) + ask
    others = []
    if task == "key-value":  # three facts with other keys stand between
        for k in rng.sample([k for k in rows.keys if k != key], 3):
            others.append(rows.state(shape, k, rows.value(digits), False)[0])
    lead = rows.words(rng.randint(2, 24))
    room = distance - len(fact) - len(ask) - sum(map(len, others))
    while room < 0 and others:
        room += len(others.pop())
    text = rows.words(max(0, room))
    cuts = sorted(rng.randrange(len(text) + 1) for _ in others)
    between, last = [], 0
    for cut, o in zip(cuts, others):
        between += text[last:cut] + o
        last = cut
    between += text[last:]
    return [BOS] + lead + fact + between + ask + rows.encode(value), digits


@torch.no_grad()
def recall(model, rows, distance, task, count):
    good = 0
    for _ in range(count):
        ids, n = recall_prompt(rows, distance, task)
        logits = model.lm_head(model.hidden(torch.tensor([ids[:-1]]))[0, -n:])
        good += logits.argmax(-1).tolist() == ids[-n:]
    return good / count


@torch.no_grad()
def generate(model, tok, ids, tokens, stop):
    out = []
    for _ in range(tokens):
        out.append(int(model.lm_head(model.hidden(torch.tensor([ids + out]))[0, -1]).argmax()))
        if out[-1] in stop:
            break
    return tok.decode(out, skip_special_tokens=True)


def samples(model, tok):
    texts = {}
    for prompt in ("It was a fine morning, and", "And it came to pass", "The old man said"):
        texts[prompt] = generate(model, tok, tok.encode(prompt).ids, 48, {1})
    for prompt in ("Hello! Who are you?", "What is a river?", "What is the capital of France?",
                   "Tell me a story about a fox.",
                   "Remember: the code of amber is 4821. What is the code of amber?"):
        ids = tok.encode(f"<|bos|><|user|>{prompt}<|end|><|assistant|>",
                         add_special_tokens=False).ids
        texts["chat: " + prompt] = generate(model, tok, ids, 120, {1, 5})
    return texts


def table(report):
    print(f"{'source':10} {'bits/byte':>9} {'ppl/token':>9} {'bytes':>8}")
    for name, r in report["held_out"].items():
        print(f"{name:10} {r['bits_per_byte']:9.3f} {r['perplexity_per_token']:9.2f} "
              f"{r['bytes']:8}")
    tasks = list(report["recall"])
    print(f"{'distance':10} " + " ".join(f"{t:>10}" for t in tasks))
    for d in report["recall"][tasks[0]]:
        print(f"{d:10} " + " ".join(f"{report['recall'][t][d]:10.3f}" for t in tasks))
    for prompt, text in report["samples"].items():
        print(f"[{prompt}] {text!r}")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", default="models/penstock-tiny")
    p.add_argument("--sources", default="build/models/sources", help="made by fetch_sources.sh")
    p.add_argument("--json", help="where the report goes")
    p.add_argument("--count", type=int, default=100, help="prompts per distance and task")
    p.add_argument("--tokens", type=int, default=60000, help="held-out tokens per source")
    p.add_argument("--seed", type=int, default=12345)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--bf16", action="store_true", help="round matrix-product inputs to bf16")
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    model, tok = load(args.model)
    if args.bf16:
        round_matmul_inputs(model)
    texts = {n: held for n, (_, held) in corpus.load(args.sources).items()}
    answers = corpus.nouns(args.sources)
    ids = {n: [e.ids for e in tok.encode_batch(d, add_special_tokens=False)]
           for n, d in texts.items()}
    keys = [w for i, (w, _) in enumerate(answers) if i % 10 == 0]
    rows = Rows(tok, ids, {"austen": 0.5, "bible": 0.2, "wordnet": 0.3}, answers, keys,
                random.Random(args.seed))
    held = {n: bits_per_byte(model, tok, d, model.cfg.context, args.tokens)
            for n, d in texts.items()}
    total = sum(r["bits_per_byte"] * r["bytes"] for r in held.values())
    held["all"] = {"bits_per_byte": total / sum(r["bytes"] for r in held.values()),
                   "perplexity_per_token": math.exp(
                       total * math.log(2) / sum(r["tokens"] for r in held.values())),
                   "tokens": sum(r["tokens"] for r in held.values()),
                   "bytes": sum(r["bytes"] for r in held.values())}
    report = {"model": args.model, "seed": args.seed, "prompts_per_cell": args.count,
              "bf16_activations": args.bf16, "held_out": held, "recall": {
                  task: {str(d): recall(model, rows, d, task, args.count) for d in DISTANCES}
                  for task in ("key-value", "passkey")}, "samples": samples(model, tok)}
    table(report)
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
