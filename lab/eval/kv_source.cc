#include "lab/eval/kv_source.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>
#include <sstream>

#include "kernels/cpu/thread_pool.h"
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
  KvSample sample{.layout = runner.kv_layout(), .blocks = 0, .pages = {}};
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
    sample.blocks += std::ssize(tokens) / block_tokens;
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

KvCalibration MeasureCalibration(const KvSample& sample) {
  std::vector<const Bf16*> blocks;
  for (int64_t i = 0; i < sample.blocks; ++i) {
    blocks.push_back(reinterpret_cast<const Bf16*>(sample.view().Block(static_cast<uint32_t>(i))));
  }
  const auto layers = static_cast<uint16_t>(sample.layout.layers);
  return KvCalibration::Measure(RunOf(sample.layout, 0, 1, 0, layers), blocks);
}

}  // namespace penstock
