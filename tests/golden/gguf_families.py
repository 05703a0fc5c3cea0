"""Cases of make_gguf.py: OLMo 2, GLM, and families with layer norms."""

import re

import make_logits

SMALL = dict(make_logits.SMALL, intermediate_size=96)
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
         "gpt_neox.embed_in": "token_embd", "gpt_neox.final_layer_norm": "output_norm",
         "embed_out": "output", "transformer.wte": "token_embd", "transformer.wpe": "position_embd",
         "transformer.ln_f": "output_norm", "transformer.word_embeddings": "token_embd"}
LAYER = re.compile(r"(?:model\.layers|gpt_neox\.layers|transformer\.h)\.(\d+)\.(.+)")
PLAIN_MLP = {"mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down", "mlp.c_fc": "ffn_up",
             "mlp.c_proj": "ffn_down"}
FALCON = {**PLAIN_MLP, "self_attention.query_key_value": "attn_qkv",
          "self_attention.dense": "attn_output"}
# By architecture, what make_gguf.NAMES lacks or has otherwise.
NAMES = {
    "olmo2": {"post_attention_layernorm": "post_attention_norm",
              "post_feedforward_layernorm": "post_ffw_norm"},
    "glm4": {"post_self_attn_layernorm": "post_attention_norm",
             "post_mlp_layernorm": "post_ffw_norm"},
    "glm4moe": {"post_attention_layernorm": "post_attention_norm", "eh_proj": "nextn.eh_proj",
                "enorm": "nextn.enorm", "hnorm": "nextn.hnorm",
                "shared_head.norm": "nextn.shared_head_norm"},
    "starcoder2": PLAIN_MLP,
    "gptneox": {**PLAIN_MLP, "attention.query_key_value": "attn_qkv",
                "attention.dense": "attn_output"},
    "gpt2": {**PLAIN_MLP, "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv",
             "attn.c_proj": "attn_output"},
    "falcon": {**FALCON, "ln_attn": "attn_norm_2", "ln_mlp": "attn_norm"},
}


def cases():
    from transformers import (FalconConfig, GPT2Config, GPTNeoXConfig, Glm4Config, Glm4MoeConfig,
                              GlmConfig, Olmo2Config, Starcoder2Config)
    q8_0 = lambda name: "Q8_0"  # noqa: E731
    falcon = dict(SMALL, ffn_hidden_size=96)
    return {
        "gguf_olmo2": (Olmo2Config, dict(SMALL, rope_theta=5e5), "olmo2", q8_0),
        "gguf_chatglm": (GlmConfig, dict(SMALL, head_dim=16, attention_bias=True), "chatglm", q8_0),
        "gguf_glm4": (Glm4Config, dict(SMALL, head_dim=32, attention_bias=True), "glm4",
                      lambda name: "Q4_0" if "ffn" in name else "Q8_0"),
        # Layer 2 is the one for multi-token prediction.
        "gguf_glm4_moe": (Glm4MoeConfig, dict(
            SMALL, head_dim=24, attention_bias=True, use_qk_norm=True, partial_rotary_factor=0.5,
            n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=32,
            n_shared_experts=1, first_k_dense_replace=1, routed_scaling_factor=1.5,
            num_nextn_predict_layers=1), "glm4moe",
            lambda name: "F32" if name.endswith("gate_inp") else "F16"),
        "gguf_starcoder2": (Starcoder2Config, dict(SMALL, sliding_window=10, rope_theta=1e5),
                            "starcoder2", q8_0),
        "gguf_gptneox": (GPTNeoXConfig, dict(SMALL, num_key_value_heads=4, rotary_pct=0.5),
                         "gptneox", q8_0),
        "gguf_gptneox_sequential": (GPTNeoXConfig, dict(
            SMALL, num_key_value_heads=4, rotary_pct=1.0, use_parallel_residual=False,
            tie_word_embeddings=True), "gptneox", lambda name: "F16"),
        "gguf_gpt2": (GPT2Config, dict(
            SMALL, num_key_value_heads=4, intermediate_size=None, n_inner=96), "gpt2",
            lambda name: "F32" if name == "position_embd" else "F16"),
        "gguf_falcon_7b": (FalconConfig, falcon, "falcon", q8_0),
        "gguf_falcon_40b": (FalconConfig, dict(
            falcon, new_decoder_architecture=True, num_kv_heads=2), "falcon", q8_0),
        "gguf_falcon_11b": (FalconConfig, dict(
            falcon, new_decoder_architecture=True, num_kv_heads=2, num_ln_in_parallel_attn=1,
            tie_word_embeddings=False, rope_theta=500.0), "falcon", q8_0),
    }


