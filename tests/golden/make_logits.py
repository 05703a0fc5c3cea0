#!/usr/bin/env python3
"""Regenerates tests/golden/logits: small random checkpoints and what transformers computes with them.

    python3 tests/golden/make_logits.py [CASE ...]

Runs itself in .venv/golden, which it makes with the pinned packages below (about 5 GB, as torch
brings its CUDA libraries along; no GPU is used). Each directory has a checkpoint as save_pretrained
writes it and expected.safetensors:
    tokens          [n] I32
    logits          [n, vocab] F32   after each token, everything in float32
    logits_bf16_kv  [n, vocab] F32   the same, but keys and values rounded to bf16 before attention,
                                     as a bf16 KV cache does it
    mtp_logits, mtp_hidden           [n, vocab] and [n, hidden], of the layer for multi-token
                                     prediction, if there is one, with keys and values in bf16
Weights are bf16 numbers whatever the file's dtype, so that rounding them to bf16 on loading loses
nothing, and are drawn wide enough that attention is sharp and a wrong rotation or mask shows.
"""

import math
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


# The families that came later have smaller files.
SMALL = dict(vocab_size=96, intermediate_size=72)

# A window and an original context that end within the tokens, a ramp between pairs, and a limit that
# clamps some values.
GPT_OSS = dict(num_hidden_layers=4, head_dim=16, num_local_experts=8, num_experts_per_tok=3,
               sliding_window=6, swiglu_limit=1.5, rope_theta=100.0, rope_scaling=dict(
                   rope_type="yarn", factor=4.0, beta_fast=2.0, beta_slow=1.0, truncate=False,
                   original_max_position_embeddings=32))


