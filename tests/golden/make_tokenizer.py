#!/usr/bin/env python3
"""Writes tests/golden/tokenizer/: small tokenizers of every supported kind, and what the reference
implementation (the `tokenizers` package) makes of a set of difficult texts.

Usage: tests/golden/make_tokenizer.py   (creates its own environment under .venv/)
"""
import json
import os
import pathlib
import random
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv" / "golden-tokenizer"
PACKAGES = ["tokenizers==0.21.0", "jinja2==3.1.6"]
OUT = pathlib.Path(__file__).resolve().parent / "tokenizer"


def enter_environment():
    python = VENV / "bin" / "python"
    if pathlib.Path(sys.prefix) != VENV:
        if not python.exists():
            subprocess.check_call([sys.executable, "-m", "venv", str(VENV)])
            subprocess.check_call([str(python), "-m", "pip", "-q", "install", *PACKAGES])
        os.execv(python, [str(python), *sys.argv])


enter_environment()
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers  # noqa: E402
from tokenizers import pre_tokenizers, processors, trainers  # noqa: E402

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
DEEPSEEK3 = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
    r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
]
SPACE = "\u2581"

TRAINING = (
    """
The water of the river turns the wheel, and the wheel turns the stone that grinds the corn.
I'll say that we've seen what they're doing; it's not what he'd do, and I'm sure you don't mind.
In 1923 there were 4567 mills, in 2024 only 89. 3.14159 is not 22/7. Call 555-0199, room 12b.
def grind(corn, speed=3):\n    if corn is None:\n        return 0\n    return corn * speed  # kg\n
<p class="note">A & B &amp; C</p> {"key": [1, 2, 3], "other": {"x": null}} ~/.config/x.yaml
Der Fluß treibt die Mühle, und die Müllerin zählt die Säcke. Größe, Übermut, schön, Straße.
Le moulin à eau tourne lentement près du château ; l'été, la rivière est presque à sec. Ça va ?
El molino de agua gira despacio; mañana será otro día. ¿Cuántos años tienes? ¡Qué bien!
Водяная мельница стоит на берегу реки, и мельник считает мешки с мукой каждый вечер.
水車は川の水で回り、石が麦を挽く。きょうは天気がいいですね。カタカナも少し。
水磨坊在河边,水流推动轮子,石头磨碎麦子。今天天气很好,我们去看看吧。
물레방아는 강물로 돌아가고 돌은 밀을 간다. 오늘은 날씨가 좋습니다.
الطاحونة المائية تدور ببطء على ضفة النهر كل يوم.
नदी के किनारे पानी की चक्की धीरे धीरे घूमती है।
😀 😃 👍🏽 👨‍👩‍👧 🇩🇪 ❤️ ✅ 🚀🚀🚀 -- ok --- ok ---- ok
"""
    * 3
)

TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "\t\n\r\n ",
    "a",
    " a",
    "a ",
    "  a  b   c    d     ",
    "The water of the river turns the wheel.",
    "Hello, World! It's 12345 o'clock; I'LL we'VE THEY'RE don'T x'S",
    "'s 't 're 've 'm 'll 'd 'S 'ſ it's'll",
    "0 1 12 123 1234 12345 123456 1,234,567.89 1e-10 ½ ² Ⅷ ٣٤ 四",
    "def f(x):\n    return x ** 2\n\n\nclass A:\n\tpass\n",
    "a\n\n\n\nb\r\n\r\nc\rd\n \n  \n\t\ne   \n",
    "trailing spaces   \nand tabs\t\t\n  leading",
    "Der Fluß treibt die Mühle. Straße STRASSE ß ẞ",
    "e\u0301 vs \u00e9, A\u030a vs \u00c5 vs \u212b, \ufb01 \u1e9b\u0323 q\u0323\u0307 q\u0307\u0323",
    "\u1112\u1161\u11ab\u1100\u1173\u11af = 한글, \u0915\u093c \u0958",
    "a\u0300\u0301\u0302\u0303\u0304\u0305\u0316\u0317 zalgo h\u0335\u0321e\u0336y",
    "水車は川の水で回り、石が麦を挽く。Mixed日本語and한국어text中文123字",
    "Водяная мельница МЕЛЬНИЦА стоит",
    "الطاحونة المائية 123 ١٢٣",
    "😀😃👍🏽👨‍👩‍👧🇩🇪❤️✅🚀🚀🚀 emoji🙂inside🙃text",
    "\U00020000\U0001F9FF\U000E0041\ue000\ufffd\ufffe\ufeffBOM",
    "zero\u200bwidth\u200djoin\u00adsoft\u2060word \u00a0nbsp\u2003em\u3000wide\u180emvs\u0085nel\u2028ls",
    "control \x00\x01\x02\x1b[31mred\x7f\x80\x9f",
    "<s>hello</s> <unk> <|endoftext|> <|im_start|>user\nhi<|im_end|> [INST] x [/INST]",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>",
    "<think>\nhm\n</think>\n\nok <|im_end|><|im_end|> <|im_|im_end|>",
    "<0x41><0xE2><0x0A> <0xZZ>",
    "left  LSTRIP  right RSTRIP  done xBOTHx  BOTH  y WORD words WORDy aWORD WORD.",
    "\u00e9norm e\u0301norm NORM norm \u2581norm",
    "\u2581\u2581a\u2581b \u2581 c",
    "http://example.org/a_b-c?d=e&f=%20#g user@example.org C:\\dir\\file.txt",
    '{"key": [1, 2.5, null, true], "text": "a\\nb \\u00e9"}',
    "!!!???...,,,;;;:::---___***###@@@$$$%%%^^^&&&((()))[[[]]]",
    "a" * 300,
    " " * 100 + "x" + " " * 99 + "\n" * 50 + "y",
    "ab" * 150 + "the" * 60,
    "é" * 120 + "水" * 80 + "😀" * 30,
    "\u0301" * 70,
    "A" * 40 + "a" * 40 + "A" * 3,
    "x" * 47 + " " + "x" * 48 + " " + "x" * 49,
    "\u01c5\u01c6 \u02b0\u02b1 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u0939\u093f\u0928\u094d\u0926\u0940 \u05e9\u05dc\u05d5\u05dd",
]

# Digits of many scripts, long runs of them, punctuation and symbols of many scripts, and letters with
# bytes that GPT-2's alphabet spells as numbers (B2, B3, B9, BC, BD, BE).
DIGIT_TEXTS = [
    "7 77 777 7777 77777 777777 " + "1234567890" * 7,
    "a1b22c333d4444e55555, 1,000,000.00 (100%) $99 #1234 1st 2nd 0x1F 2024-11-28T09:45:51Z",
    "\u0663\u0664\u0665 \u0967\u0968\u0969\u096a \uff11\uff12\uff13\uff14 \u09e6\u09e7 \U0001d7d8\U0001d7d9\U0001d7da "
    "\u2460\u2461 \u2160\u2161 \u00b2\u00b3\u00b9 \u00bc\u00bd\u00be 1\u00bd 2\u00b2 12\u0663456",
    "\u00fc \u00bc\u00fc \u00f2\u00f3\u00f9 M\u00fchle \u0148\u043c\u043d\u043e\u0432\u0433\u0439 \u6c34\u8eca 1\u00fc2 12\u04323 \u00fc123",
    "\u00a1Hola! \u00abni\u00bb \u201eja\u201c \u2014 \u2026 \u00a7 1 \u00b6 2 \u20ac !\u20ac \u20ac! $$ !$ ^^ ~` <|> ++ \u00d7\u00f7 \u2212",
    "\u3002\u3001\u300c\u6c34\u300d\uff01\uff1f \u061f\u060c \u0964\u0965 \u05be \u1362 \u2e43\u2e4f\u166d \u09fd !\u2e52 \U0001144b.",
    "  !  .  1   2\t\t3 \n 4\n\n5 \u00a0!\u00a01\u3000\u3002\u30001",
    "\U0001F680!\U0001F680 1\ufe0f\u20e3 \U0001F1E9\U0001F1EA123 \u2764\ufe0f\u2764 100\U0001F4AF\U0001F4AF",
    ">>TITLE<<12345>>ABSTRACT<< x<|endoftext|>y >> 1 <<",
]

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz ",
    "the water of river turns wheel \n",
    " \t\n\r\u00a0\u2003\u3000",
    "0123456789.,+-½²Ⅷ٣",
    "ABC abc 'stmdrevl",
    "éèüßñçøåÅŒÆ",
    "e\u0301\u0300\u0323\u0327a\u030a",
    "水車川石麦我们去看看きょうカタカナ한국어\u1112\u1161\u11ab",
    "водяная мельница",
    "😀👍🏽👨\u200d👩❤\ufe0f🇩🇪",
    "\u2581_ <>|[]/s",
    "\x00\x01\x7f\u0080\u200b\ufeff\ufffd\U0010ffff",
    "!?.,;:-_*#@$%^&()[]{}",
]


