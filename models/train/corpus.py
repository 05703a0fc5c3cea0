"""The text sources as lists of plain-text documents, split once and for all into train and held out.

A document is about a page: a run of paragraphs of a novel, a chapter of the Bible, a page of
dictionary entries. Every 33rd document is held out, by position, so the split needs no seed.
"""

import gzip
import pathlib
import re
import zlib

HELD_OUT_EVERY = 33
HELD_OUT_AT = 16
PAGE_BYTES = 12000
AUSTEN = "root/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
WORDNET = "root/usr/share/wordnet"
COARSE = re.compile(r"obscene|offensive|slang|disparag|vulgar|sexual|slur|insult|feces|genital|urin")
DEVIL = "root/usr/share/dictd/devil.dict.dz"


def definitions(sources, first, count):
    """Like nouns, for questions: short meanings; the words of `first`, then the commonest."""
    def shorten(meaning):
        return re.sub(r"\s*\([^)]*\)", "", meaning).split(";")[0].strip()

    every = nouns(sources, 1 << 30, 110, shorten)
    meaning = dict(every)
    return [(w, meaning[w]) for w in first if w in meaning] + every[:count]


def _pages(paragraphs, joiner):
    """Groups paragraphs into documents of about PAGE_BYTES."""
    out, page, size = [], [], 0
    for p in paragraphs:
        page.append(p)
        size += len(p) + 1
        if size >= PAGE_BYTES:
            out.append(joiner.join(page))
            page, size = [], 0
    if page:
        out.append(joiner.join(page))
    return out


def _plain(text):
    """Typographic characters to ASCII, underscores of emphasis dropped."""
    table = {"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2014": "--", "_": ""}
    return text.translate({ord(k): v for k, v in table.items()})


def _string_vectors(data):
    """String vectors of an R lazy-load database: [u32 size][zlib of an XDR STRSXP] ..."""
    at = 0
    while at + 8 < len(data):
        inflate = zlib.decompressobj()
        raw = inflate.decompress(data[at + 4:])
        at += len(data) - at - len(inflate.unused_data)
        if raw[:2] != b"X\n":
            continue
        i = 14 + 4 + int.from_bytes(raw[14:18], "big")  # versions, then the native encoding
        count = int.from_bytes(raw[i + 4:i + 8], "big")
        i += 8
        lines = []
        for _ in range(count):
            size = max(0, int.from_bytes(raw[i + 4:i + 8], "big", signed=True))
            lines.append(raw[i + 8:i + 8 + size].decode("utf-8", "replace"))
            i += 8 + size
        yield lines


def austen(sources):
    """Six novels by Jane Austen, one paragraph per line."""
    docs = []
    for lines in _string_vectors((sources / AUSTEN).read_bytes()):
        text = _plain("\n".join(lines))
        paragraphs = [re.sub(r"\s+", " ", p).strip() for p in re.split(r"\n\s*\n", text)]
        docs += _pages([p for p in paragraphs if p], "\n")
    return docs


def bible(sources):
    """The King James Bible, one document per chapter, verse numbers dropped."""
    chapters, last = [], None
    for line in (sources / "kjv.txt").read_text("utf-8", "replace").splitlines():
        m = re.match(r"(\S+?):\d+ (.*)", line)
        if not m:
            continue
        if m.group(1) != last:
            chapters.append([])
            last = m.group(1)
        chapters[-1].append(m.group(2).strip())
    return [" ".join(c) for c in chapters]


def devil(sources):
    """The Devil's Dictionary, entries as paragraphs."""
    text = gzip.open(sources / DEVIL).read().decode("latin-1")
    text = text[text.find("PREFACE"):]
    paragraphs = [re.sub(r"\s+", " ", p).strip() for p in re.split(r"\n\s*\n", _plain(text))]
    return _pages([p for p in paragraphs if p], "\n")


def wordnet_senses(sources, part):
    """Yields (words, gloss, examples) of every synset of data.<part>, in file order."""
    for line in (sources / WORDNET / f"data.{part}").read_text("latin-1").splitlines():
        if line.startswith("  ") or " | " not in line:
            continue
        head, gloss = line.split(" | ", 1)
        fields = head.split()
        count = int(fields[3], 16)
        words = [re.sub(r"\(.*?\)", "", w).replace("_", " ") for w in fields[4:4 + 2 * count:2]]
        examples = re.findall(r'"([^"]+)"', gloss)
        meaning = re.sub(r'[;:,]?\s*"[^"]*"', "", gloss).strip(" ;:")
        meaning = re.sub(r"^\([^)]*\)\s*", "", meaning)
        if meaning and not COARSE.search(gloss):
            yield fields[0], words, meaning, examples


def sentence(text):
    """Capital at the start, full stop at the end."""
    text = text.strip()
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else text + "."


def wordnet(sources):
    """Glosses and example sentences as running entries."""
    entries = []
    for part in ("noun", "verb", "adj", "adv"):
        for _, words, meaning, examples in wordnet_senses(sources, part):
            body = " ".join(sentence(e) for e in examples[:3] if len(e) > 12)
            entries.append(f"{words[0]}: {meaning}. {body}".strip())
    # Neighbours in the file are alike; a stride mixes them and still needs no seed.
    stride = 7919
    mixed = [entries[i * stride % len(entries)] for i in range(len(entries))]
    return _pages(mixed, "\n")


def load(sources):
    """{source: (train documents, held-out documents)}"""
    sources = pathlib.Path(sources)
    out = {}
    for name, reader in (("austen", austen), ("bible", bible), ("wordnet", wordnet),
                         ("devil", devil)):
        docs = reader(sources)
        held = docs[HELD_OUT_AT::HELD_OUT_EVERY]
        train = [d for i, d in enumerate(docs) if i % HELD_OUT_EVERY != HELD_OUT_AT]
        out[name] = (train, held)
    return out


def nouns(sources, limit=6000, longest=120, shorten=lambda meaning: meaning):
    """[(word, meaning)]: the first sense of the commonest one-word nouns."""
    sources = pathlib.Path(sources)
    senses = {offset: m for offset, _, m, _ in wordnet_senses(sources, "noun")}
    counts = {}
    for line in (sources / WORDNET / "cntlist.rev").read_text("latin-1").splitlines():
        key, number, count = line.split()
        word, rest = key.split("%")
        if rest.startswith("1:") and number == "1":
            counts[word] = int(count)
    out = []
    for line in (sources / WORDNET / "index.noun").read_text("latin-1").splitlines():
        if line.startswith("  "):
            continue
        f = line.split()
        offset = f[6 + int(f[3])]
        meaning = shorten(senses.get(offset, ""))
        if re.fullmatch(r"[a-z]{3,12}", f[0]) and meaning and len(meaning) < longest:
            out.append((counts.get(f[0], 0), f[0], meaning))
    out.sort(key=lambda e: (-e[0], e[1]))
    return [(w, m) for _, w, m in out[:limit]]
