#!/usr/bin/env python3
"""Regenerates tests/golden/recall.json: what evictions and selections forget, by a second
implementation of them.

    python3 tests/golden/make_recall.py

Runs itself in .venv/golden, as make_logits.py does. Each prompt tells a pass key, goes on with text
that was not trained on, and asks for the key. transformers computes the bundled model in float32;
the methods are written here from their papers, and share no code with Penstock. The file has
    policies  names of kv_policy
    prompts   key: the pass key; before, between: [at, count] of the tokens of
              models/text/held_out.txt that stand before the key and between key and question;
              told: for each policy, whether the greedy answer is the key
"""

import json
import random
import re

import make_logits

TARGET = make_logits.ROOT / "tests" / "golden" / "recall.json"
MODEL = make_logits.ROOT / "models" / "penstock-tiny"
TEXT = make_logits.ROOT / "models" / "text" / "held_out.txt"
POLICIES = ["snapkv:80", "snapkv:96", "h2o:128", "h2o:256", "tova:128", "keydiff:128",
            "streaming:128", "quest:64", "quest:96"]
DISTANCES = [128, 512]
PROMPTS = 50  # of each distance
PAGE, DENSE_LAYERS = 16, 2  # of quest
STATEMENT, END, QUESTION = " The pass key is ", ". Remember it.", " What is the pass key?"


def top(scores, count):
    """The positions of the `count` highest scores, ascending."""
    import torch
    return torch.topk(scores, count).indices.sort().values


def snapkv(keep, attention, keys):
    """Li et al., arXiv 2404.14469, listing 1, with one set for the query heads of a KV head."""
    import torch
    window, tokens = 32, keys.shape[0]
    votes = attention[:, -window:, :tokens - window].sum(dim=(0, 1))
    votes = torch.nn.functional.max_pool1d(votes[None], 9, stride=1, padding=4)[0]
    return torch.cat([top(votes, keep - window), torch.arange(tokens - window, tokens)])


def h2o(keep, attention, keys):
    """Zhang et al., arXiv 2306.14048, algorithm 1, at the end of the prompt."""
    import torch
    recent, tokens = keep // 2, keys.shape[0]
    heavy = top(attention.sum(dim=(0, 1))[:tokens - recent], keep - recent)
    return torch.cat([heavy, torch.arange(tokens - recent, tokens)])


def keydiff(keep, _attention, keys):
    """Park et al., arXiv 2504.15364, section 3."""
    import torch
    anchor = torch.nn.functional.normalize(keys, dim=-1).mean(dim=0)
    return top(-torch.nn.functional.cosine_similarity(keys, anchor[None], dim=-1), keep)


def streaming(keep, _attention, keys):
    """Xiao et al., arXiv 2309.17453: four sinks and a window."""
    import torch
    return torch.cat([torch.arange(4), torch.arange(keys.shape[0] - keep + 4, keys.shape[0])])


def tova(keep, attention, keys):
    """Oren et al., arXiv 2401.06104: `attention` is that of all heads of the layer."""
    import torch
    tokens = keys.shape[0]
    return torch.cat([top(attention[:, -1, :tokens - 1].sum(dim=0), keep - 1),
                      torch.tensor([tokens - 1])])