def is_one_of_these(config):
    return config.model_type in ("olmo2", "glm", "glm4", "glm4_moe", "starcoder2", "gpt_neox",
                                 "gpt2", "falcon")


def kv_heads(config):
    if config.model_type == "falcon":
        return config.num_kv_heads if config.new_decoder_architecture else 1
    return (config.num_attention_heads if config.model_type in ("gpt_neox", "gpt2")
            else config.num_key_value_heads)


def rows_in_file(name, count, config):
    """The rows of a matrix or bias in the file's order: queries, keys, values."""
    import numpy as np
    rows = np.arange(count)
    if not name.endswith("attn_qkv") or config.model_type not in ("gpt_neox", "falcon"):
        return rows
    groups = kv_heads(config)
    size = config.hidden_size // config.num_attention_heads
    rows = rows.reshape(groups, config.num_attention_heads // groups + 2, size)
    return np.concatenate([part.reshape(-1) for part in (rows[:, :-2], rows[:, -2], rows[:, -1])])


def is_transposed(name, config):
    return config.model_type == "gpt2" and name.startswith("blk.")


def describe_experts(writer, config):
    """Writes the keys of DeepSeek's experts, which GLM-4.5 has too."""
    import gguf
    writer.add_expert_count(config.n_routed_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    if config.model_type != "deepseek_v2":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_norm(config.norm_topk_prob)


def describe_glm4_moe(writer, config):
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    describe_experts(writer, config)
    writer.add_nextn_predict_layers(config.num_nextn_predict_layers)


def describe_rope(writer, config):
    kind = config.model_type
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    part = {"glm": 0.5, "glm4": 0.5, "glm4_moe": 0.5}.get(kind, getattr(config, "rotary_pct", None))
    if part is not None:
        writer.add_rope_dimension_count(int(size * part))
    if kind == "glm4":
        writer.add_key_length(size)
        writer.add_value_length(size)
    if kind in ("olmo2", "starcoder2", "glm", "glm4", "glm4_moe") or config.rope_theta == 500.0:
        writer.add_rope_freq_base(config.rope_theta)


def describe(writer, config):
    kind = config.model_type
    writer.add_block_count(config.num_hidden_layers + getattr(config, "num_nextn_predict_layers", 0))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    inner = {"gpt2": "n_inner", "falcon": "ffn_hidden_size"}.get(kind, "intermediate_size")
    writer.add_feed_forward_length(getattr(config, inner))
    writer.add_head_count(config.num_attention_heads)
    if kind not in ("gpt_neox", "gpt2"):
        writer.add_head_count_kv(kv_heads(config))
    epsilons = {"gpt_neox": "layer_norm_eps", "gpt2": "layer_norm_epsilon",
                "falcon": "layer_norm_epsilon", "starcoder2": "norm_epsilon"}
    if kind in epsilons:
        writer.add_layer_norm_eps(getattr(config, epsilons[kind]))
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if kind == "gpt_neox":
        writer.add_parallel_residual(config.use_parallel_residual)
    if kind == "falcon":
        writer.add_tensor_data_layout("jploski")
    if kind == "starcoder2":
        writer.add_sliding_window(config.sliding_window)
    if kind != "gpt2":
        describe_rope(writer, config)
    if kind == "glm4_moe":
        describe_glm4_moe(writer, config)
    writer.add_vocab_size(config.vocab_size)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
