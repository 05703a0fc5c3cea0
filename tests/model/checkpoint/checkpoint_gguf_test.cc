#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/fake/temp_folder.h"
#include "model/checkpoint/checkpoint.h"
#include "tests/model/gguf/gguf_writer.h"

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

GgufWriter Model(std::string_view architecture = "llama") {
  GgufWriter writer = LlamaMetadata(architecture);
  writer.U32("tokenizer.ggml.eos_token_id", 7)
      .Tensor("token_embd.weight", "Q8_0", {10, 32}, 'e')
      .Tensor("blk.1.attn_q.weight", "Q4_0", {32, 32}, 'q')
      .Tensor("blk.1.attn_v.weight", "Q6_K", {16, 256}, 'v')
      .Tensor("output_norm.weight", "F32", {32}, 'n');
  return writer;
}

class CheckpointGgufTest : public testing::Test {
 protected:
  absl::StatusOr<Checkpoint> Open(const GgufWriter& writer, const char* name = "m.gguf") {
    folder_.Write(name, writer.Bytes());
    return Checkpoint::Open(folder_.path() + "/" + name);
  }

  const TempFolder folder_;
};

TEST_F(CheckpointGgufTest, TensorsHaveHuggingFacesNames) {
  const auto checkpoint = Open(Model());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->directory(), folder_.path());
  EXPECT_EQ(checkpoint->config().architecture, "LlamaForCausalLM");
  EXPECT_EQ(checkpoint->config().head_dim, 8);
  EXPECT_EQ(checkpoint->config().vocab, 10);
  EXPECT_TRUE(checkpoint->config().tied_embeddings);
  EXPECT_THAT(checkpoint->config().eos_token_ids, ElementsAre(7));
  EXPECT_THAT(checkpoint->tensor_names(),
              ElementsAre("model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight",
                          "model.layers.1.self_attn.v_proj.weight", "model.norm.weight"));
  const auto q = checkpoint->Find("model.layers.1.self_attn.q_proj.weight");
  ASSERT_TRUE(q.ok()) << q.status();
  EXPECT_EQ(q->info->dtype, "Q4_0");
  EXPECT_THAT(q->info->shape, ElementsAre(32, 32));
  EXPECT_EQ(q->bytes.size(), 32u * 18);
  EXPECT_EQ(q->bytes[0], std::byte{'q'});
  EXPECT_EQ(q->file, "m.gguf");
  EXPECT_EQ(q->interleaved_head, 8);
  const auto v = checkpoint->Find("model.layers.1.self_attn.v_proj.weight");
  EXPECT_EQ(v->info->dtype, "Q6_K");
  EXPECT_EQ(v->bytes.size(), 16u * 210);
  EXPECT_EQ(v->bytes[0], std::byte{'v'});
  EXPECT_EQ(v->interleaved_head, 0);
  EXPECT_TRUE(absl::IsNotFound(checkpoint->Find("lm_head.weight").status()));
}

TEST_F(CheckpointGgufTest, QwensRowsAreInOrder) {
  const auto checkpoint = Open(Model("qwen3"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->Find("model.layers.1.self_attn.q_proj.weight")->interleaved_head, 0);
}

TEST_F(CheckpointGgufTest, TheFingerprintCoversTheHeaderAndNotTheName) {
  const auto fingerprint = [&](const GgufWriter& writer, const char* name = "m.gguf") {
    const auto checkpoint = Open(writer, name);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return checkpoint->layout_fingerprint();
  };
  const uint64_t first = fingerprint(Model());
  EXPECT_EQ(fingerprint(Model()), first);
  EXPECT_EQ(fingerprint(Model(), "renamed.gguf"), first);
  EXPECT_NE(fingerprint(Model().U32("general.file_type", 2)), first);
  EXPECT_NE(fingerprint(Model().Tensor("output.weight", "F16", {10, 32})), first);
}

TEST_F(CheckpointGgufTest, PartsOfASplitModel) {
  GgufWriter first = Model();
  first.Number("split.no", GgufType::kU16, uint16_t{0})
      .Number("split.count", GgufType::kU16, uint16_t{2});
  GgufWriter second;
  second.Number("split.no", GgufType::kU16, uint16_t{1})
      .Tensor("output.weight", "BF16", {10, 32}, 'o');
  folder_.Write("m-00002-of-00002.gguf", second.Bytes());
  const auto checkpoint = Open(first, "m-00001-of-00002.gguf");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_FALSE(checkpoint->config().tied_embeddings);
  const auto head = checkpoint->Find("lm_head.weight");
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->file, "m-00002-of-00002.gguf");
  EXPECT_EQ(head->bytes.size(), 640u);
  EXPECT_EQ(head->bytes[639], std::byte{'o'});
}

