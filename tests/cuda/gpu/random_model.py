"""Writes checkpoints of the Llama family with random weights, of the shape that is asked for, and a
tokenizer whose first 256 ids are bytes."""

import json
import pathlib
import random
import struct

SHAPES = {
    "tiny": dict(hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
                 head_dim=64, vocab_size=512, max_position_embeddings=512),
    "llama-3-8b-quarter": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=8, num_attention_heads=32,
                               num_key_value_heads=8, head_dim=128, vocab_size=32768, max_position_embeddings=8192),
    "llama-3-8b": dict(hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                       num_key_value_heads=8, head_dim=128, vocab_size=128256, max_position_embeddings=8192),
}
RANDOM_BYTES = 64 << 20
ONE = b"\x80\x3f"  # in bf16


def random_weights():
    """64 MiB of bf16 numbers of both signs, from 1/128 to 1/32: of the size that trained weights have."""
    pick = random.Random(1)
    weights = bytearray(RANDOM_BYTES)
    weights[0::2] = pick.randbytes(RANDOM_BYTES // 2)
    weights[1::2] = pick.randbytes(RANDOM_BYTES // 2).translate(bytes(0x3C | byte & 0x80 for byte in range(256)))
    return memoryview(weights)


def tensors(shape):
    """Name and extents of each."""
    hidden, mlp, vocab = shape["hidden_size"], shape["intermediate_size"], shape["vocab_size"]
    queries, keys = (shape["head_dim"] * shape[heads] for heads in ("num_attention_heads", "num_key_value_heads"))
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(shape["num_hidden_layers"]):
        for name, extents in {"input_layernorm": (hidden,), "self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden),
                              "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, queries),
                              "post_attention_layernorm": (hidden,), "mlp.gate_proj": (mlp, hidden), "mlp.up_proj": (mlp, hidden),
                              "mlp.down_proj": (hidden, mlp)}.items():
            yield f"model.layers.{layer}.{name}.weight", extents
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)


def write_weights(shape, path):
    """Every tensor starts elsewhere in the same random numbers, and norms are ones."""
    header, end = {}, 0
    for name, extents in tensors(shape):
        begin, end = end, end + 2 * extents[0] * (extents[1] if len(extents) == 2 else 1)
        header[name] = {"dtype": "BF16", "shape": extents, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    weights, pick = random_weights(), random.Random(2)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, extents in tensors(shape):
            if len(extents) == 1:
                file.write(ONE * extents[0])
                continue
            left, at = 2 * extents[0] * extents[1], 2 * pick.randrange(RANDOM_BYTES // 2)
            while left > 0:
                piece = weights[at:at + left]
                file.write(piece)
                left, at = left - len(piece), 0


def byte_characters():
    """The character that byte-level tokenizers write for each byte, as GPT-2 does."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return [chr(byte) if byte in visible else chr(256 + hidden.index(byte)) for byte in range(256)]


def tokenizer(size):
    """Text is its bytes; ids from 256 on are what models alone say."""
    words = [*byte_characters(), *(f"w{number}" for number in range(256, size))]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "vocab": {word: number for number, word in enumerate(words)}, "merges": []}}


def write(name, folder):
    """The checkpoint of that shape."""
    shape, folder = SHAPES[name], pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu",
              "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, **shape}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(shape["vocab_size"])))
    write_weights(shape, folder / "model.safetensors")