def quest(keep, keys, queries):
    """Tang et al., arXiv 2406.10774: the positions to which a token attends, for each KV head. Of
    pages of PAGE tokens the first, the last two, and those whose keys may give the greatest
    products, by the bounds of each dimension, summed over the query heads of a KV head."""
    import torch
    tokens, heads = keys.shape[1], keys.shape[0]
    pages = (tokens + PAGE - 1) // PAGE
    if pages * PAGE <= keep:
        return None
    bounded = keys[:, :(pages - 2) * PAGE].reshape(heads, pages - 2, PAGE, -1)
    queries = queries.reshape(heads, -1, 1, keys.shape[-1])
    greatest = torch.maximum(queries * bounded.amax(dim=2)[:, None],
                             queries * bounded.amin(dim=2)[:, None])
    scores = greatest.sum(dim=(1, 3))
    seen = torch.zeros(heads, pages, dtype=torch.bool)
    seen[:, [0, -2, -1]] = True
    best = torch.topk(scores[:, 1:], keep // PAGE - 3).indices + 1
    return seen.scatter(1, best, True).repeat_interleave(PAGE, dim=1)[:, :tokens]


class Selecting:
    """While it is entered, tokens attend to what quest selects, but for the first layers."""
    keep = None

    def __init__(self, keep):
        self.now = keep

    def __enter__(self):
        Selecting.keep = self.now

    def __exit__(self, *_):
        Selecting.keep = None


def attend(module, query, key, value, _mask, scaling, **_):
    """Attention of transformers' models, by Selecting."""
    import torch
    group = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(group, dim=1).transpose(2, 3) * scaling
    rows, tokens = scores.shape[2:]
    future = torch.ones(rows, tokens, dtype=torch.bool).triu(tokens - rows + 1)
    scores = scores.masked_fill(future, float("-inf"))
    if Selecting.keep and module.layer_idx >= DENSE_LAYERS:
        seen = quest(Selecting.keep, key[0], query[0, :, 0])
        if seen is not None:
            seen = seen.repeat_interleave(group, dim=0)[None, :, None]
            scores = scores.masked_fill(~seen, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    out = weights @ value.repeat_interleave(group, dim=1)
    return out.transpose(1, 2).contiguous(), weights


METHODS = {"snapkv": snapkv, "h2o": h2o, "keydiff": keydiff, "streaming": streaming, "tova": tova}


def evict(policy, attentions, cache):
    """A copy of the cache with what the policy keeps."""
    import torch
    from transformers import DynamicCache
    method, keep = policy.split(":")
    kept = DynamicCache()
    for layer, attention in enumerate(attentions):
        keys, values = cache.layers[layer].keys[0], cache.layers[layer].values[0]
        group = attention.shape[1] // keys.shape[0]
        chosen = []
        for head in range(keys.shape[0]):
            seen = attention[0] if method == "tova" else attention[0, head * group:][:group]
            chosen.append(METHODS[method](int(keep), seen, keys[head]))
        index = torch.stack(chosen)[:, :, None].expand(-1, -1, keys.shape[-1])
        kept.update(keys.gather(1, index)[None], values.gather(1, index)[None], layer)
    return kept


def tells(model, logits, cache, position, key):
    """True if `key` is the greedy answer; `logits` choose its first token."""
    import torch
    for token in key:
        if int(logits.argmax()) != token:
            return False
        logits = model(torch.tensor([[token]]), past_key_values=cache,
                       position_ids=torch.tensor([[position]])).logits[0, -1]
        position += 1
    return True


def told(model, tokens, whole, policy, key):
    """True if the answer is `key` under the policy."""
    import contextlib
    import torch
    method, keep = policy.split(":")
    first = whole.logits[0, -1]
    if method != "quest" and int(keep) < len(tokens):
        return tells(model, first, evict(policy, whole.attentions, whole.past_key_values),
                     len(tokens), key)
    cache = model(torch.tensor([tokens]), use_cache=True).past_key_values
    with Selecting(int(keep)) if method == "quest" else contextlib.nullcontext():
        return tells(model, first, cache, len(tokens), key)


class Prompts:
    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        # As penstock eval does: documents are parted by empty lines.
        self.text = []
        for document in re.split("\n\n+", TEXT.read_text()):
            self.text += self.encode(document.strip("\n"))
        self.random = random.Random(5)

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def passage(self, count):
        return [self.random.randrange(len(self.text) - count), count]

    def make(self, distance):
        key = str(self.random.randrange(10000, 100000))
        statement = self.encode(STATEMENT)
        fact = statement + self.encode(key) + self.encode(END)
        question = self.encode(QUESTION) + statement
        before = self.passage(self.random.randrange(16, 32))
        between = self.passage(distance - len(fact) - len(question))
        at = lambda passage: self.text[passage[0]:sum(passage)]
        tokens = [0] + at(before) + fact + at(between) + question  # 0 begins a text
        return {"key": key, "before": before, "between": between}, tokens, self.encode(key)


def main():
    import torch
    from tokenizers import Tokenizer
    from transformers import AttentionInterface, AutoModelForCausalLM
    AttentionInterface.register("selecting", attend)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32,
                                                 attn_implementation="selecting").eval()
    prompts = Prompts(Tokenizer.from_file(str(MODEL / "tokenizer.json")))
    lines = []
    for distance in DISTANCES:
        for _ in range(PROMPTS):
            prompt, tokens, key = prompts.make(distance)
            with torch.no_grad():
                whole = model(torch.tensor([tokens]), use_cache=True, output_attentions=True)
                prompt["told"] = [told(model, tokens, whole, policy, key) for policy in POLICIES]
            prompt["tokens"] = len(tokens)
            lines.append(json.dumps(prompt))
        rows = [json.loads(line)["told"] for line in lines[-PROMPTS:]]
        print(distance, {policy: sum(row[i] for row in rows) for i, policy in enumerate(POLICIES)})
    TARGET.write_text(f'{{"policies": {json.dumps(POLICIES)},\n"text_tokens": {len(prompts.text)},\n'
                      '"prompts": [\n' + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    make_logits.enter_venv()
    main()
