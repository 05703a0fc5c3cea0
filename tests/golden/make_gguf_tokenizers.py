#!/usr/bin/env python3
"""Writes tests/golden/gguf/: GGUF files of small tokenizers, and the ids that the reference
implementations (`tokenizers`, `transformers`, `sentencepiece`) give for the texts of
tests/golden/tokenizer/texts.json. Files whose tokenizer is one of tests/golden/tokenizer have no
ids of their own: they are those of the directory.

Usage: tests/golden/make_gguf_tokenizers.py   (creates its own environment under .venv/)
"""
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv" / "golden-gguf"
PACKAGES = ["gguf==0.19.0", "numpy==1.26.4", "transformers==4.57.1", "sentencepiece==0.2.0",
            "protobuf==5.29.5"]
GOLDEN = pathlib.Path(__file__).resolve().parent
OUT = GOLDEN / "gguf"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def enter_environment():
    python = VENV / "bin" / "python"
    if pathlib.Path(sys.prefix) != VENV:
        if not python.exists():
            subprocess.check_call([sys.executable, "-m", "venv", str(VENV)])
            subprocess.check_call([str(python), "-m", "pip", "-q", "install", *PACKAGES])
        os.execv(python, [str(python), *sys.argv])


enter_environment()
import gguf  # noqa: E402
import sentencepiece  # noqa: E402
from tokenizers import (  # noqa: E402
    AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers, processors)
from transformers import LlamaTokenizer  # noqa: E402
from transformers.convert_slow_tokenizer import convert_slow_tokenizer  # noqa: E402

TEKKEN = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
GPT4 = "|".join(
    [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
DEEPSEEK_CODER = ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"]
# The letters with a case, as DeepSeek-V2's tokenizer.json lists them, and signs.
DEEPSEEK_LLM = [
    "[\r\n]",
    r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽ"
    r"Ა-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼ"
    r"ℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
    r"\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+",
    r"\s+$",
    "[一-龥ࠀ-一가-퟿]+",
]
TEMPLATE = "{{ bos_token }}{% for message in messages %}[{{ message['content'] }}]{% endfor %}"


def write_gguf(name, model, tokens, types, **keys):
    writer = gguf.GGUFWriter(OUT / f"{name}.gguf", "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for key, value in keys.items():
        getattr(writer, f"add_{key}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_cases(name, tokenizer, texts):
    cases = []
    for index, text in enumerate(texts):
        tokenizer.encode_special_tokens = False
        ids = tokenizer.encode(text).ids
        case = {"text": index, "ids": ids}
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text, add_special_tokens=False).ids
        if plain != ids:
            case["plain_ids"] = plain
        decoded = tokenizer.decode(ids, skip_special_tokens=True)
        if decoded != text:
            case["decoded"] = decoded
        shown = tokenizer.decode(ids, skip_special_tokens=False)
        if shown != decoded:
            case["decoded_all"] = shown
        cases.append(case)
    lines = ",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases)
    (OUT / f"{name}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def byte_level(name, pre, kind, unused=0, **keys):
    """A file as llama.cpp's converter writes it for the tokenizer.json of `kind`."""
    data = json.loads((GOLDEN / "tokenizer" / kind / "tokenizer.json").read_text(encoding="utf-8"))
    added = {t["id"]: t for t in data["added_tokens"]}
    spelled = {i: t for t, i in data["model"]["vocab"].items()}
    spelled.update({i: t["content"] for i, t in added.items()})
    size = max(spelled) + 1
    assert sorted(spelled) == list(range(size))
    types = [NORMAL] * size
    for i, token in added.items():
        types[i] = CONTROL if token["special"] else USER_DEFINED
    tokens = [spelled[i] for i in range(size)] + [f"[PAD{size + i}]" for i in range(unused)]
    merges = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    write_gguf(name, "gpt2", tokens, types + [UNUSED] * unused, tokenizer_pre=pre,
               token_merges=merges, **keys)
    return data


def with_pipeline(data, steps, ignore_merges, bos=None):
    """The tokenizer of `data` with another split."""
    data["model"]["ignore_merges"] = ignore_merges
    data["normalizer"] = data["post_processor"] = None
    tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos[0]} $A", pair=None, special_tokens=[bos])
    return tokenizer


def split(patterns):
    return [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in patterns]


def raw_bytes():
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def make_byte_level(texts):
    byte_level("gpt2", "gpt-2", "gpt2", bos_token_id=640)
    byte_level("llama3", "llama-bpe", "llama3", bos_token_id=640, eos_token_id=644,
               chat_template=TEMPLATE)
    byte_level("qwen", "qwen2", "qwen", unused=3, eos_token_id=642, pad_token_id=640,
               add_bos_token=False)
    byte_level("deepseek", "deepseek-v3", "deepseek", eos_token_id=640, add_eos_token=False)
    byte_level("o200k", "gpt-4o", "o200k", eos_token_id=640, add_bos_token=False)

    byte_level("falcon", "falcon", "falcon", bos_token_id=1238, eos_token_id=1238)

    data = byte_level("smollm", "smollm", "gpt2", bos_token_id=640, add_eos_token=True,
                      eos_token_id=640)
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer = with_pipeline(
        data, [digits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)], False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", pair=None, special_tokens=[("<|endoftext|>", 640)])
    write_cases("smollm", tokenizer, texts)

    data = byte_level("tekken", "tekken", "o200k", bos_token_id=640)
    bos = (data["added_tokens"][0]["content"], 640)
    write_cases("tekken", with_pipeline(data, split([TEKKEN]) + [raw_bytes()], True, bos), texts)

    data = byte_level("deepseek_coder", "deepseek-coder", "deepseek", eos_token_id=640)
    steps = split(DEEPSEEK_CODER) + [digits, raw_bytes()]
    write_cases("deepseek_coder", with_pipeline(data, steps, False), texts)

    data = byte_level("deepseek_llm", "deepseek-llm", "deepseek", eos_token_id=640)
    steps = split(DEEPSEEK_LLM) + [digits, raw_bytes()]
    write_cases("deepseek_llm", with_pipeline(data, steps, False), texts)


def make_byte_level_of_more_families(texts):
    data = byte_level("glm4", "glm4", "llama3", bos_token_id=640, eos_token_id=644)
    write_cases("glm4", with_pipeline(data, split([GPT4]) + [raw_bytes()], False), texts)

    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    data = byte_level("olmo", "olmo", "gpt2", eos_token_id=640)
    tokenizer = with_pipeline(data, [words], False)
    tokenizer.normalizer = normalizers.NFC()
    write_cases("olmo", tokenizer, texts)


def training_texts():
    source = (GOLDEN / "make_tokenizer.py").read_text(encoding="utf-8")
    return re.search(r'TRAINING = \(\s*"""(.*?)"""', source, re.DOTALL).group(1).splitlines() * 3


def train_sentencepiece(folder):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(training_texts()), model_writer=model, model_type="bpe",
        vocab_size=900, byte_fallback=True, character_coverage=0.98, hard_vocab_limit=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, num_threads=1,
        pad_id=-1, minloglevel=2)
    path = pathlib.Path(folder) / "tokenizer.model"
    path.write_bytes(model.getvalue())
    return path


def kind_of(model, i):
    if model.is_unknown(i):
        return UNKNOWN
    if model.is_control(i):
        return CONTROL
    if model.is_byte(i):
        return BYTE
    return UNUSED if model.is_unused(i) else NORMAL


def reference(path, user_defined, **options):
    """The tokenizer as transformers converts it."""
    tokenizer = convert_slow_tokenizer(LlamaTokenizer(str(path), legacy=True, **options))
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in user_defined])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair=None, special_tokens=[("<s>", 1)])
    return tokenizer