GgufWriter DeepseekModel() {
  GgufWriter writer;
  writer.Text("general.architecture", "deepseek2")
      .U32("deepseek2.block_count", 1)
      .U32("deepseek2.context_length", 64)
      .U32("deepseek2.embedding_length", 32)
      .U32("deepseek2.feed_forward_length", 48)
      .U32("deepseek2.attention.head_count", 2)
      .F32("deepseek2.attention.layer_norm_rms_epsilon", 1e-6f)
      .U32("deepseek2.leading_dense_block_count", 1)
      .U32("deepseek2.expert_count", 4)
      .U32("deepseek2.expert_used_count", 2)
      .U32("deepseek2.expert_shared_count", 1)
      .U32("deepseek2.expert_feed_forward_length", 32)
      .U32("deepseek2.rope.dimension_count", 8)
      .U32("deepseek2.attention.kv_lora_rank", 16)
      .U32("deepseek2.attention.key_length", 32)
      .U32("deepseek2.attention.value_length", 40)
      .Tensor("token_embd.weight", "F32", {10, 32});
  return writer;
}

// The keys' half of kv_b_proj has the latent's rank before the plain dimensions of a head.
TEST_F(CheckpointGgufTest, HalvesOfLatentsAreMatrices) {
  const auto halves = Open(DeepseekModel()
                               .Tensor("blk.0.attn_k_b.weight", "F32", {2, 16, 24}, 'k')
                               .Tensor("blk.0.attn_v_b.weight", "F32", {2, 40, 16}, 'v'));
  ASSERT_TRUE(halves.ok()) << halves.status();
  EXPECT_TRUE(halves->config().names.latent_halves);
  EXPECT_THAT(halves->Find("model.layers.0.self_attn.k_b_proj.weight")->info->shape,
              ElementsAre(32, 24));
  EXPECT_THAT(halves->Find("model.layers.0.self_attn.v_b_proj.weight")->info->shape,
              ElementsAre(80, 16));
  const auto whole = Open(DeepseekModel().Tensor("blk.0.attn_kv_b.weight", "F32", {128, 16}));
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_FALSE(whole->config().names.latent_halves);
  EXPECT_THAT(
      Message(Open(DeepseekModel().Tensor("blk.0.attn_k_b.weight", "F32", {2, 24, 16})).status()),
      HasSubstr("tensor \"blk.0.attn_k_b.weight\" has shape [2, 24, 16], allowed is "
                "[2, 16, 24]"));
}

TEST_F(CheckpointGgufTest, NamesAndNormsOfGemma) {
  const auto gemma = Open(LlamaMetadata("gemma3")
                              .Tensor("token_embd.weight", "F32", {10, 32})
                              .Tensor("blk.0.ffn_norm.weight", "F32", {32})
                              .Tensor("blk.0.post_ffw_norm.weight", "F32", {32}));
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  EXPECT_EQ(gemma->config().norm_offset, 0);  // the file has it already
  const LayerNames& names = gemma->config().names;
  EXPECT_TRUE(gemma->Find(fmt::format("model.layers.0.{}.weight", names.mlp_norm)).ok());
  EXPECT_TRUE(gemma->Find(fmt::format("model.layers.0.{}.weight", names.mlp_output_norm)).ok());
}

TEST_F(CheckpointGgufTest, RefusesWhatHasNoPlace) {
  const auto error = [&](const GgufWriter& writer) { return Message(Open(writer).status()); };
  EXPECT_THAT(
      error(Model().Tensor("blk.0.ffn_gate_exps.weight", "F32", {2, 48, 32})),
      AllOf(HasSubstr("/m.gguf: tensor \"blk.0.ffn_gate_exps.weight\" of shape [2, 48, 32]"),
            HasSubstr("has no place in a model of architecture llama")));
  EXPECT_THAT(error(LlamaMetadata("mamba")), HasSubstr("general.architecture"));
  // The limits of config.json's reader hold for metadata as well.
  EXPECT_THAT(error(LlamaMetadata()
                        .U32("llama.attention.key_length", 12)
                        .Tensor("token_embd.weight", "F32", {10, 32})),
              HasSubstr("m.gguf: config.json: head_dim is 12, allowed is a multiple of 8"));
}

}  // namespace
}  // namespace penstock
