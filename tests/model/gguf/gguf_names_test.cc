#include "model/gguf/gguf_names.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

struct Names {
  const char* gguf;
  const char* hugging_face;
};

constexpr Names kNames[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output_norm.bias", "model.norm.bias"},
    {"output.weight", "lm_head.weight"},
    {"position_embd.weight", "model.embed_positions.weight"},
    {"blk.0.attn_norm_2.bias", "model.layers.0.ln_attn.bias"},
    {"blk.46.nextn.eh_proj.weight", "model.layers.46.eh_proj.weight"},
    {"blk.46.nextn.embed_tokens.weight", "model.layers.46.embed_tokens.weight"},
    {"blk.46.nextn.enorm.weight", "model.layers.46.enorm.weight"},
    {"blk.46.nextn.hnorm.weight", "model.layers.46.hnorm.weight"},
    {"blk.46.nextn.shared_head_head.weight", "model.layers.46.shared_head.head.weight"},
    {"blk.46.nextn.shared_head_norm.weight", "model.layers.46.shared_head.norm.weight"},
    {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
    {"blk.31.attn_q.weight", "model.layers.31.self_attn.q_proj.weight"},
    {"blk.7.attn_q.bias", "model.layers.7.self_attn.q_proj.bias"},
    {"blk.7.attn_k.bias", "model.layers.7.self_attn.k_proj.bias"},
    {"blk.7.attn_v.weight", "model.layers.7.self_attn.v_proj.weight"},
    {"blk.7.attn_qkv.weight", "model.layers.7.self_attn.qkv_proj.weight"},
    {"blk.7.attn_output.weight", "model.layers.7.self_attn.o_proj.weight"},
    {"blk.7.attn_q_norm.weight", "model.layers.7.self_attn.q_norm.weight"},
    {"blk.7.attn_k_norm.weight", "model.layers.7.self_attn.k_norm.weight"},
    {"blk.7.ffn_norm.weight", "model.layers.7.post_attention_layernorm.weight"},
    {"blk.127.ffn_gate.weight", "model.layers.127.mlp.gate_proj.weight"},
    {"blk.7.ffn_up.bias", "model.layers.7.mlp.up_proj.bias"},
    {"blk.7.ffn_down.weight", "model.layers.7.mlp.down_proj.weight"},
    {"blk.7.attn_sinks.weight", "model.layers.7.self_attn.sinks.weight"},
    {"blk.7.post_attention_norm.weight", "model.layers.7.post_attention_norm.weight"},
    {"blk.7.ffn_gate_inp.bias", "model.layers.7.mlp.router.bias"},
    {"blk.7.ffn_gate_exps.weight", "model.layers.7.mlp.experts.gate_proj.weight"},
    {"blk.7.ffn_up_exps.bias", "model.layers.7.mlp.experts.up_proj.bias"},
    {"blk.7.ffn_down_exps.weight", "model.layers.7.mlp.experts.down_proj.weight"},
    {"blk.7.ffn_gate.0.weight", "model.layers.7.mlp.experts.0.gate_proj.weight"},
    {"blk.7.ffn_down.63.weight", "model.layers.7.mlp.experts.63.down_proj.weight"},
    {"blk.7.ffn_up_shexp.weight", "model.layers.7.mlp.shared_experts.up_proj.weight"},
    {"blk.7.ffn_gate_inp_shexp.weight", "model.layers.7.mlp.shared_experts_gate.weight"},
    {"blk.7.exp_probs_b.bias", "model.layers.7.mlp.router.e_score_correction_bias"},
    {"blk.7.post_ffw_norm.weight", "model.layers.7.post_ffw_norm.weight"},
    {"blk.7.attn_q_a.weight", "model.layers.7.self_attn.q_a_proj.weight"},
    {"blk.7.attn_q_a_norm.weight", "model.layers.7.self_attn.q_a_layernorm.weight"},
    {"blk.7.attn_q_b.weight", "model.layers.7.self_attn.q_b_proj.weight"},
    {"blk.7.attn_kv_a_mqa.weight", "model.layers.7.self_attn.kv_a_proj_with_mqa.weight"},
    {"blk.7.attn_kv_a_norm.weight", "model.layers.7.self_attn.kv_a_layernorm.weight"},
    {"blk.7.attn_kv_b.weight", "model.layers.7.self_attn.kv_b_proj.weight"},
    {"blk.7.attn_k_b.weight", "model.layers.7.self_attn.k_b_proj.weight"},
    {"blk.7.attn_v_b.weight", "model.layers.7.self_attn.v_b_proj.weight"}};

TEST(GgufNamesTest, BothWays) {
  for (const Names& names : kNames) {
    EXPECT_EQ(HuggingFaceName(names.gguf), names.hugging_face);
    EXPECT_EQ(GgufName(names.hugging_face), names.gguf);
    EXPECT_EQ(HuggingFaceName(names.hugging_face), std::nullopt);
    EXPECT_EQ(GgufName(names.gguf), std::nullopt);
  }
}

TEST(GgufNamesTest, OthersHaveNone) {
  for (const char* name : {"",
                           "blk.",
                           "blk.0",
                           "blk.0.weight",
                           "blk..attn_q.weight",
                           "blk.x.attn_q.weight",
                           "blk.00.attn_q.weight",
                           "blk.01.attn_q.weight",
                           "blk.-1.attn_q.weight",
                           "blk.123456.attn_q.weight",
                           "blk.0.attn_q",
                           "blk.0.attn_q.scale",
                           "blk.0.attn_qkvs.weight",
                           "blk.0.ffn_gate..weight",
                           "blk.0.ffn_gate.01.weight",
                           "blk.0.ffn_gate.x.weight",
                           "blk.0.ffn_norm.1.weight",
                           "blk.0.exp_probs_b.weight",
                           "blk.0.exp_probs_b",
                           "model.layers.0.mlp.experts..gate_proj.weight",
                           "model.layers.0.mlp.experts.gate_proj",
                           "rope_freqs.weight",
                           "output.bias",
                           "token_embd.weight.x"}) {
    EXPECT_EQ(HuggingFaceName(name), std::nullopt) << name;
  }
}

TEST(GgufNamesTest, LlamaAndGraniteHaveInterleavedRows) {
  for (const char* name : {"blk.0.attn_q.weight", "blk.3.attn_k.weight", "blk.0.attn_q.bias"}) {
    EXPECT_TRUE(HasInterleavedRows("llama", name)) << name;
    EXPECT_TRUE(HasInterleavedRows("granite", name)) << name;
    EXPECT_FALSE(HasInterleavedRows("qwen2", name)) << name;
    EXPECT_FALSE(HasInterleavedRows("qwen3", name)) << name;
  }
  for (const char* name : {"blk.0.attn_v.weight", "blk.0.attn_output.weight",
                           "blk.0.attn_q_norm.weight", "token_embd.weight"}) {
    EXPECT_FALSE(HasInterleavedRows("llama", name)) << name;
  }
}

}  // namespace
}  // namespace penstock
