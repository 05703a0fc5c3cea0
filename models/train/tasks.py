"""Training rows: lists of token ids with a loss weight for each, of exactly `length` tokens.

Random values carry no loss where they are first stated (they cannot be predicted) and a high
weight where they are asked for, so that all the pressure is on using the context.
"""

import bisect

import chat_data
from tokenizer import ASSISTANT, BOS, END, EOS, SPECIAL, USER

# The first digit is the one that needs the key; the others follow it. Text has 1.0.
FIRST, ANSWER = 6.0, 1.5
USER_TEXT = 0.3
SHAPES = [  # (what states and asks for a fact, up to its value; what follows the value)
    (" The code of {k} is ", "."), (" The number of {k} is ", "."), (" {k}: ", "\n"),
    (" {k} = ", ";"), (" The secret code for {k} is ", "."), (" Remember that {k} is ", "."),
]
# Steps to those: value right after the key, then one token between. Finding a value by a key that
# stands several tokens before it is what a small model learns last.
LADDER = [(" {k}", ";"), (" {k}", "\n"), (" {k}=", ";"), (" {k}:", ","), (" {k} ", "."),
          (" {k} is ", ".")]
PASSKEY_SHAPES = [
    (" The pass key is ", ". Remember it."), (" The magic number is ", ". Do not forget it."),
]