def random_text(rng, words):
    parts = []
    for _ in range(rng.randint(1, 12)):
        if rng.random() < 0.12:
            parts.append(rng.choice(words))
            continue
        alphabet = rng.choice(ALPHABETS)
        parts.append("".join(rng.choice(alphabet) for _ in range(rng.randint(1, 9))))
    return "".join(parts)


def special(*contents):
    return [AddedToken(c, special=True, normalized=False) for c in contents]


def train(tokenizer, tokens=(), vocab=640, alphabet=None):
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        show_progress=False,
        special_tokens=list(tokens),
        initial_alphabet=alphabet or [],
        min_frequency=2,
    )
    tokenizer.train_from_iterator(TRAINING.splitlines(keepends=True), trainer)
    return tokenizer


def byte_level(pre_tokenizer, specials, normalizer=None, vocab=640):
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    # Special tokens stand behind the vocabulary, as in the published files.
    train(tokenizer, vocab=vocab, alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.add_special_tokens(special(*specials))
    return tokenizer


def split(*patterns):
    parts = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in patterns]
    parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    return pre_tokenizers.Sequence(parts)


def sentencepiece(specials, byte_fallback=True, vocab=900, **pipeline):
    tokens = list(specials) + ([f"<0x{b:02X}>" for b in range(256)] if byte_fallback else [])
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=byte_fallback))
    for name, part in pipeline.items():
        setattr(tokenizer, name, part)
    # Without a pre-tokenizer the trainer would learn whole lines.
    if "pre_tokenizer" not in pipeline:
        tokenizer.pre_tokenizer = pre_tokenizers.Split(SPACE, behavior="merged_with_next")
    train(tokenizer, tokens, vocab)
    data = json.loads(tokenizer.to_str())
    if "pre_tokenizer" not in pipeline:
        data["pre_tokenizer"] = None
    data["added_tokens"] = [t for t in data["added_tokens"] if t["content"] in specials]
    return Tokenizer.from_str(json.dumps(data))


def bos(tokenizer, token, bos_id):
    return processors.TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token}:1 $B:1", special_tokens=[(token, bos_id)]
    )


def spm_decoder(strip=1):
    parts = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if strip:
        parts.append(decoders.Strip(" ", strip, 0))
    return decoders.Sequence(parts)


def make_gpt2():
    pre = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return byte_level(pre, ["<|endoftext|>"]), {"bos_token": "<|endoftext|>"}


def make_llama3():
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
             "<|eot_id|>"]
    tokenizer = byte_level(split(LLAMA3), names)
    first = tokenizer.token_to_id(names[0])
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=True), bos(tokenizer, names[0], first)]
    )
    data = json.loads(tokenizer.to_str())
    data["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(data)), {"bos_token": names[0], "eos_token": names[4]}


def make_qwen():
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = byte_level(split(QWEN2), names, normalizers.NFC())
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ("<think>", "</think>")])
    return tokenizer, {"eos_token": {"content": "<|im_end|>"}, "pad_token": "<|endoftext|>",
                       "bos_token": None}