def cases():
    """name: (config class, changes to SHAPE, dtype of the file, greatest shard)"""
    from transformers import (DeepseekV2Config, DeepseekV3Config, FalconConfig, GPT2Config,
                              GPTNeoXConfig, Gemma2Config, Gemma3TextConfig, Glm4Config,
                              Glm4MoeConfig, GlmConfig, GptOssConfig, GraniteConfig, LlamaConfig,
                              MistralConfig, MixtralConfig, Olmo2Config, Phi3Config, Qwen2Config,
                              Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig, SmolLM3Config,
                              Starcoder2Config)
    # Phi-4-mini's rotation: a part of the head, divisors for contexts beyond the trained one.
    longrope = dict(type="longrope", short_factor=[1.0, 1.0, 1.1, 1.2, 1.3, 1.5],
                    long_factor=[1.0, 1.2, 1.9, 3.1, 4.5, 6.0])
    # A ramp over most of the pairs within a context of 13, of which the tokens are three.
    yarn = dict(type="yarn", factor=40.0, original_max_position_embeddings=13, beta_fast=2.0,
                beta_slow=0.1)
    latents = dict(num_key_value_heads=4, max_position_embeddings=520, rope_theta=100.0,
                   rms_norm_eps=1e-6, kv_lora_rank=32, qk_nope_head_dim=24, qk_rope_head_dim=16,
                   v_head_dim=16, moe_intermediate_size=32, num_hidden_layers=3)
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
        "phi3_window": (Phi3Config, dict(SMALL, sliding_window=9), "bfloat16", None),
        "phi4_longrope": (Phi3Config, dict(
            SMALL, partial_rotary_factor=0.75, tie_word_embeddings=True, rope_scaling=longrope,
            original_max_position_embeddings=32), "bfloat16", None),
        # Within the trained context: the short divisors.
        "phi4_shortrope": (Phi3Config, dict(
            SMALL, partial_rotary_factor=0.75, rope_scaling=longrope,
            original_max_position_embeddings=128), "bfloat16", None),
        "gemma2": (Gemma2Config, dict(
            SMALL, num_hidden_layers=3, head_dim=24, query_pre_attn_scalar=20, sliding_window=11,
            attn_logit_softcapping=4.0, final_logit_softcapping=3.0), "bfloat16", None),
        "gemma3": (Gemma3TextConfig, dict(
            SMALL, num_hidden_layers=4, head_dim=16, query_pre_attn_scalar=20, sliding_window=11,
            sliding_window_pattern=2, rope_theta=1e4, rope_local_base_freq=100.0,
            rope_scaling=dict(rope_type="linear", factor=2.0)), "bfloat16", None),
        "granite": (GraniteConfig, dict(
            SMALL, tie_word_embeddings=True, embedding_multiplier=3.0, residual_multiplier=0.6,
            attention_multiplier=0.4, logits_scaling=5.0), "bfloat16", None),
        "olmo2": (Olmo2Config, dict(SMALL, rope_theta=5e5), "bfloat16", None),
        "glm": (GlmConfig, dict(SMALL, head_dim=16, attention_bias=True), "bfloat16", None),
        "glm4": (Glm4Config, dict(SMALL, head_dim=24, attention_bias=True), "bfloat16", None),
        "smollm3": (SmolLM3Config, dict(
            SMALL, vocab_size=64, no_rope_layers=[1, 0], rope_theta=1e5,
            tie_word_embeddings=False), "bfloat16", None),
        "mixtral": (MixtralConfig, dict(
            SMALL, intermediate_size=32, num_local_experts=6, num_experts_per_tok=2,
            rope_theta=1e6, sliding_window=15), "bfloat16", None),
        "qwen2_moe": (Qwen2MoeConfig, dict(
            SMALL, num_hidden_layers=3, num_experts=5, num_experts_per_tok=2,
            moe_intermediate_size=32, shared_expert_intermediate_size=40,
            mlp_only_layers=[1]), "bfloat16", None),
        "qwen3_moe": (Qwen3MoeConfig, dict(
            SMALL, head_dim=24, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
            norm_topk_prob=True, rope_theta=1e6), "bfloat16", None),
        "gpt_neox": (GPTNeoXConfig, dict(SMALL, num_key_value_heads=4, rotary_pct=0.5),
                     "bfloat16", None),
        "gpt_neox_sequential": (GPTNeoXConfig, dict(
            SMALL, num_key_value_heads=4, rotary_pct=1.0, use_parallel_residual=False,
            hidden_act="gelu_new", tie_word_embeddings=True), "bfloat16", None),
        "gpt2": (GPT2Config, dict(SMALL, num_key_value_heads=4, intermediate_size=None, n_inner=72),
                 "bfloat16", None),
        "starcoder2": (Starcoder2Config, dict(SMALL, sliding_window=10, rope_theta=1e5),
                       "bfloat16", None),
        "falcon_7b": (FalconConfig, dict(SMALL, ffn_hidden_size=72, rope_theta=1e5), "bfloat16",
                      None),
        "falcon_40b": (FalconConfig, dict(
            SMALL, ffn_hidden_size=72, new_decoder_architecture=True, num_kv_heads=2), "bfloat16",
                       None),
        "falcon_11b": (FalconConfig, dict(
            SMALL, ffn_hidden_size=72, new_decoder_architecture=True, num_kv_heads=2,
            num_ln_in_parallel_attn=1, tie_word_embeddings=False), "bfloat16", None),
        "falcon_sequential": (FalconConfig, dict(
            SMALL, ffn_hidden_size=72, multi_query=False, parallel_attn=False, bias=True),
                              "bfloat16", None),
        "gpt_oss": (GptOssConfig, dict(SMALL, **GPT_OSS, intermediate_size=24),
                    "bfloat16", None),
        "glm4_moe": (Glm4MoeConfig, dict(
            SMALL, num_hidden_layers=3, head_dim=24, attention_bias=True, use_qk_norm=True,
            partial_rotary_factor=0.5, n_routed_experts=8, num_experts_per_tok=3,
            moe_intermediate_size=32, n_shared_experts=1, first_k_dense_replace=1,
            routed_scaling_factor=1.5), "bfloat16", None),
        # As V2-Lite, but for the sizes.
        "deepseek_v2_lite": (DeepseekV2Config, dict(
            SMALL, **latents, q_lora_rank=None, n_routed_experts=8, num_experts_per_tok=3,
            n_shared_experts=2, first_k_dense_replace=1, rope_scaling=dict(
                yarn, mscale=0.707, mscale_all_dim=0.707)), "bfloat16", None),
        "deepseek_v2": (DeepseekV2Config, dict(
            SMALL, **latents, q_lora_rank=40, n_routed_experts=12, num_experts_per_tok=3,
            n_shared_experts=1, topk_method="group_limited_greedy", n_group=4, topk_group=2,
            first_k_dense_replace=1, routed_scaling_factor=3.0), "bfloat16", None),
        "deepseek_v3": (DeepseekV3Config, dict(
            SMALL, **latents, q_lora_rank=40, n_routed_experts=12, num_experts_per_tok=4,
            n_shared_experts=1, n_group=3, topk_group=2, first_k_dense_replace=1,
            routed_scaling_factor=1.5, rope_scaling=dict(
                yarn, mscale=1.0, mscale_all_dim=0.8)), "bfloat16", None),
        # With a layer for multi-token prediction.
        "glm4_moe_mtp": (Glm4MoeConfig, dict(
            SMALL, num_hidden_layers=2, head_dim=24, attention_bias=True, use_qk_norm=True,
            partial_rotary_factor=0.5, n_routed_experts=8, num_experts_per_tok=3,
            moe_intermediate_size=32, n_shared_experts=1, first_k_dense_replace=1,
            routed_scaling_factor=1.5, num_nextn_predict_layers=1), "bfloat16", None),
        "deepseek_v3_mtp": (DeepseekV3Config, dict(
            SMALL, **{**latents, "num_hidden_layers": 2}, q_lora_rank=40, n_routed_experts=12,
            num_experts_per_tok=4, n_shared_experts=1, n_group=3, topk_group=2,
            first_k_dense_replace=1, routed_scaling_factor=1.5, num_nextn_predict_layers=1,
            rope_scaling=dict(yarn, mscale=1.0, mscale_all_dim=0.8)), "bfloat16", None),
    }