class Rows:
    def __init__(self, tok, docs, mix, answers, keys, rng):
        """docs {source: [ids]}; mix {source: share}; keys are the words that facts are about."""
        self.tok, self.docs, self.answers, self.keys, self.rng = tok, docs, answers, keys, rng
        self.drill = 0  # when positive, random rows use only this many different tokens
        self.sources, self.bounds, total = [], [], 0.0
        for name, share in mix.items():
            total += share
            self.sources.append(name)
            self.bounds.append(total)
        self.cumulative = {}
        for name, ids in docs.items():
            at, out = 0, []
            for d in ids:
                at += len(d)
                out.append(at)
            self.cumulative[name] = out
        self.stops = {i for t, i in tok.get_vocab().items() if t.endswith((".", ".\u010a", "!"))}

    def encode(self, text):
        return self.tok.encode(text, add_special_tokens=False).ids

    def words(self, n):
        """n tokens of consecutive text from one source, crossing documents with an eos."""
        rng = self.rng
        i = bisect.bisect(self.bounds, rng.random() * self.bounds[-1])
        name = self.sources[min(i, len(self.sources) - 1)]
        cum, docs = self.cumulative[name], self.docs[name]
        at = rng.randrange(cum[-1])
        d = bisect.bisect(cum, at)
        out = docs[d][at - cum[d] + len(docs[d]):][:n]
        while len(out) < n:
            d = rng.randrange(len(docs))
            out = out + [EOS] + docs[d][:n - len(out) - 1]
        return out[:n]

    def text(self, length):
        return [BOS] + self.words(length - 1), [0.0] + [1.0] * (length - 1)

    def random_token(self):
        return self.rng.choice(self.alphabet())

    def alphabet(self):
        """The tokens that random rows are made of; the drill's are spread over the vocabulary."""
        size = self.tok.get_vocab_size() - len(SPECIAL)
        step = size // self.drill if self.drill else 1
        return range(len(SPECIAL), len(SPECIAL) + size - size % step, step)

    def repetition(self, length):
        """A random segment, pieces of which recur at random offsets (a fixed one is a shortcut)."""
        rng = self.rng
        n = rng.randint(6, max(7, min(length // 3, 200)))
        pool = [self.random_token() for _ in range(n)]
        ids, w = [BOS] + pool, [0.0] * (n + 1)
        while len(ids) < length:
            gap = rng.randint(0, 4)
            ids += [self.random_token() for _ in range(gap)]
            at = rng.randrange(0, n - 3)
            size = rng.randint(3, n - at)
            ids += pool[at:at + size]
            w += [0.0] * gap + [0.0, 0.0] + [1.0] * (size - 2)
        return ids[:length], w[:length]

    def pairs(self, length):
        """Key-value pairs of arbitrary tokens; a pair seen before carries the loss on its value."""
        rng = self.rng
        count = rng.randint(3, max(4, min(length // 5, 48)))
        seen, ids, w = [], [BOS], [0.0]
        keys = rng.sample(self.alphabet(), count)
        while len(ids) < length:
            if len(seen) < count and (len(seen) < 2 or rng.random() < 0.5):
                seen.append((keys[len(seen)], self.random_token()))
                ids += seen[-1]
                w += [0.0, 0.0]
            else:
                ids += rng.choice(seen)
                w += [0.0, 1.0]
        return ids[:length], w[:length]

    def value(self, digits):
        return "".join(self.rng.choice("0123456789") for _ in range(digits))

    def state(self, shape, key, value, asked):
        """Tokens and weights of one statement of a fact, or of its repetition when asked."""
        head = self.encode(shape[0].format(k=key))
        digits = self.encode(value)
        tail = self.encode(shape[1])
        weights = [FIRST] + [ANSWER] * (len(digits) - 1) if asked else [0.0] * len(digits)
        known = 0.4 if asked else 0.1
        return (head + digits + tail, [known * 0.4] * len(head) + weights + [known] * len(tail))

    def facts(self, length, filler):
        """Text with facts stated and asked again at random distances.

        filler: the mean number of text tokens between two events; 0 packs facts densely.
        """
        rng = self.rng
        one_shape = rng.random() < 0.7
        shapes = LADDER if rng.random() < (0.15 if filler else 0.5) else SHAPES
        shape = rng.choice(shapes)
        digits = rng.choice((4, 4, 5, 3) if filler else (1, 2, 3, 4))
        most = rng.randint(2, max(3, min(16, length // 30 + 3)))
        known, ids, w = [], [BOS], [0.0]
        names = rng.sample(self.keys, most)
        text, at = (self.words(length), 0) if filler else ([], 0)
        while len(ids) < length:
            if filler:
                stop = at + int(rng.expovariate(1.0 / filler)) + 1
                while stop < length - 1 and stop < at + 4 * filler and text[stop - 1] not in self.stops:
                    stop += 1
                ids += text[at:stop]
                w += [1.0] * len(text[at:stop])
                at = stop
            fresh = len(known) < most and (not known or rng.random() < (0.8 if len(known) < 3 else 0.3))
            if fresh:
                s = shape if one_shape else rng.choice(shapes)
                known.append((s, names[len(known)], self.value(digits)))
                a, b = self.state(*known[-1], False)
            elif rng.random() < 0.15:
                a, b = self.question(rng.choice(known))
            else:
                a, b = self.state(*rng.choice(known), True)
            ids, w = ids + a, w + b
        return ids[:length], w[:length]

    def question(self, fact):
        (head, tail), key, value = fact
        ask = self.encode(f" What is {key}?")
        a, b = self.state((head, tail), key, value, True)
        return ask + a, [0.1] * len(ask) + b

    def passkey(self, length, low=0.0):
        """One pass key early in a text and the question at the end of the row."""
        rng = self.rng
        shape = rng.choice(PASSKEY_SHAPES)
        value = self.value(5)
        a, b = self.state(shape, "", value, False)
        q, qw = self.state(shape, "", value, True)
        ask = self.encode(" What is" + shape[0].lower().replace(" is ", "?"))
        room = length - 1 - len(a) - len(q) - len(ask)
        if room < 4:
            return self.pairs(length)
        at = int(room * rng.uniform(low, 1.0) ** 2)
        text = self.words(room)
        ids = [BOS] + text[:at] + a + text[at:] + ask + q
        w = [0.0] + [1.0] * at + b + [1.0] * (room - at) + [0.1] * len(ask) + qw
        return ids, w

    def turn(self, user, assistant, weight=1.0, answer_mask=None):
        u = [USER] + self.encode(user) + [END, ASSISTANT]
        a = self.encode(assistant)
        w = [0.1] + [USER_TEXT] * (len(u) - 3) + [0.5, 0.0]
        if answer_mask is None:
            aw = [weight] * len(a)
        else:
            digit = [self.tok.id_to_token(i).isdigit() for i in a]
            aw = [answer_mask if d else weight for d in digit]
            if True in digit:
                aw[digit.index(True)] = FIRST
        return u + a + [END], w + aw + [1.0]

    def remember(self):
        """Turns that state facts, and turns that ask for them."""
        rng = self.rng
        n = rng.choice((1, 1, 2, 3))
        facts = [(k, self.value(rng.choice((4, 5)))) for k in rng.sample(self.keys, n)]
        thing = rng.choice(("code", "code", "number", "secret code"))
        told = " ".join(f"The {thing} of {k} is {v}." for k, v in facts)
        head = rng.choice(("Remember: ", "Please remember: ", ""))
        told = head + (told[0].lower() + told[1:] if head else told)
        ids, w = self.turn(told, rng.choice(("I will remember it.", "Yes, I will remember.")))
        for i, t in enumerate(ids):  # the stated digits cannot be predicted
            if self.tok.id_to_token(t).isdigit():
                w[i] = 0.0
        asks = []
        for k, v in rng.sample(facts, min(len(facts), 2)):
            asks.append(self.turn(rng.choice((f"What is the {thing} of {k}?",
                                              f"Tell me the {thing} of {k}.")),
                                  f"The {thing} of {k} is {v}.", 1.0, ANSWER))
        if n == 1 and rng.random() < 0.4:  # statement and question in one message
            k, v = facts[0]
            q = f"{told} What is the {thing} of {k}?"
            ids, w = self.turn(q, f"The {thing} of {k} is {v}.", 1.0, ANSWER)
            at = ids.index(END)
            w[:at] = [0.0] * at
            asks = []
        return (ids, w), asks

    def chat(self, length):
        """A conversation: facts to remember are asked for after other exchanges."""
        rng = self.rng
        ids, w, pending = [BOS], [0.0], []
        while len(ids) < length:
            if pending and rng.random() < 0.5:
                a, b = pending.pop()
            elif rng.random() < 0.3:
                (a, b), asks = self.remember()
                pending += asks
            else:
                a, b = self.turn(*chat_data.exchange(rng, self.answers))
            ids, w = ids + a, w + b
            if rng.random() < 0.12 and len(ids) < length:
                ids, w, pending = ids + [EOS, BOS], w + [0.5, 0.0], []
        return ids[:length], w[:length]

    def row(self, kind, length):
        if kind == "text":
            return self.text(length)
        if kind == "rep":
            return self.repetition(length)
        if kind == "pairs":
            return self.pairs(length)
        if kind == "dense":
            return self.facts(length, 0)
        if kind == "facts":
            return self.facts(length, self.rng.choice((6, 15, 40, 100)))
        if kind == "passkey":
            return self.passkey(length)
        if kind == "chat":
            return self.chat(length)
        raise ValueError(kind)