def make_o200k():
    return byte_level(split(O200K), ["<|endoftext|>"]), {"eos_token": "<|endoftext|>"}


def make_deepseek():
    return byte_level(split(*DEEPSEEK3), ["<|end|>"]), {"eos_token": "<|end|>"}


def make_starcoder():
    pre = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True),
         pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)]
    )
    return byte_level(pre, ["<|endoftext|>"]), {"eos_token": "<|endoftext|>"}


def make_falcon():
    """Learned from whole lines, so that every boundary that the pre-tokenizer sets changes ids."""
    lines = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    names = [">>TITLE<<", ">>ABSTRACT<<", "<|endoftext|>"]
    tokenizer = with_merges_of_spaces(byte_level(lines, names, vocab=900))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation("contiguous"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
         pre_tokenizers.Digits(individual_digits=False),
         pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated")]
    )
    return tokenizer, {"bos_token": names[2], "eos_token": names[2]}


def with_merges_of_spaces(tokenizer):
    """Adds tokens of a space and any byte, and of any digit or space and another one."""
    data = json.loads(tokenizer.to_str())
    model = data["model"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [("\u0120", a) for a in alphabet] + [(a, b) for a in "0123456789" for b in "0123456789"]
    known = {tuple(m) for m in model["merges"]}
    for pair in pairs:
        if pair not in known:
            model["merges"].append(list(pair))
            model["vocab"].setdefault("".join(pair), len(model["vocab"]))
    for i, token in enumerate(data["added_tokens"]):
        token["id"] = len(model["vocab"]) + i
    return Tokenizer.from_str(json.dumps(data))


def make_flags():
    tokenizer = byte_level(split(GPT2), [], normalizers.NFC())
    tokenizer.add_special_tokens(
        [AddedToken("LSTRIP", lstrip=True, normalized=False),
         AddedToken("RSTRIP", rstrip=True, normalized=False),
         AddedToken("BOTH", lstrip=True, rstrip=True, normalized=True)]
    )
    tokenizer.add_tokens(
        [AddedToken("WORD", single_word=True, normalized=False),
         AddedToken("e\u0301norm", normalized=True), AddedToken("norm", normalized=False),
         AddedToken("\n\n", normalized=False), AddedToken("\n\n\n\n", normalized=False)]
    )
    return tokenizer, {}


def make_llama2():
    names = ["<unk>", "<s>", "</s>"]
    tokenizer = sentencepiece(
        names,
        normalizer=normalizers.Sequence(
            [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]),
        decoder=spm_decoder(),
    )
    tokenizer.post_processor = bos(tokenizer, "<s>", 1)
    return tokenizer, {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "unk_token": "<unk>"}


def make_mistral():
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    tokenizer = sentencepiece(
        names,
        pre_tokenizer=pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False),
        decoder=spm_decoder(),
        vocab=700,
    )
    tokenizer.post_processor = bos(tokenizer, "<s>", 1)
    return tokenizer, {"bos_token": "<s>", "eos_token": "</s>"}


def make_gemma():
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    tokenizer = sentencepiece(
        names,
        normalizer=normalizers.Replace(" ", SPACE),
        pre_tokenizer=pre_tokenizers.Split(" ", behavior="merged_with_previous"),
        decoder=spm_decoder(strip=0),
        vocab=700,
    )
    tokenizer.add_tokens([AddedToken("\n" * n, normalized=False) for n in (2, 3, 4, 8)])
    tokenizer.add_tokens([AddedToken(SPACE * n, normalized=False) for n in (2, 4)])
    tokenizer.post_processor = bos(tokenizer, "<bos>", 2)
    return tokenizer, {"bos_token": "<bos>", "eos_token": "<eos>"}