def add_mtp(model):
    """Adds the layer for multi-token prediction of DeepSeek-V3 (arXiv 2412.19437, section 2.2), under
    the names of the published checkpoints. transformers 4.57.1 skips it: it is put together here from
    the family's own modules. Returns it, or None if the model has none."""
    import torch
    if not getattr(model.config, "num_nextn_predict_layers", 0):
        return None
    hidden = model.config.hidden_size
    norm = type(model.model.norm)
    layer = type(model.model.layers[-1])(model.config, model.config.num_hidden_layers)
    layer.enorm = norm(hidden, eps=model.config.rms_norm_eps)
    layer.hnorm = norm(hidden, eps=model.config.rms_norm_eps)
    layer.eh_proj = torch.nn.Linear(2 * hidden, hidden, bias=False)
    layer.shared_head = torch.nn.Module()
    layer.shared_head.norm = norm(hidden, eps=model.config.rms_norm_eps)
    model.model.layers.append(layer.float().eval())
    return layer


def mtp_logits(model, layer, tokens, hidden):
    """Position p takes token p and the hidden state at p - 1, zeros for the first. `hidden` are those
    behind the model's final norm. Returns the logits, and the layer's own hidden states."""
    import torch
    from transformers.masking_utils import create_causal_mask
    positions = torch.arange(tokens.shape[1])[None]
    embedded = model.model.embed_tokens(tokens)
    before = torch.cat([torch.zeros_like(hidden[:, :1]), hidden[:, :-1]], dim=1)
    x = layer.eh_proj(torch.cat([layer.enorm(embedded), layer.hnorm(before)], dim=-1))
    mask = create_causal_mask(config=model.config, input_embeds=x, attention_mask=None,
                              cache_position=positions[0], past_key_values=None,
                              position_ids=positions)
    x = layer(x, attention_mask=mask, position_ids=positions,
              position_embeddings=model.model.rotary_emb(x, positions))
    x = layer.shared_head.norm(x[0] if isinstance(x, tuple) else x)
    return model.lm_head(x)[0].contiguous(), x[0].contiguous()


def register_bf16_kv():
    """An attention that sees keys and values as a bf16 cache would give them back."""
    import torch
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask

    def attention(module, query, key, value, *args, **kwargs):
        key, value = (x.to(torch.bfloat16).float() for x in (key, value))
        eager = sys.modules[type(module).__module__].eager_attention_forward
        return eager(module, query, key, value, *args, **kwargs)

    AttentionInterface.register("bf16_kv", attention)
    AttentionMaskInterface.register("bf16_kv", eager_mask)


def use_attention(model, attention):
    """Sets eager or bf16_kv. Qwen2-MoE's attention is a class of its own, which calls repeat_kv."""
    import torch
    modeling = sys.modules[type(model).__module__]
    if hasattr(model.config, "kv_lora_rank"):
        return use_latents(model, modeling, attention)
    if hasattr(modeling, "eager_attention_forward"):
        return model.set_attn_implementation(attention)
    if hasattr(modeling, "FalconAttention"):
        return use_falcon_attention(modeling, attention)
    plain = getattr(modeling, "plain_repeat_kv", modeling.repeat_kv)
    modeling.plain_repeat_kv = plain
    modeling.repeat_kv = plain if attention == "eager" else (
        lambda states, times: plain(states.to(torch.bfloat16).float(), times))


