#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/buffer.h"
#include "kernels/paged_kv.h"
#include "kvstore/codec/codec_calibration.h"
#include "model/checkpoint/key_means.h"
#include "model/tokenizer/tokenizer.h"

namespace penstock {

// Real keys and values: what a model's prefill leaves in its pages, block after block.
struct KvSample {
  ModelConfig config;
  KvLayout layout;
  int64_t blocks = 0;              // full ones, of several documents
  std::vector<int32_t> positions;  // of the first token of each block
  Buffer pages;                    // [block] at layout.BlockStride()

  PagedKv view() const { return {pages.as<std::byte>(), blocks, layout}; }
};

// Documents of `path` (parted by blank lines), each its text.
absl::StatusOr<std::vector<std::string>> ReadDocuments(const std::string& path);

// Prefills the documents one after the other, each up to the model's context, until `tokens_max`
// tokens are in pages. Only full blocks count.
absl::StatusOr<KvSample> PrefillSample(const std::string& model, const std::string& text_path,
                                       int64_t tokens_max, int32_t threads);

// The means of a model's keys before RoPE, from a sample of its KV. Pages of latents have none.
KeyMeans MeasureKeyMeans(const KvSample& sample);

// The codecs' calibration for the model, from a sample of its KV.
KvCalibration MeasureCalibration(const KvSample& sample);

// The documents of a text as tokens, one after the other, without special tokens.
absl::StatusOr<std::vector<uint32_t>> TokensOf(const Tokenizer& tokenizer, const std::string& path);

}  // namespace penstock
