#include "lab/eval/kv_source.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>

#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_rows.h"
#include "model/forward/rope_angles.h"
#include "model/forward/transformer_runner.h"
#include "model/load/load_model.h"
#include "model/tokenizer/tokenizer.h"

namespace penstock {
namespace {

constexpr int32_t kPrefillChunk = 512;

// Writes the keys and values of `tokens` into the blocks from `first` on.
absl::Status Prefill(TransformerRunner& runner, const PagedKv& kv, int64_t first,
                     std::span<const uint32_t> tokens) {
  std::vector<uint32_t> blocks(static_cast<size_t>(kv.layout.BlocksFor(std::ssize(tokens))));
  std::iota(blocks.begin(), blocks.end(), static_cast<uint32_t>(first));
  for (size_t at = 0; at < tokens.size(); at += kPrefillChunk) {
    const SequenceStep step{
        .tokens = tokens.subspan(at, std::min<size_t>(kPrefillChunk, tokens.size() - at)),
        .position = static_cast<int32_t>(at),
        .blocks = blocks};
    RETURN_IF_ERROR(
        runner.Step({.sequences = {&step, 1}, .kv = kv, .logits = {nullptr, {0, runner.vocab()}}}));
  }
  return absl::OkStatus();
}

void ReadKey(const KvSample& sample, const KvRowsAt& at, std::span<float> key) {
  std::vector<Bf16> row(key.size());
  cpu::LoadKvRows(sample.view(), at, 1, row.data());
  std::transform(row.begin(), row.end(), key.begin(), [](Bf16 value) { return ToFloat(value); });
}

// Turns a key back to what it was before RoPE. Its inverse has the opposite angle, and divides by
// the square of the attention factor.
void Unrotate(const LayerRotation& rotation, int32_t position, std::span<float> key) {
  const size_t pairs = rotation.frequencies.size();
  std::vector<float> cosines(pairs), sines(pairs);
  RopeAngles(rotation.frequencies, 1 / rotation.attention_factor, position, cosines.data(),
             sines.data());
  for (float& sine : sines) sine = -sine;
  ActiveSimd().rope(key.data(), cosines.data(), sines.data(), static_cast<int64_t>(pairs));
}

std::vector<float> LayerKeyMeans(const KvSample& sample, int32_t layer) {
  const KvLayout& layout = sample.layout;
  const ModelConfig& config = sample.config;
  const auto dims = static_cast<size_t>(config.head_dim);
  const LayerRotation rotation = RotationOf(config, layer);
  std::vector<double> sums(static_cast<size_t>(config.kv_heads) * dims);
  std::vector<float> key(dims);
  for (int64_t block = 0; block < sample.blocks; ++block) {
    for (int32_t slot = 0; slot < layout.block_tokens; ++slot) {
      const int32_t position = sample.positions[static_cast<size_t>(block)] + slot;
      for (int32_t head = 0; head < config.kv_heads; ++head) {
        ReadKey(
            sample,
            {.block = static_cast<uint32_t>(block), .layer = layer, .kv_head = head, .slot = slot},
            key);
        Unrotate(rotation, position, key);
        for (size_t d = 0; d < dims; ++d) sums[static_cast<size_t>(head) * dims + d] += key[d];
      }
    }
  }
  const auto count = static_cast<double>(sample.blocks * layout.block_tokens);
  std::vector<float> means;
  for (const double sum : sums) means.push_back(static_cast<float>(sum / count));
  return means;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadDocuments(const std::string& path) {
  std::ifstream file(path);
  if (!file) return NotFound("{} cannot be read; name a text file with --text", path);
  std::vector<std::string> documents;
  std::string document;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) {
      document += document.empty() ? line : "\n" + line;
    } else if (!document.empty()) {
      documents.push_back(std::exchange(document, {}));
    }
  }
  if (!document.empty()) documents.push_back(document);
  if (documents.empty()) return InvalidArgument("{} has no text", path);
  return documents;
}

absl::StatusOr<KvSample> PrefillSample(const std::string& model, const std::string& text_path,
                                       int64_t tokens_max, int32_t threads) {
  ASSIGN_OR_RETURN(const LoadedModel loaded, LoadModel(model));
  ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(model));
  ASSIGN_OR_RETURN(const std::vector<std::string> documents, ReadDocuments(text_path));
  ThreadPool pool(std::max(1, threads));
  TransformerRunner runner(loaded.weights, {.threads = &pool}, kPrefillChunk);
  const int32_t block_tokens = runner.kv_layout().block_tokens;
  KvSample sample{.config = loaded.weights.config,
                  .layout = runner.kv_layout(),
                  .blocks = 0,
                  .positions = {},
                  .pages = {}};
  const int64_t capacity = (tokens_max + block_tokens - 1) / block_tokens;
  sample.pages = Buffer(static_cast<size_t>(capacity) * sample.layout.BlockStride());
  const PagedKv kv{sample.pages.as<std::byte>(), capacity, sample.layout};
  for (const std::string& document : documents) {
    ASSIGN_OR_RETURN(std::vector<uint32_t> tokens, tokenizer->Encode(document));
    const int64_t room = (capacity - sample.blocks) * block_tokens;
    const int64_t max = std::min<int64_t>({std::ssize(tokens), runner.max_position(), room});
    tokens.resize(static_cast<size_t>(max / block_tokens * block_tokens));
    if (tokens.empty()) continue;
    RETURN_IF_ERROR(Prefill(runner, kv, sample.blocks, tokens));
    for (int64_t at = 0; at < std::ssize(tokens); at += block_tokens) {
      sample.positions.push_back(static_cast<int32_t>(at));
    }
    sample.blocks = std::ssize(sample.positions);
  }
  if (sample.blocks == 0) return InvalidArgument("{} has no document of a block", text_path);
  return sample;
}

absl::StatusOr<std::vector<uint32_t>> TokensOf(const Tokenizer& tokenizer,
                                               const std::string& path) {
  ASSIGN_OR_RETURN(const std::vector<std::string> documents, ReadDocuments(path));
  std::vector<uint32_t> tokens;
  for (const std::string& document : documents) {
    ASSIGN_OR_RETURN(const std::vector<uint32_t> ids,
                     tokenizer.Encode(document, {.add_special_tokens = false}));
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }
  return tokens;
}

KeyMeans MeasureKeyMeans(const KvSample& sample) {
  KeyMeans means;
  for (int32_t layer = 0; layer < sample.config.layers; ++layer) {
    means.layers.push_back(LayerKeyMeans(sample, layer));
  }
  return means;
}

KvCalibration MeasureCalibration(const KvSample& sample) {
  std::vector<const Bf16*> blocks;
  for (int64_t i = 0; i < sample.blocks; ++i) {
    blocks.push_back(reinterpret_cast<const Bf16*>(sample.view().Block(static_cast<uint32_t>(i))));
  }
  const auto layers = static_cast<uint16_t>(sample.layout.layers);
  return KvCalibration::Measure(RunOf(sample.layout, 0, 1, 0, layers), blocks);
}

}  // namespace penstock
