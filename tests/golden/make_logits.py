#!/usr/bin/env python3
"""Regenerates tests/golden/logits: small random checkpoints and what transformers computes with them.

    python3 tests/golden/make_logits.py

Runs itself in .venv/golden, which it makes with the pinned packages below (about 5 GB, as torch
brings its CUDA libraries along; no GPU is used). Each directory has a checkpoint as save_pretrained
writes it and expected.safetensors:
    tokens          [n] I32
    logits          [n, vocab] F32   after each token, everything in float32
    logits_bf16_kv  [n, vocab] F32   the same, but keys and values rounded to bf16 before attention,
                                     as a bf16 KV cache does it
Weights are bf16 numbers whatever the file's dtype, so that rounding them to bf16 on loading loses
nothing, and are drawn wide enough that attention is sharp and a wrong rotation or mask shows.
"""

import os
import pathlib
import subprocess
import sys

PACKAGES = ["torch==2.6.0", "transformers==4.57.1", "safetensors==0.6.2", "numpy==1.26.4"]
ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv" / "golden"
TOKENS = 40


def enter_venv():
    """Replaces this process by the same one in the pinned environment."""
    python = VENV / "bin" / "python3"
    if pathlib.Path(sys.prefix) == VENV:
        return
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", *PACKAGES], check=True)
    os.execv(str(python), [str(python), *sys.argv])


SHAPE = dict(vocab_size=256, hidden_size=64, intermediate_size=88, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
             rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, pad_token_id=None)


def cases():
    """name: (config class, changes to SHAPE, dtype of the file, greatest shard)"""
    from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config
    return {
        "llama2_f32": (LlamaConfig, dict(num_key_value_heads=4), "float32", None),
        "llama3_sharded": (LlamaConfig, dict(
            rope_theta=500000.0, eos_token_id=[2, 5], rope_scaling=dict(
                rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                original_max_position_embeddings=64)), "bfloat16", "80KB"),
        "llama_tied_bias_f16": (LlamaConfig, dict(
            tie_word_embeddings=True, attention_bias=True, mlp_bias=True), "float16", None),
        "llama_linear": (LlamaConfig, dict(
            vocab_size=250, num_key_value_heads=1,
            rope_scaling=dict(rope_type="linear", factor=4.0)),
                         "bfloat16", None),
        "mistral_window": (MistralConfig, dict(head_dim=32, sliding_window=12), "bfloat16", None),
        "qwen2_window": (Qwen2Config, dict(
            rope_theta=1e6, use_sliding_window=True, sliding_window=7, max_window_layers=1),
                         "bfloat16", None),
        "qwen2_yarn": (Qwen2Config, dict(tie_word_embeddings=True, hidden_size=96, rope_scaling=dict(
            rope_type="yarn", factor=4.0, original_max_position_embeddings=32)), "bfloat16", None),
        "qwen3_f32": (Qwen3Config, dict(
            head_dim=32, rope_theta=1e6, num_key_value_heads=1, tie_word_embeddings=True),
                      "float32", None),
        "qwen3_bias": (Qwen3Config, dict(head_dim=24, attention_bias=True), "bfloat16", None),
    }


def register_bf16_kv():
    """An attention that sees keys and values as a bf16 cache would give them back."""
    import torch
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask
    from transformers.models.llama.modeling_llama import eager_attention_forward

    def attention(module, query, key, value, *args, **kwargs):
        key, value = (x.to(torch.bfloat16).float() for x in (key, value))
        return eager_attention_forward(module, query, key, value, *args, **kwargs)

    AttentionInterface.register("bf16_kv", attention)
    AttentionMaskInterface.register("bf16_kv", eager_mask)


def draw_weights(model, generator):
    import torch
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith("norm.weight"):
                value = 1 + 0.3 * noise
            elif weight.dim() == 1:
                value = 0.5 * noise
            elif "embed_tokens" in name:
                value = 0.5 * noise
            else:
                sharp = 1.6 if "q_proj" in name or "k_proj" in name else 1.0
                value = sharp * noise * weight.shape[1] ** -0.5
            value = value.to(torch.bfloat16).float()
            # A normal number of f16 too.
            weight.copy_(torch.where(value.abs() < 2**-14, torch.zeros(()), value))


def make(name, config_class, changes, dtype, shard, seed):
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM
    config = config_class(**{**SHAPE, **changes})
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    draw_weights(model, generator)
    model.tie_weights()
    tokens = torch.randint(0, config.vocab_size, (1, TOKENS), generator=generator)
    expected = {"tokens": tokens[0].to(torch.int32)}
    with torch.no_grad():
        for key, attention in [("logits", "eager"), ("logits_bf16_kv", "bf16_kv")]:
            model.set_attn_implementation(attention)
            expected[key] = model(tokens, use_cache=False).logits[0].contiguous()
    model.set_attn_implementation("eager")
    directory = ROOT / "tests" / "golden" / "logits" / name
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    model.to(getattr(torch, dtype)).save_pretrained(directory, max_shard_size=shard or "1GB")
    save_file(expected, directory / "expected.safetensors")
    difference = (expected["logits"] - expected["logits_bf16_kv"]).abs().max().item()
    print(f"{name}: logits up to {expected['logits'].abs().max():.2f}, "
          f"standard deviation {expected['logits'].std():.2f}, bf16 KV changes {difference:.4f}")


def main():
    import torch
    torch.set_num_threads(1)
    register_bf16_kv()
    for seed, (name, (config_class, changes, dtype, shard)) in enumerate(cases().items()):
        make(name, config_class, changes, dtype, shard, seed + 1)


if __name__ == "__main__":
    enter_venv()
    main()
