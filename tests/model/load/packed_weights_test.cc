// Packed weights that several processes map.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lab/fake/temp_folder.h"
#include "model/load/load_model.h"
#include "tests/model/checkpoint/safetensors_writer.h"

namespace penstock {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

nlohmann::json Config() {
  return {{"architectures", {"Qwen2ForCausalLM"}},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", 40},
          {"max_position_embeddings", 64},
          {"tie_word_embeddings", false}};
}

std::vector<WrittenTensor> Tensors(char fill) {
  std::vector<WrittenTensor> tensors = {{"lm_head.weight", {40, 64}, "BF16", fill},
                                        {"model.embed_tokens.weight", {40, 64}, "BF16", fill},
                                        {"model.norm.weight", {64}, "BF16", fill}};
  for (int i = 0; i < 2; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    const auto add = [&](const std::string& name, const std::vector<int64_t>& shape) {
      const auto other = static_cast<char>(fill + tensors.size() % 8);
      tensors.push_back({layer + name, shape, "BF16", other});
    };
    for (const std::string norm : {"input_layernorm", "post_attention_layernorm"}) {
      add(norm + ".weight", {64});
    }
    for (const std::string part : {"q", "k", "v"}) {
      const int64_t rows = part == "q" ? 64 : 32;
      add("self_attn." + part + "_proj.weight", {rows, 64});
      add("self_attn." + part + "_proj.bias", {rows});
    }
    add("self_attn.o_proj.weight", {64, 64});
    add("mlp.gate_proj.weight", {96, 64});
    add("mlp.up_proj.weight", {96, 64});
    add("mlp.down_proj.weight", {64, 96});
  }
  return tensors;
}

class PackedWeightsTest : public testing::Test {
 protected:
  void SetUp() override { Write('2'); }

  void Write(char fill) {
    checkpoint_.Write("config.json", Config().dump());
    checkpoint_.Write("model.safetensors", SafetensorsBytes(Tensors(fill)));
  }
  absl::StatusOr<LoadedModel> Load(WeightPolicy policy = WeightPolicy::kCheckpoint,
                                   bool shared = true) const {
    return LoadModel(checkpoint_.path(),
                     {.policy = policy, .packed_directory = shared ? packed_.path() : ""});
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(packed_.path())) {
      files.push_back(entry.path());
    }
    return files;
  }

  const TempFolder checkpoint_;
  const TempFolder packed_;
};

void ExpectEqualRows(const WeightMatrix& a, const WeightMatrix& b) {
  ASSERT_EQ(a.outputs(), b.outputs());
  ASSERT_EQ(a.inputs(), b.inputs());
  std::vector<float> want(static_cast<size_t>(a.inputs())), found = want;
  for (int64_t row = 0; row < a.outputs(); ++row) {
    a.GetRow(row, want.data());
    b.GetRow(row, found.data());
    ASSERT_EQ(want, found) << row;
  }
}

void ExpectEqualBytes(const Buffer& a, const Buffer& b) {
  ASSERT_EQ(a.bytes(), b.bytes());
  EXPECT_TRUE(a.bytes() == 0 || std::memcmp(a.as<std::byte>(), b.as<std::byte>(), a.bytes()) == 0);
}

void ExpectEqual(const LoadedModel& a, const LoadedModel& b) {
  EXPECT_EQ(a.fingerprint, b.fingerprint);
  EXPECT_EQ(a.weights.FormName(), b.weights.FormName());
  EXPECT_EQ(a.weights.bytes(), b.weights.bytes());
  ExpectEqualRows(a.weights.lm_head, b.weights.lm_head);
  ExpectEqualBytes(a.weights.embedding, b.weights.embedding);
  ExpectEqualBytes(a.weights.positions, b.weights.positions);
  ASSERT_EQ(a.weights.embedding_weight.has_value(), b.weights.embedding_weight.has_value());
  if (a.weights.embedding_weight) {
    ExpectEqualRows(*a.weights.embedding_weight, *b.weights.embedding_weight);
  }
  EXPECT_EQ(a.weights.final_norm, b.weights.final_norm);
  for (size_t i = 0; i < a.weights.layers.size(); ++i) {
    const LayerWeights &one = a.weights.layers[i], &two = b.weights.layers[i];
    EXPECT_EQ(one.attention_norm, two.attention_norm);
    EXPECT_EQ(one.qkv_bias, two.qkv_bias);
    const auto matrices = one.Matrices(), others = two.Matrices();
    ASSERT_EQ(matrices.size(), others.size());
    for (size_t m = 0; m < matrices.size(); ++m) ExpectEqualRows(*matrices[m], *others[m]);
  }
}