def use_falcon_attention(modeling, attention):
    """Rounds values where heads are split, and keys where they have been rotated."""
    import torch
    if not hasattr(modeling, "plain_parts"):
        modeling.plain_parts = modeling.FalconAttention._split_heads, modeling.apply_rotary_pos_emb
    split, rotate = modeling.plain_parts

    def split_rounded(*args):
        query, key, value = split(*args)
        return query, key, value.to(torch.bfloat16).float()

    def rotate_rounded(*args):
        query, key = rotate(*args)
        return query, key.to(torch.bfloat16).float()

    eager = attention == "eager"
    modeling.FalconAttention._split_heads = split if eager else split_rounded
    modeling.apply_rotary_pos_emb = rotate if eager else rotate_rounded


def set_limits(model):
    """transformers has gpt-oss's limit in the code."""
    for module in model.modules():
        if type(module).__name__ == "GptOssExperts":
            module.limit = model.config.swiglu_limit


def use_latents(model, modeling, attention):
    """Rounds what the cache has of a token: the latent behind its norm, and the rotated key."""
    import torch
    rotation = ("apply_rotary_emb" if hasattr(modeling, "apply_rotary_emb")
                else "apply_rotary_pos_emb_interleave")
    if not hasattr(modeling, "plain_rotation"):
        modeling.plain_rotation = getattr(modeling, rotation)
    rounds = attention == "bf16_kv"

    def rounded(x):
        return x.to(torch.bfloat16).float() if rounds else x

    def rotate(query, key, *args, **kwargs):
        query, key = modeling.plain_rotation(query, key, *args, **kwargs)
        return query, rounded(key)

    setattr(modeling, rotation, rotate)
    for layer in model.model.layers:
        norm = layer.self_attn.kv_a_layernorm
        norm._forward_hooks.clear()
        norm.register_forward_hook(lambda module, args, output: rounded(output))


def scale_scores(model):
    """Multiplies the scores of DeepSeek-V2 as its own code does; transformers 4.57.1 forgets it."""
    scaling = getattr(model.config, "rope_scaling", None)
    if type(model).__name__ != "DeepseekV2ForCausalLM" or scaling is None:
        return
    factor = (0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"]) + 1) ** 2
    for layer in model.model.layers:
        layer.self_attn.scaling *= factor


def draw_weights(model, generator):
    import torch
    set_limits(model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.dim() == 1 and name.endswith(".weight"):  # a norm
                value = (0 if "Gemma" in type(model).__name__ else 1) + 0.3 * noise
            elif name.endswith(".sinks"):
                value = 1 + noise
            elif weight.dim() == 1 or name.endswith("_bias"):
                value = 0.5 * noise
            elif "embed_tokens" in name:
                value = 0.5 * noise
            else:
                sharp = 1.6 if any(n in name for n in ("q_proj", "q_b_proj", "k_proj")) else 1.0
                value = sharp * noise * weight.shape[1] ** -0.5
            value = value.to(torch.bfloat16).float()
            # A normal number of f16 too.
            weight.copy_(torch.where(value.abs() < 2**-14, torch.zeros(()), value))
        for name, bias in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # positive: transformers masks with 0
                noise = 0.3 * torch.rand(bias.shape, generator=generator)
                bias.copy_(noise.to(torch.bfloat16).float())


def make(name, config_class, changes, dtype, shard, seed):
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM
    config = config_class(**{**SHAPE, **changes})
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    mtp = add_mtp(model)
    draw_weights(model, generator)
    scale_scores(model)
    model.tie_weights()
    tokens = torch.randint(0, config.vocab_size, (1, TOKENS), generator=generator)
    expected = {"tokens": tokens[0].to(torch.int32)}
    with torch.no_grad():
        for key, attention in [("logits", "eager"), ("logits_bf16_kv", "bf16_kv")]:
            use_attention(model, attention)
            expected[key] = model(tokens, use_cache=False).logits[0].contiguous()
        if mtp is not None:  # with the attention of the last one
            hidden = model.model(tokens, use_cache=False).last_hidden_state
            logits, own = mtp_logits(model, mtp, tokens, hidden)
            expected.update(mtp_logits=logits, mtp_hidden=own)
    use_attention(model, "eager")
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
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        make(name, config_class, changes, dtype, shard, seed + 1)


if __name__ == "__main__":
    enter_venv()
    main()
