#!/usr/bin/env python3
"""Checks an exported checkpoint against Hugging Face transformers: token ids, logits, template.

Example: python models/train/check_hf.py --model models/penstock-tiny
Exits 1 when anything differs by more than rounding.
"""

import argparse
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import evaluate

TEXT = "It was a fine morning, and the code of amber is 48213.\n\nEmma's  house caf\u00e9\n"
QUESTION = "Remember: the code of amber is 4821. What is the code of amber?"
RENDERED = f"<|bos|><|user|>{QUESTION}<|end|><|assistant|>"


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--model", default="models/penstock-tiny")
    path = p.parse_args().model
    torch.set_num_threads(1)
    ours, tok = evaluate.load(path)
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    half = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()
    their_tok = AutoTokenizer.from_pretrained(path)
    failures = 0

    def check(name, good, detail):
        nonlocal failures
        failures += not good
        print(f"{'ok  ' if good else 'FAIL'} {name}: {detail}")

    ids = tok.encode(TEXT).ids
    check("token ids", their_tok(TEXT).input_ids == ids, f"{len(ids)} tokens")
    check("round trip", tok.decode(ids, skip_special_tokens=True) == TEXT, "text is unchanged")
    for length in (len(ids), 2048):
        x = torch.tensor([(ids * 200)[:length]])
        with torch.no_grad():
            a, b, c = ours(x), theirs(x).logits, half(x).logits.float()
        gap = (a - b).abs().max().item()
        check(f"logits of {length} tokens", gap < 5e-3, f"largest difference {gap:.2e}")
        same = (a.argmax(-1) == c.argmax(-1)).float().mean().item()
        check("first choice in bf16", same > 0.95, f"{same:.4f} agree with fp32")
    text = their_tok.apply_chat_template([{"role": "user", "content": QUESTION}], tokenize=False,
                                         add_generation_prompt=True)
    check("chat template", text == RENDERED, text)
    x = torch.tensor([their_tok(text, add_special_tokens=False).input_ids])
    out = half.generate(x, max_new_tokens=40, do_sample=False)[0, x.shape[1]:]
    answer = their_tok.decode(out, skip_special_tokens=True)
    check("answer", "4821" in answer, answer)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