TEST_F(PackedWeightsTest, AreThoseOfTheCheckpoint) {
  for (const WeightPolicy policy :
       {WeightPolicy::kCheckpoint, WeightPolicy::kInt8, WeightPolicy::kInt4}) {
    const auto alone = Load(policy, false), first = Load(policy), second = Load(policy);
    ASSERT_TRUE(alone.ok() && first.ok() && second.ok())
        << alone.status() << first.status() << second.status();
    EXPECT_EQ(alone->weights.shared_memory, nullptr);
    EXPECT_NE(first->weights.shared_memory, nullptr);
    ExpectEqual(*alone, *first);
    ExpectEqual(*alone, *second);
  }
  EXPECT_EQ(Files().size(), 3u);  // one for each form
}

// Of every family and format: experts, latents, sections of several formats, orders of inputs.
TEST_F(PackedWeightsTest, AreThoseOfEveryKindOfCheckpoint) {
  const std::filesystem::path source = std::getenv("PENSTOCK_SOURCE_DIR");
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source / "tests/golden/logits")) {
    SCOPED_TRACE(entry.path());
    std::string model = entry.path();
    if (exists(entry.path() / "model.gguf")) model += "/model.gguf";
    const auto alone = LoadModel(model), packed_by_threads = LoadModel(model, {.threads = 3});
    const auto first = LoadModel(model, {.packed_directory = packed_.path(), .threads = 3});
    const auto second = LoadModel(model, {.packed_directory = packed_.path()});
    ASSERT_TRUE(alone.ok() && packed_by_threads.ok() && first.ok() && second.ok())
        << alone.status() << first.status() << second.status();
    ExpectEqual(*alone, *packed_by_threads);
    ExpectEqual(*alone, *first);
    ExpectEqual(*alone, *second);
    ++count;
  }
  EXPECT_GT(count, 60);
  EXPECT_EQ(std::ssize(Files()), count);
}

// Two mappings of one page of a file change together, and copies do not.
TEST_F(PackedWeightsTest, AreInMemoryOnce) {
  const auto one = Load(), two = Load();
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  const auto first_byte = [](const LoadedModel& model) {
    return static_cast<char>(model.weights.lm_head.memory()[0][0]);
  };
  ASSERT_EQ(first_byte(*one), '2');
  std::fstream file(Files().at(0), std::ios::in | std::ios::out | std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  file.seekp(4096);
  const std::string changed(bytes.size() - 4096, 'x');
  file.write(changed.data(), static_cast<std::streamsize>(changed.size()));
  file.flush();
  EXPECT_EQ(first_byte(*one), 'x');
  EXPECT_EQ(first_byte(*two), 'x');
}

TEST_F(PackedWeightsTest, AReplacedCheckpointHasAFileOfItsOwn) {
  const auto before = Load();
  Write('4');
  const auto after = Load();
  ASSERT_TRUE(before.ok() && after.ok()) << before.status() << after.status();
  EXPECT_NE(before->fingerprint, after->fingerprint);
  ExpectEqual(*Load(WeightPolicy::kCheckpoint, false), *after);
  EXPECT_EQ(Files().size(), 2u);
}

TEST_F(PackedWeightsTest, OneOfManyWritesTheFile) {
  std::vector<std::thread> threads;
  std::vector<absl::StatusOr<LoadedModel>> models(4);
  for (auto& model : models) threads.emplace_back([&] { model = Load(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& model : models) {
    ASSERT_TRUE(model.ok()) << model.status();
    ExpectEqual(*models[0], *model);
  }
  EXPECT_EQ(Files().size(), 1u);
}

TEST_F(PackedWeightsTest, ADamagedFileIsNamed) {
  ASSERT_TRUE(Load().ok());
  const std::string path = Files().at(0);
  std::ifstream stream(path, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(stream)), {});
  const auto load_with = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    return Load().status();
  };
  ASSERT_TRUE(load_with(whole).ok());
  for (const size_t at : {size_t{0}, size_t{8}, size_t{16}, size_t{24}, size_t{32}, size_t{4096},
                          whole.size() / 2 / 4096 * 4096, whole.size() - 1}) {
    std::string other = whole;
    other[at] = static_cast<char>(other[at] ^ 1);
    const absl::Status status = load_with(other);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << at;
    EXPECT_THAT(Message(status), AllOf(HasSubstr(path), HasSubstr("remove the file"))) << at;
  }
  for (const size_t size : {size_t{0}, size_t{39}, size_t{40}, size_t{4096}, whole.size() - 1}) {
    EXPECT_EQ(load_with(whole.substr(0, size)).code(), absl::StatusCode::kDataLoss) << size;
  }
}

TEST_F(PackedWeightsTest, AFileThatOthersMayWriteIsRefused) {
  ASSERT_TRUE(Load().ok());
  const std::string path = Files().at(0);
  ASSERT_EQ(chmod(path.c_str(), 0622), 0);
  const absl::Status status = Load().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(Message(status), HasSubstr(path));
}

TEST_F(PackedWeightsTest, ACheckpointWithAnErrorLeavesNoFile) {
  auto tensors = Tensors('2');
  tensors.pop_back();
  checkpoint_.Write("model.safetensors", SafetensorsBytes(tensors));
  EXPECT_EQ(Load().status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(Files().empty());
}

}  // namespace
}  // namespace penstock
