#!/usr/bin/env python3
"""Regenerates the GGUF files of tests/golden/logits, and what transformers computes with their
dequantised weights in float32.

    python3 tests/golden/make_gguf.py [CASE ...]

Runs in the environment of make_logits.py, with ggml's own package gguf, whose writer makes the
files and whose dequantize() is the oracle of every block. Blocks of 256 elements, which the package
cannot make from floats, are drawn at random around sensible scales. expected.safetensors is as
make_quantised.py writes it, with row ROW of each quantised matrix in float32 ("row.blk.0.attn_q").
"""

import re
import subprocess
import sys

import gguf_families
import make_logits
import make_quantised

GGUF = "gguf==0.19.0"
ROW = 37
# Of each kind: where a block has its factor (f16), a sensible factor, and the ratio of the second
# factor, which follows it, to the first.
FACTORS = {"Q4_K": (0, 3e-4, 7.5), "Q5_K": (0, 1.5e-4, 15.5), "Q6_K": (208, 6e-5, None),
           "IQ4_NL": (0, 1e-3, None), "IQ4_XS": (0, 7.5e-5, None)}
WIDE = dict(hidden_size=256, intermediate_size=256, vocab_size=64)
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp",
         "block_sparse_moe.gate": "ffn_gate_inp", "self_attn.q_a_proj": "attn_q_a",
         "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
         "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
         "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
         "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
         "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
         "mlp.shared_experts.up_proj": "ffn_up_shexp",
         "mlp.shared_experts.down_proj": "ffn_down_shexp",
         "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
         "mlp.shared_expert.up_proj": "ffn_up_shexp",
         "mlp.shared_expert.down_proj": "ffn_down_shexp",
         "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
GEMMA_NAMES = {"post_attention_layernorm": "post_attention_norm",
               "pre_feedforward_layernorm": "ffn_norm",
               "post_feedforward_layernorm": "post_ffw_norm"}
EXPERT = re.compile(r"(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(gate_proj|up_proj|down_proj|w\d)")
EXPERT_PARTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down",
                "w1": "gate", "w3": "up", "w2": "down"}


def need_gguf():
    try:
        import gguf  # noqa: F401
    except ImportError:
        subprocess.run([sys.executable, "-m", "pip", "install", "--no-deps", GGUF], check=True)


