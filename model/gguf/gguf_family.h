#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "model/gguf/file/gguf_fields.h"
#include "model/gguf/file/gguf_file.h"

namespace penstock {

// The config.json that is made of a file's metadata, and how its keys are read. The first error is
// kept in `fields`. One thread.
struct GgufDraft {
  GgufDraft(const GgufFile& gguf, std::string_view name)
      : file(gguf), fields(gguf), architecture(name) {}

  static constexpr int64_t kMaxNumber = int64_t{1} << 31;  // config.json's reader has exact limits
  static constexpr double kMaxTheta = 1e12;

  std::string Key(std::string_view name) const;  // "ARCHITECTURE.name"
  // An integer from 1 on; `absent` if the key is absent, or an error without it.
  int64_t Positive(std::string_view name, std::optional<int64_t> absent = std::nullopt);
  int64_t EqualPositives(std::string_view name, std::optional<int64_t> absent = std::nullopt);

  const GgufFile& file;  // outlives this
  GgufFields fields;
  std::string_view architecture;
  nlohmann::json json = nlohmann::json::object();
};

// A field of config.json that a family names otherwise than Llama.
struct GgufRename {
  std::string_view usual;
  std::string_view own;
};

// An architecture of GGUF files, by its differences from those that say all in the keys of
// gguf_config.cc. Plain data; gguf_family.cc has one row for each.
struct GgufFamily {
  std::string_view architecture;  // general.architecture
  std::string_view hugging_face;  // unless `write` sets "architectures"
  // Keys behind "ARCHITECTURE." that are understood beside those of all families.
  std::span<const std::string_view> keys;
  bool experts = false;     // the expert_* keys may be there
  bool layer_norm = false;  // norms are layer norms: attention.layer_norm_epsilon
  // post_attention_norm is the norm before an MLP; otherwise it is one of attention's output.
  bool post_attention_is_mlp_norm = false;
  bool parallel_field = false;  // use_parallel_residual must be there; otherwise it must be false
  // Fields that `write` and all before it write under Llama's names.
  std::span<const GgufRename> renames;
  // Control tokens that end an answer, beside those of all families.
  std::span<const std::string_view> ends;
  // Reads the sizes of heads and returns the dimensions of a head that are rotated.
  int64_t (*read_heads)(GgufDraft& draft);
  // Writes what the family has of its own, after all else is written.
  void (*write)(GgufDraft& draft);
};

// INVALID_ARGUMENT unless general.architecture names a row.
absl::StatusOr<const GgufFamily*> FindGgufFamily(const GgufFile& file);
const GgufFamily* FindGgufFamily(std::string_view architecture);  // null if there is no such row

// For read_heads: the keys of queries, keys, values and rotation must agree on the size.
int64_t ReadEqualHeads(GgufDraft& draft);
// The same, but rope.dimension_count says how many dimensions are rotated.
int64_t ReadPartlyRotatedHeads(GgufDraft& draft);
// These architectures do not say which layers a window is for.
void RefuseWindow(GgufDraft& draft);

// gguf_deepseek.cc
int64_t ReadLatentHeads(GgufDraft& draft);
void WriteDeepseek(GgufDraft& draft);
void WriteGlm4Moe(GgufDraft& draft);
// gguf_gemma.cc
void WriteGemma2(GgufDraft& draft);
void WriteGemma3(GgufDraft& draft);
// gguf_layer_norm.cc
void WriteFalcon(GgufDraft& draft);
void WriteGpt2(GgufDraft& draft);
void WriteGptNeox(GgufDraft& draft);
void WriteStarcoder2(GgufDraft& draft);
// gguf_phi.cc
void WritePhi3(GgufDraft& draft);

}  // namespace penstock
