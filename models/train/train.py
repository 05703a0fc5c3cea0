#!/usr/bin/env python3
"""Trains penstock-tiny on a CPU and exports it. See README.md beside this file.

Example: python models/train/train.py --minutes 75 --out models/penstock-tiny
"""

import argparse
import json
import math
import os
import pathlib
import random
import sys
import time

import torch
from tokenizers import Tokenizer

import chat_data
import corpus
import tokenizer
from export import export, load_weights
from model import Config, Llama
from muon import Muon
from tasks import Rows

MIX = {"austen": 0.44, "bible": 0.16, "wordnet": 0.37, "devil": 0.03}
DEFINED_WORDS = 1000  # the commonest nouns; more cannot be learned by heart in so few parameters
DRILL_TOKENS = 192  # alphabet of the drill's random rows
DRILL_DONE = 0.85
# Rows of a phase: length, rows per step, share of the time, {kind of row: share}.
# The first phase is a drill on few tokens, left as soon as copying by content works; without it
# that did not emerge in 2.9 million tokens.
PHASES = [
    (48, 64, 0.09, {"pairs": .4, "rep": .3, "dense": .1, "text": .2}),
    (64, 64, 0.04, {"pairs": .12, "rep": .12, "dense": .3, "chat": .16, "text": .3}),
    (128, 32, 0.15, {"pairs": .08, "rep": .04, "dense": .3, "facts": .12, "chat": .16,
                     "text": .3}),
    (256, 16, 0.22, {"pairs": .04, "rep": .04, "dense": .14, "facts": .2, "passkey": .03,
                     "chat": .2, "text": .35}),
    (512, 8, 0.14, {"pairs": .03, "rep": .03, "dense": .08, "facts": .27, "passkey": .06,
                    "chat": .18, "text": .35}),
    (1024, 2, 0.14, {"pairs": .02, "rep": .02, "dense": .06, "facts": .42, "passkey": .14,
                     "chat": .14, "text": .2}),
    (2048, 1, 0.22, {"pairs": .02, "rep": .02, "dense": .05, "facts": .45, "passkey": .16,
                     "chat": .12, "text": .18}),
]


def prepare(sources, work, vocab):
    """Corpus, tokenizer and token ids; the tokenizer and ids are cached in `work`."""
    work.mkdir(parents=True, exist_ok=True)
    texts = corpus.load(sources)
    tok_file, ids_file = work / "tokenizer.json", work / "ids.pt"
    if not tok_file.exists():
        print("training the tokenizer", flush=True)
        tokenizer.train([d for train, _ in texts.values() for d in train], vocab).save(
            str(tok_file))
    tok = Tokenizer.from_file(str(tok_file))
    if not ids_file.exists():
        ids = {name: [e.ids for e in tok.encode_batch(train, add_special_tokens=False)]
               for name, (train, _) in texts.items()}
        torch.save(ids, ids_file)
    return tok, torch.load(ids_file)