def cases():
    """name: (config class, changes, architecture, the block type of a tensor by its GGUF name)"""
    from transformers import (DeepseekV2Config, DeepseekV3Config, Gemma2Config, Gemma3TextConfig,
                              GraniteConfig, LlamaConfig, MixtralConfig, Phi3Config,
                              Qwen2Config, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig)
    q4_k_m = {"blk.0.attn_v": "Q6_K", "blk.0.ffn_down": "Q6_K", "output": "Q6_K"}
    mixed = {"blk.0.attn_q": "Q5_K", "blk.0.attn_k": "IQ4_XS", "blk.0.attn_v": "Q5_1",
             "blk.0.attn_output": "MXFP4", "blk.0.ffn_gate": "Q4_1", "blk.0.ffn_up": "Q4_1",
             "blk.0.ffn_down": "IQ4_NL", "blk.1.attn_q": "Q5_0", "blk.1.attn_k": "Q5_0",
             "blk.1.attn_v": "Q5_0", "blk.1.attn_output": "IQ4_XS", "blk.1.ffn_gate": "Q5_K",
             "blk.1.ffn_up": "Q5_K", "blk.1.ffn_down": "Q6_K", "token_embd": "F16",
             "output": "Q5_1"}
    llama3 = dict(rope_theta=500000.0, rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=8192))
    latents = dict(
        make_logits.SMALL, intermediate_size=96, num_key_value_heads=4, max_position_embeddings=520,
        rope_theta=100.0, rms_norm_eps=1e-6, kv_lora_rank=32, qk_nope_head_dim=32,
        qk_rope_head_dim=16, v_head_dim=16, moe_intermediate_size=32, num_hidden_layers=2,
        first_k_dense_replace=1)
    yarn = dict(type="yarn", factor=40.0, original_max_position_embeddings=13, beta_fast=2.0,
                beta_slow=0.1)
    experts = lambda name: ("F32" if "gate_inp" in name else  # noqa: E731
                            "Q4_0" if name.endswith("_exps") else "Q8_0")
    return {
        "gguf_f16": (LlamaConfig, llama3, "llama", lambda name: "F16"),
        "gguf_q4_0": (LlamaConfig, dict(intermediate_size=128), "llama",
                      lambda name: "Q8_0" if name == "output" else "Q4_0"),
        "gguf_q8_0_tied": (Qwen2Config, dict(intermediate_size=96, tie_word_embeddings=True), "qwen2",
                           lambda name: "Q8_0"),
        "gguf_q4_k_m": (LlamaConfig, WIDE, "llama", lambda name: q4_k_m.get(name, "Q4_K")),
        "gguf_mixed": (Qwen3Config, dict(WIDE, head_dim=64), "qwen3", lambda name: mixed[name]),
        "gguf_qwen3_moe": (Qwen3MoeConfig, dict(
            intermediate_size=96, moe_intermediate_size=32, num_experts=6, num_experts_per_tok=2,
            norm_topk_prob=True, head_dim=32, decoder_sparse_step=1, mlp_only_layers=[]),
            "qwen3moe", lambda name: "F32" if name.endswith("gate_inp") else
            "Q4_0" if name.endswith("_exps") else "Q8_0"),
        # Layers 0, 2 and 3 have the window, as a list says.
        "gguf_gemma3": (Gemma3TextConfig, dict(
            make_logits.SMALL, intermediate_size=96, num_hidden_layers=4, head_dim=16,
            query_pre_attn_scalar=16, sliding_window=11, layer_types=[
                "sliding_attention", "full_attention", "sliding_attention", "sliding_attention"],
            rope_theta=1e4, rope_local_base_freq=100.0,
            rope_scaling=dict(rope_type="linear", factor=2.0)), "gemma3", lambda name: "Q8_0"),
        "gguf_gemma2": (Gemma2Config, dict(
            make_logits.SMALL, intermediate_size=96, num_hidden_layers=3, head_dim=24,
            num_key_value_heads=4, query_pre_attn_scalar=24, sliding_window=11,
            attn_logit_softcapping=4.0, final_logit_softcapping=3.0), "gemma2",
            lambda name: "F16" if "attn" in name else "Q4_0" if "ffn" in name else "Q8_0"),
        # Layer 1 has one tensor for each expert, as the first files of Mixtral have.
        "gguf_mixtral": (MixtralConfig, dict(
            make_logits.SMALL, intermediate_size=32, num_local_experts=5, num_experts_per_tok=2,
            rope_theta=1e6, sliding_window=None), "llama",
            lambda name: "F32" if name.endswith("gate_inp") else
            "Q5_0" if name.endswith("_exps") else "Q8_0"),
        # As older files, with attn_kv_b and without groups.
        "gguf_deepseek_v2_lite": (DeepseekV2Config, dict(
            latents, q_lora_rank=None, n_routed_experts=8, num_experts_per_tok=3, n_shared_experts=2,
            routed_scaling_factor=1.0, rope_scaling=dict(yarn, mscale=0.707, mscale_all_dim=0.707)),
            "deepseek2", experts),
        # As newer files, with attn_k_b and attn_v_b.
        "gguf_deepseek_v3": (DeepseekV3Config, dict(
            latents, q_lora_rank=64, n_routed_experts=12, num_experts_per_tok=4, n_shared_experts=1,
            n_group=3, topk_group=2, routed_scaling_factor=1.5, norm_topk_prob=True,
            rope_scaling=dict(yarn, mscale=0.8, mscale_all_dim=0.8)), "deepseek2", experts),
        "gguf_granite": (GraniteConfig, dict(
            make_logits.SMALL, intermediate_size=96, tie_word_embeddings=True,
            embedding_multiplier=3.0, residual_multiplier=0.6, attention_multiplier=0.4,
            logits_scaling=5.0), "granite", lambda name: "Q5_1"),
        "gguf_qwen2_moe": (Qwen2MoeConfig, dict(
            make_logits.SMALL, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=32,
            shared_expert_intermediate_size=64, norm_topk_prob=False), "qwen2moe", experts),
        "gguf_phi3": (Phi3Config, dict(
            make_logits.SMALL, intermediate_size=96, partial_rotary_factor=0.75, sliding_window=9,
            original_max_position_embeddings=32, rope_scaling=dict(
                type="longrope", short_factor=[1.0, 1.0, 1.1, 1.2, 1.3, 1.5],
                long_factor=[1.0, 1.2, 1.9, 3.1, 4.5, 6.0])), "phi3", lambda name: "Q8_0"),
        **gguf_families.cases(),
    }


