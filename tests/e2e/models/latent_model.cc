#include "tests/e2e/models/latent_model.h"

#include <fmt/format.h>

#include "tests/e2e/models/model_writer.h"

namespace penstock {
namespace {

struct Latents {
  int64_t rank = 64, rope_dims = 16;

  static constexpr int64_t kHidden = 64, kLayers = 3, kHeads = 6, kQueryRank = 40;
  static constexpr int64_t kPlainDims = 32, kValueDims = 24;
  static constexpr int64_t kExperts = 12, kIntermediate = 32, kDenseIntermediate = 96;
};

// `factor`: of what a layer adds.
void AddLatentAttention(ModelWriter& writer, const Latents& sizes, const std::string& prefix,
                        float factor) {
  writer.Matrix(prefix + "q_a_proj", Latents::kQueryRank, Latents::kHidden);
  writer.Norm(prefix + "q_a_layernorm", Latents::kQueryRank);
  writer.Matrix(prefix + "q_b_proj", Latents::kHeads * (Latents::kPlainDims + sizes.rope_dims),
                Latents::kQueryRank);
  writer.Matrix(prefix + "kv_a_proj_with_mqa", sizes.rank + sizes.rope_dims, Latents::kHidden);
  writer.Norm(prefix + "kv_a_layernorm", sizes.rank);
  writer.Matrix(prefix + "kv_b_proj", Latents::kHeads * (Latents::kPlainDims + Latents::kValueDims),
                sizes.rank);
  writer.Matrix(prefix + "o_proj", Latents::kHidden, Latents::kHeads * Latents::kValueDims, factor);
}

void AddLatentExperts(ModelWriter& writer, const std::string& prefix, float factor) {
  writer.Matrix(prefix + "gate", Latents::kExperts, Latents::kHidden);
  writer.Bias(prefix + "gate.e_score_correction_bias", Latents::kExperts);
  for (int64_t e = 0; e < Latents::kExperts; ++e) {
    writer.Mlp(fmt::format("{}experts.{}.", prefix, e), Latents::kHidden, Latents::kIntermediate,
               factor);
  }
  writer.Mlp(prefix + "shared_experts.", Latents::kHidden, Latents::kIntermediate, factor);
}

void AddLatentLayer(ModelWriter& writer, const Latents& sizes, int64_t layer, float factor) {
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  writer.Norm(prefix + "input_layernorm", Latents::kHidden);
  AddLatentAttention(writer, sizes, prefix + "self_attn.", factor);
  writer.Norm(prefix + "post_attention_layernorm", Latents::kHidden);
  if (layer == 0) {
    return writer.Mlp(prefix + "mlp.", Latents::kHidden, Latents::kDenseIntermediate, factor);
  }
  AddLatentExperts(writer, prefix + "mlp.", factor);
}

nlohmann::json LatentJson(const Latents& sizes, int64_t vocab, int64_t layers) {
  return {{"architectures", {"DeepseekV3ForCausalLM"}},
          {"hidden_size", Latents::kHidden},
          {"intermediate_size", Latents::kDenseIntermediate},
          {"moe_intermediate_size", Latents::kIntermediate},
          {"num_hidden_layers", layers},
          {"num_attention_heads", Latents::kHeads},
          {"num_key_value_heads", Latents::kHeads},
          {"q_lora_rank", Latents::kQueryRank},
          {"kv_lora_rank", sizes.rank},
          {"qk_nope_head_dim", Latents::kPlainDims},
          {"qk_rope_head_dim", sizes.rope_dims},
          {"v_head_dim", Latents::kValueDims},
          {"n_routed_experts", Latents::kExperts},
          {"num_experts_per_tok", 3},
          {"n_shared_experts", 1},
          {"n_group", 4},
          {"topk_group", 2},
          {"scoring_func", "sigmoid"},
          {"topk_method", "noaux_tc"},
          {"norm_topk_prob", true},
          {"routed_scaling_factor", 2.5},
          {"first_k_dense_replace", 1},
          {"num_nextn_predict_layers", 1},
          {"max_position_embeddings", 4096},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000.0},
          {"rope_scaling",
           {{"type", "yarn"},
            {"factor", 16},
            {"original_max_position_embeddings", 256},
            {"beta_fast", 32},
            {"beta_slow", 1},
            {"mscale", 1.0},
            {"mscale_all_dim", 1.0}}},
          {"vocab_size", vocab},
          {"eos_token_id", 1},
          {"bos_token_id", 0},
          {"torch_dtype", "bfloat16"}};
}

void WriteModel(const Latents& sizes, const std::string& folder) {
  const int64_t vocab = BundledVocab();
  ModelWriter writer;
  writer.Matrix("model.embed_tokens", vocab, Latents::kHidden);
  for (int64_t layer = 0; layer < Latents::kLayers; ++layer)
    AddLatentLayer(writer, sizes, layer, 1);
  // Of the layer that predicts further tokens, which is not used.
  writer.Norm(fmt::format("model.layers.{}.enorm", Latents::kLayers), Latents::kHidden);
  writer.Norm("model.norm", Latents::kHidden);
  writer.Matrix("lm_head", vocab, Latents::kHidden);
  writer.Write(LatentJson(sizes, vocab, Latents::kLayers), folder);
}

// The layers add little to a token's embedding, so the next token is mostly that which its
// embedding alone gives. The layer for multi-token prediction takes the embedding alone, too.
void WriteModelWithMtp(const Latents& sizes, int64_t layers, const std::string& folder) {
  constexpr float kFactor = 0.004f;
  const int64_t vocab = BundledVocab();
  ModelWriter writer;
  writer.Matrix("model.embed_tokens", vocab, Latents::kHidden);
  for (int64_t layer = 0; layer <= layers; ++layer) AddLatentLayer(writer, sizes, layer, kFactor);
  const std::string mtp = fmt::format("model.layers.{}.", layers);
  for (const char* norm : {"enorm", "hnorm", "shared_head.norm"}) {
    writer.PlainNorm(mtp + norm, Latents::kHidden);
  }
  writer.Selection(mtp + "eh_proj", Latents::kHidden, 2 * Latents::kHidden);
  // Copies, as the published checkpoints have them.
  writer.Matrix(mtp + "embed_tokens", vocab, Latents::kHidden);
  writer.Matrix(mtp + "shared_head.head", vocab, Latents::kHidden);
  writer.PlainNorm("model.norm", Latents::kHidden);
  writer.Matrix("lm_head", vocab, Latents::kHidden);
  writer.Write(LatentJson(sizes, vocab, layers), folder);
}

}  // namespace

void WriteLatentModel(const std::string& folder) { WriteModel({}, folder); }

void WriteLargeLatentModel(const std::string& folder) {
  WriteModel({.rank = 512, .rope_dims = 64}, folder);
}

void WriteMtpModel(const std::string& folder) { WriteModelWithMtp({}, 7, folder); }

void WriteLargeMtpModel(const std::string& folder) {
  WriteModelWithMtp({.rank = 512, .rope_dims = 64}, 2, folder);
}

}  // namespace penstock