def optimizers(model, args):
    """Muon for the layers' matrices, AdamW for embeddings, head and norms."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "layers." in n]
    head = [model.lm_head.weight]
    rest = [p for n, p in model.named_parameters()
            if "embed" in n or ("norm" in n and p.dim() == 1)]
    adam = torch.optim.AdamW(
        [{"params": rest, "lr": args.lr}, {"params": head, "lr": args.lr}],
        betas=(0.9, 0.95), weight_decay=0.01)
    if args.optimizer == "adamw":
        adam.add_param_group({"params": matrices, "lr": args.lr})
        found = [adam]
    else:
        found = [adam, Muon(matrices, lr=args.muon_lr)]
    for opt in found:
        for g in opt.param_groups:
            g["base"] = g["lr"]
    return found


class Meter:
    """Accuracy of the recalled tokens by kind of row, and the text loss in bits per token."""

    def __init__(self):
        self.ok, self.n, self.text, self.text_n = {}, {}, 0.0, 0

    def add(self, kinds, weights, ce, hits):
        answers = (weights[:, 1:] > 0.99)
        for i, kind in enumerate(kinds):
            mask = answers[i] if kind in ("pairs", "rep", "text") else weights[i, 1:] > 2.0
            if kind == "text":
                self.text += ce[i][mask].sum().item()
                self.text_n += int(mask.sum())
            else:
                self.ok[kind] = self.ok.get(kind, 0) + int((hits[i] & mask).sum())
                self.n[kind] = self.n.get(kind, 0) + int(mask.sum())

    def rates(self):
        return {k: self.ok[k] / max(1, self.n[k]) for k in sorted(self.ok)}

    def line(self):
        rates = " ".join(f"{k} {v:.3f}" for k, v in self.rates().items())
        return f"text {self.text / max(1, self.text_n) / math.log(2):.3f} b/tok | {rates}"


def pick_threads(setting):
    """"auto": two threads while the machine is otherwise idle, else one."""
    if setting != "auto":
        return int(setting)
    now = torch.get_num_threads()
    load = os.getloadavg()[0]
    if now == 1:
        return 2 if load < 1.3 else 1
    return 1 if load > 2.9 else 2


def learning_rate(progress, step):
    """Warm-up, a plateau, then a decay to 8 %."""
    warm = min(1.0, (step + 1) / 40)
    if progress < 0.35:
        return warm
    return warm * (0.08 + 0.92 * 0.5 * (1 + math.cos(math.pi * (progress - 0.35) / 0.65)))


class Curriculum:
    """Walks through PHASES; time a phase leaves unused goes to the later ones."""

    def __init__(self, rows, first):
        self.rows, self.at = rows, first
        self.end = PHASES[first][2] / sum(p[2] for p in PHASES[first:])
        rows.drill = DRILL_TOKENS if first == 0 else 0

    def phase(self, progress, rates):
        done = self.at == 0 and min(rates.get("pairs", 0), rates.get("rep", 0)) > DRILL_DONE
        if (progress >= self.end or done) and self.at + 1 < len(PHASES):
            self.at += 1
            left = sum(p[2] for p in PHASES[self.at:])
            self.end = progress + (1 - progress) * PHASES[self.at][2] / left
            self.rows.drill = 0
        return PHASES[self.at]


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--sources", default="build/models/sources", help="made by fetch_sources.sh")
    p.add_argument("--work", default="build/models/work", help="tokenizer, ids, log, checkpoints")
    p.add_argument("--out", default="models/penstock-tiny", help="where the checkpoint goes")
    p.add_argument("--minutes", type=float, default=75, help="length of the schedule")
    p.add_argument("--tokens", type=float, default=0, help="schedule by tokens instead of minutes")
    p.add_argument("--stop-minutes", type=float, default=0, help="stop early (for trials)")
    p.add_argument("--resume", help="start from the weights of this exported checkpoint")
    p.add_argument("--first-phase", type=int, default=0, help="index into PHASES; for --resume")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--optimizer", choices=("muon", "adamw"), default="muon")
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--muon-lr", type=float, default=5e-3)
    p.add_argument("--threads", default="auto", help="a number, or auto")
    p.add_argument("--export-every", type=float, default=0, help="minutes between early exports")
    return p.parse_args()


def main():
    args = parse()
    work = pathlib.Path(args.work)
    tok, ids = prepare(args.sources, work, Config().vocab)
    keys = [w for i, (w, _) in enumerate(corpus.nouns(args.sources)) if i % 10]  # every tenth is held out
    answers = corpus.definitions(args.sources, chat_data.EVERYDAY, DEFINED_WORDS)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    model = Llama(Config())
    if args.resume:
        load_weights(model, args.resume)
    params = sum(p.numel() for p in model.parameters())
    print(f"{params} parameters, {sum(len(d) for s in ids.values() for d in s)} tokens of text",
          flush=True)
    rows = Rows(tok, ids, MIX, answers, keys, rng)
    opts = optimizers(model, args)
    log = (work / "train.jsonl").open("w")
    start = last_export = time.time()
    curriculum, rates = Curriculum(rows, args.first_phase), {}
    step = tokens = 0
    meter, shown = Meter(), time.time()
    torch.set_num_threads(1)
    while True:
        minutes = (time.time() - start) / 60
        progress = tokens / args.tokens if args.tokens else minutes / args.minutes
        if progress >= 1 or (args.stop_minutes and minutes > args.stop_minutes):
            break
        length, batch, _, mix = curriculum.phase(progress, rates)
        if step % 20 == 0:
            torch.set_num_threads(pick_threads(args.threads))
        kinds = rng.choices(list(mix), list(mix.values()), k=batch)
        made = [rows.row(k, length) for k in kinds]
        x = torch.tensor([m[0] for m in made])
        w = torch.tensor([m[1] for m in made])
        scale = learning_rate(progress, step)
        for opt in opts:
            for g in opt.param_groups:
                g["lr"] = g["base"] * scale
            opt.zero_grad(set_to_none=True)
        loss, ce, hits = model.loss(x, w)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for opt in opts:
            opt.step()
        step += 1
        tokens += x.numel()
        meter.add(kinds, w, ce, hits)
        if time.time() - shown > 20:
            line = (f"{(time.time() - start) / 60:5.1f} min step {step} length {length} tokens "
                    f"{tokens} threads {torch.get_num_threads()} loss {loss.item():.3f} "
                    f"{meter.line()}")
            print(line, flush=True)
            log.write(json.dumps({"step": step, "tokens": tokens, "length": length,
                                  "minutes": round(minutes, 2), "line": line}) + "\n")
            log.flush()
            rates = meter.rates()
            meter, shown = Meter(), time.time()
        if args.export_every and (time.time() - last_export) / 60 > args.export_every:
            export(model, tok, work / "early")
            last_export = time.time()
    torch.save(model.state_dict(), work / "model.pt")
    export(model, tok, args.out)
    print(f"done: {step} steps, {tokens} tokens, {(time.time() - start) / 60:.1f} min -> "
          f"{args.out}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