def gguf_name(name, names=NAMES):
    """The name without .weight or .bias, as GGUF files have it."""
    module = name.rsplit(".", 1)[0]
    if module in gguf_families.OUTER:
        return gguf_families.OUTER[module]
    layer, inside = gguf_families.LAYER.fullmatch(module).groups()
    expert = EXPERT.fullmatch(inside)
    return f"blk.{layer}.{f'ffn_{EXPERT_PARTS[expert[2]]}_exps' if expert else names[inside]}"


def interleave(value, heads):
    """Rows of queries or keys as pairs, as llama.cpp's converter stores them."""
    shape = value.shape
    return value.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def random_blocks(shape, kind, factor, generator):
    import gguf
    import numpy as np
    elements, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = generator.integers(0, 256, (shape[0], shape[1] // elements, size), dtype=np.uint8)
    at, scale, ratio = FACTORS[kind]
    d = (factor * scale * generator.uniform(0.5, 1.5, blocks.shape[:2])).astype(np.float16)
    blocks[:, :, at:at + 2] = d[..., None].view(np.uint8)
    if ratio:
        least = (ratio * d.astype(np.float32)).astype(np.float16)
        blocks[:, :, at + 2:at + 4] = least[..., None].view(np.uint8)
    return blocks.reshape(shape[0], -1)


def stored_form(value, kind, factor, generator):
    """What the file holds of a matrix, and its weights."""
    import gguf
    import numpy as np
    form = gguf.GGMLQuantizationType[kind]
    if kind in FACTORS:
        data = random_blocks(value.shape, kind, factor, generator)
    else:
        data = gguf.quants.quantize(value.astype(np.float32), form)
    return data, form, gguf.quants.dequantize(data, form)


def describe_gemma(writer, config):
    writer.add_sliding_window(config.sliding_window)
    if config.model_type == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
        return
    writer.add_sliding_window_pattern([t == "sliding_attention" for t in config.layer_types])
    writer.add_rope_freq_base_swa(config.rope_local_base_freq)


def stored_row(name, config):
    """The row of the file that is row ROW in memory. Pairs of the rotated dimensions of DeepSeek and
    GLM lie side by side in the file, and in two halves in memory."""
    glm = config.model_type in ("glm", "glm4")
    if (glm or config.model_type == "phi3") and name.endswith("ffn_up"):
        return config.intermediate_size + ROW  # rows of the gate precede it
    if glm and name.endswith(("attn_q", "attn_k")):
        plain, rotated, size = 0, config.head_dim // 2, config.head_dim
    elif name.endswith("attn_q") and hasattr(config, "kv_lora_rank"):
        plain, rotated = config.qk_nope_head_dim, config.qk_rope_head_dim
        size = plain + rotated
    else:
        return ROW
    at = ROW % size - plain
    if not 0 <= at < rotated:
        return ROW
    return ROW - at + at % (rotated // 2) * 2 + at // (rotated // 2)


def describe_phi3(writer, config, size):
    import math

    import numpy as np
    writer.add_rope_dimension_count(int(size * config.partial_rotary_factor))
    writer.add_sliding_window(config.sliding_window)
    original = config.original_max_position_embeddings
    scale = config.max_position_embeddings / original
    writer.add_rope_scaling_orig_ctx_len(original)
    writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))
    for kind in ("long", "short"):
        factors = np.array(config.rope_scaling[f"{kind}_factor"], dtype=np.float32)
        writer.add_tensor(f"rope_factors_{kind}.weight", factors)


def has_halves(config):
    return config.model_type == "deepseek_v3"


def describe_deepseek(writer, config):
    import gguf
    heads = config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
    if has_halves(config):
        writer.add_head_count_kv(1)
        writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
        writer.add_value_length(config.kv_lora_rank)
        writer.add_key_length_mla(heads[0])
        writer.add_value_length_mla(heads[1])
        writer.add_q_lora_rank(config.q_lora_rank)
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(heads[0])
        writer.add_value_length(heads[1])
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_rope_dimension_count(config.qk_rope_head_dim)
    gguf_families.describe_experts(writer, config)
    rope = config.rope_scaling
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def describe(writer, config):
    """The metadata of the file, as llama.cpp's converter writes them."""
    import gguf
    import torch
    if gguf_families.is_one_of_these(config):
        return gguf_families.describe(writer, config)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if config.model_type.startswith("deepseek"):
        return describe_deepseek(writer, config)
    writer.add_head_count_kv(config.num_key_value_heads)
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if config.model_type == "phi3":
        return describe_phi3(writer, config, size)
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    if config.model_type == "mixtral":
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if getattr(config, "num_experts", 0):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if config.model_type.startswith("gemma"):
        describe_gemma(writer, config)
    if config.model_type == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if hasattr(config, "shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    rope = config.rope_scaling if hasattr(config, "rope_scaling") else None
    if not rope:
        return
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
        return
    # As the converter computes the table of Llama 3.1.
    import math
    base, factors = config.rope_theta, []
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    for frequency in 1.0 / (base ** (torch.arange(0, size, 2, dtype=torch.float32) / size)):
        length = 2 * math.pi / frequency
        smooth = (rope["original_max_position_embeddings"] / length - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"])
        between = 1 / ((1 - smooth) / rope["factor"] + smooth)
        factors.append(1.0 if length < high else rope["factor"] if length > low else between)
    writer.add_tensor("rope_freqs.weight", torch.tensor(factors, dtype=torch.float32).numpy())


def count_of_experts(config):
    return next(getattr(config, name) for name in (
        "num_experts", "num_local_experts", "n_routed_experts") if hasattr(config, name))


def write_halves(writer, layer, parameter, config, generator):
    """kv_b_proj as newer files have it: matrices of the heads, of which those of keys are
    transposed. Gives the model the weights, as a worker rounds them."""
    import numpy as np
    import torch
    heads, rank, keys = config.num_attention_heads, config.kv_lora_rank, config.qk_nope_head_dim
    whole = parameter.detach().numpy().reshape(heads, -1, rank)
    parts = []
    for name, part in (("attn_k_b", whole[:, :keys].swapaxes(1, 2)), ("attn_v_b", whole[:, keys:])):
        flat = np.ascontiguousarray(part).reshape(-1, part.shape[2])
        data, form, value = stored_form(flat, "Q8_0", 1.0, generator)
        writer.add_tensor(f"blk.{layer}.{name}.weight", data.reshape(heads, part.shape[1], -1),
                          raw_dtype=form)
        parts.append(value.reshape(part.shape))
    both = np.concatenate([parts[0].swapaxes(1, 2), parts[1]], axis=1).reshape(-1, rank)
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(both).to(torch.bfloat16).float())


def names_of(architecture):
    own = GEMMA_NAMES if architecture.startswith("gemma") else {}
    return {**NAMES, **own, **gguf_families.NAMES.get(architecture, {})}


def write_tensors(writer, model, architecture, kind_of, generator):
    """Gives the model the weights of the blocks that it writes; returns a row of each quantised one,
    for experts of the last."""
    import gguf
    import numpy as np
    import torch
    config, rows, experts = model.config, {}, {}
    names = names_of(architecture)
    for name, parameter in model.named_parameters():
        value = parameter.detach().numpy()
        short, end = gguf_name(name, names), name.rsplit(".", 1)[1]
        if gguf_families.is_transposed(short, config):
            value = value.T
        order = gguf_families.rows_in_file(short, len(value), config)
        value = value[order]
        if "Gemma" in type(model).__name__ and value.ndim == 1:
            value = value + np.float32(1)
        if short.endswith("attn_kv_b") and has_halves(config):
            write_halves(writer, short.split(".")[1], parameter, config, generator)
            continue
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
        pairs = architecture in ("llama", "granite")
        heads = heads.get(short.rsplit(".", 1)[-1], 0) if pairs else 0
        kind = "F32" if value.ndim == 1 else kind_of(short)
        form = gguf.GGMLQuantizationType[kind]
        if kind in ("F32", "F16"):
            data = value.astype(np.float16 if kind == "F16" else np.float32)
        else:
            sharp = 1.6 if short.endswith(("attn_q", "attn_k")) else 1.0
            data, form, value = stored_form(value, kind, sharp * 16 / value.shape[1] ** 0.5, generator)
            if short.endswith("attn_kv_b"):  # a worker rounds it, as it cuts it up
                value = torch.from_numpy(value).to(torch.bfloat16).float().numpy()
            else:
                rows[short] = torch.from_numpy(value[stored_row(short, config) % len(value)].copy())
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(value[np.argsort(order)].copy()))
        if short.endswith("ffn_gate_inp_shexp"):
            data = data[0]
        if short.startswith("blk.1.") and short.endswith("_exps") and config.model_type == "mixtral":
            short = short.replace("_exps", "." + EXPERT.search(name)[1])
        if short.endswith("_exps"):
            experts.setdefault(short, []).append(data)
            if len(experts[short]) < count_of_experts(config):
                continue
            data = np.stack(experts[short])
        writer.add_tensor(f"{short}.{end}", interleave(data, heads) if heads else data, raw_dtype=form)
    for name, bias in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            writer.add_tensor(f"blk.{name.split('.')[2]}.exp_probs_b.bias", bias.numpy())
    return rows


def make(name, case, seed):
    import gguf
    import numpy as np
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM
    config_class, changes, architecture, kind_of = case
    config = config_class(**{**make_logits.SHAPE, **changes})
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    mtp = make_logits.add_mtp(model)
    make_logits.draw_weights(model, generator)
    make_logits.scale_scores(model)
    model.tie_weights()
    directory = make_logits.ROOT / "tests" / "golden" / "logits" / name
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    writer = gguf.GGUFWriter(directory / "model.gguf", architecture)
    describe(writer, config)
    rows = write_tensors(writer, model, architecture, kind_of, np.random.default_rng(seed))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokens = torch.randint(0, config.vocab_size, (1, make_logits.TOKENS), generator=generator)
    if config.tie_word_embeddings and "token_embd" in rows:
        rows["output"] = rows["token_embd"]
    names = names_of(architecture)
    expected = make_quantised.compute(
        model, tokens, lambda name: gguf_name(name + ".weight", names) in rows)
    if mtp is not None:
        with torch.no_grad():
            hidden = model.model(tokens, use_cache=False).last_hidden_state
            logits, own = make_logits.mtp_logits(model, mtp, tokens, hidden)
        expected.update(mtp_logits=logits, mtp_hidden=own)
    expected.update({f"row.{name}": row.clone() for name, row in rows.items()})
    if not rows:
        del expected["logits_int16"]
    save_file(expected, directory / "expected.safetensors")
    print(f"{name}: logits up to {expected['logits'].abs().max():.2f}")
    if rows:
        off = (expected["logits_int16"] - expected["logits_bf16_kv"]).pow(2).mean().sqrt()
        print(f"  integers change them by {off / expected['logits'].pow(2).mean().sqrt():.1e}")


def main():
    import torch
    torch.set_num_threads(1)
    make_logits.register_bf16_kv()
    for seed, (name, case) in enumerate(cases().items()):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        make(name, case, seed + 201)


if __name__ == "__main__":
    make_logits.enter_venv()
    need_gguf()
    sys.exit(main())