def check_against_sentencepiece(model, tokenizer, texts):
    """The converted tokenizer gives SentencePiece's own ids where no token is spelled."""
    checked = 0
    for text in texts:
        if not text or "<" in text or "\0" in text:
            continue
        assert tokenizer.encode(text, add_special_tokens=False).ids == model.encode(text), text
        checked += 1
    assert checked > 80, checked


def make_sentencepiece(texts):
    user_defined = ["<think>", "</think>"]
    with tempfile.TemporaryDirectory() as folder:
        path = train_sentencepiece(folder)
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        size = model.get_piece_size()
        tokens = [model.id_to_piece(i) for i in range(size)] + user_defined + ["[PAD902]"]
        types = [kind_of(model, i) for i in range(size)] + [USER_DEFINED] * 2 + [UNUSED]
        scores = [model.get_score(i) for i in range(size)] + [-1000.0] * 2 + [-10000.0]
        keys = {"tokenizer_pre": "default", "token_scores": scores, "bos_token_id": 1,
                "eos_token_id": 2, "unk_token_id": 0}
        tokenizer = reference(path, user_defined)
        check_against_sentencepiece(model, reference(path, []), texts)
        write_gguf("sentencepiece", "llama", tokens, types, add_bos_token=True, **keys)
        write_cases("sentencepiece", tokenizer, texts)
        # As Gemma has them: lines and spaces that are tokens, too.
        more = ["\n\n", "   "]
        keys["token_scores"] = scores + [-1000.0] * 2
        write_gguf("sentencepiece_no_space", "llama", tokens + more, types + [USER_DEFINED] * 2,
                   add_space_prefix=False, **keys)
        write_cases("sentencepiece_no_space",
                    reference(path, user_defined + ["[PAD902]"] + more, add_prefix_space=False), texts)


def main():
    OUT.mkdir(exist_ok=True)
    texts = json.loads((GOLDEN / "tokenizer" / "texts.json").read_text(encoding="utf-8"))
    make_byte_level(texts)
    make_byte_level_of_more_families(texts)
    make_sentencepiece(texts)


if __name__ == "__main__":
    main()