def make_metaspace_unk():
    """No byte fallback: unknown characters are fused into one <unk>."""
    tokenizer = sentencepiece(
        ["<unk>", "<s>"],
        byte_fallback=False,
        pre_tokenizer=pre_tokenizers.Metaspace(SPACE, prepend_scheme="always", split=True),
        decoder=decoders.Metaspace(SPACE, prepend_scheme="always", split=True),
        vocab=500,
    )
    data = json.loads(tokenizer.to_str())
    # A few characters become unknown, some of them inside of merges.
    lost = set("qzxкЖ🚀年가")
    kept = {t: i for t, i in data["model"]["vocab"].items() if not lost & set(t)}
    data["model"]["vocab"] = {t: i for i, t in enumerate(kept)}
    data["model"]["merges"] = [m for m in data["model"]["merges"] if not lost & set("".join(m))]
    for token in data["added_tokens"]:
        token["id"] = data["model"]["vocab"][token["content"]]
    return Tokenizer.from_str(json.dumps(data)), {"unk_token": "<unk>"}


def make_no_unk():
    """Neither fallback nor <unk>: unknown characters vanish, and their neighbours meet."""
    tokenizer, _ = make_metaspace_unk()
    data = json.loads(tokenizer.to_str())
    data["model"]["unk_token"] = None
    data["model"]["fuse_unk"] = False
    data["pre_tokenizer"]["split"] = False
    return Tokenizer.from_str(json.dumps(data)), {}


KINDS = {
    "gpt2": make_gpt2,
    "llama3": make_llama3,
    "qwen": make_qwen,
    "o200k": make_o200k,
    "deepseek": make_deepseek,
    "starcoder": make_starcoder,
    "falcon": make_falcon,
    "flags": make_flags,
    "llama2": make_llama2,
    "mistral": make_mistral,
    "gemma": make_gemma,
    "metaspace_unk": make_metaspace_unk,
    "no_unk": make_no_unk,
}
OLD_MERGES = {"gpt2", "llama2"}  # written as "a b", as files were before pairs


def encode(tokenizer, text, add_special, parse_special):
    tokenizer.encode_special_tokens = not parse_special
    return tokenizer.encode(text, add_special_tokens=add_special).ids


def case(tokenizer, index, text):
    ids = encode(tokenizer, text, True, True)
    out = {"text": index, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=True)}
    plain = encode(tokenizer, text, False, False)
    if plain != ids:
        out["plain_ids"] = plain
    shown = tokenizer.decode(ids, skip_special_tokens=False)
    if shown != out["decoded"]:
        out["decoded_all"] = shown
    if out["decoded"] == text:
        del out["decoded"]
    return out


def write(path, data, **kwargs):
    path.write_text(json.dumps(data, ensure_ascii=False, **kwargs) + "\n", encoding="utf-8")


def write_punctuation():
    """Writes the ranges of code points at which a Punctuation step splits."""
    step = pre_tokenizers.Punctuation("isolated")
    ranges = []
    for point in [*range(0xD800), *range(0xE000, 0x110000)]:
        if len(step.pre_tokenize_str(f"a{chr(point)}")) == 1:
            continue
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    write(OUT / "punctuation.json", ranges, separators=(",", ":"))


def main():
    rng = random.Random(7)
    words = ["<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>",
             "[INST]", "<|eot_id|>", "LSTRIP", "RSTRIP", "BOTH", "WORD", "norm", "\n\n", "<0x41>"]
    texts = TEXTS + [random_text(rng, words) for _ in range(80)] + DIGIT_TEXTS
    OUT.mkdir(exist_ok=True)
    write_punctuation()
    write(OUT / "texts.json", texts, indent=0)
    for name, make in KINDS.items():
        tokenizer, config = make()
        folder = OUT / name
        folder.mkdir(exist_ok=True)
        data = json.loads(tokenizer.to_str())
        if name in OLD_MERGES:
            data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]
        write(folder / "tokenizer.json", data, separators=(",", ":"))
        write(folder / "tokenizer_config.json", config)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        cases = [case(tokenizer, i, t) for i, t in enumerate(texts)]
        lines = ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases)
        (folder / "cases.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        print(name, tokenizer.get_vocab_size(), sum(len(c["ids"]) for c in cases))


if __name__ == "__main__":
    main()
