#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "kernels/buffer.h"
#include "kernels/paged_kv.h"
#include "model/checkpoint/safetensors.h"
#include "tests/support/environment.h"

namespace penstock {

inline std::string GoldenDirectory() { return SourceFolder() + "/tests/golden/logits"; }

// The model of a case: its directory, or the GGUF file there.
inline std::string ModelIn(const std::string& directory) {
  const std::string file = directory + "/model.gguf";
  return std::filesystem::exists(file) ? file : directory;
}

struct Expected {
  std::vector<uint32_t> tokens;
  std::vector<float> logits;          // [tokens][vocab], all in float32
  std::vector<float> logits_bf16_kv;  // [tokens][vocab], keys and values rounded to bf16
  // Of quantised weights, the same with activations rounded to 16-bit integers; else empty.
  std::vector<float> logits_int16;
  // Of the layer for multi-token prediction: [tokens][vocab] and [tokens][hidden], or empty.
  std::vector<float> mtp_logits, mtp_hidden;
  std::map<std::string, std::vector<float>> rows;  // of blocks, by GGUF's name of the matrix
};

template <class T>
std::vector<T> ReadTensor(const MappedFile& file, const SafetensorsHeader& header,
                          std::string_view name) {
  for (const SafetensorsTensor& tensor : header.tensors) {
    if (tensor.name != name) continue;
    std::vector<T> values((tensor.end - tensor.begin) / sizeof(T));
    std::memcpy(values.data(), file.bytes().data() + tensor.begin, values.size() * sizeof(T));
    return values;
  }
  return {};
}

inline Expected ReadExpected(const std::string& directory) {
  const auto file = MappedFile::Open(directory + "/expected.safetensors");
  EXPECT_TRUE(file.ok()) << file.status();
  const auto header = ParseSafetensors(file->bytes(), "expected.safetensors");
  EXPECT_TRUE(header.ok()) << header.status();
  Expected expected{.tokens = ReadTensor<uint32_t>(*file, *header, "tokens"),
                    .logits = ReadTensor<float>(*file, *header, "logits"),
                    .logits_bf16_kv = ReadTensor<float>(*file, *header, "logits_bf16_kv"),
                    .logits_int16 = ReadTensor<float>(*file, *header, "logits_int16"),
                    .mtp_logits = ReadTensor<float>(*file, *header, "mtp_logits"),
                    .mtp_hidden = ReadTensor<float>(*file, *header, "mtp_hidden")};
  for (const SafetensorsTensor& tensor : header->tensors) {
    if (!tensor.name.starts_with("row.")) continue;
    expected.rows[tensor.name.substr(4)] = ReadTensor<float>(*file, *header, tensor.name);
  }
  return expected;
}

// A pool of pages whose block table is in no order, as after hours of serving.
class Pages {
 public:
  Pages(KvLayout layout, int64_t tokens, uint32_t seed)
      : buffer_(static_cast<size_t>(2 * layout.BlocksFor(tokens)) * layout.BlockStride()) {
    kv_ = {
        .arena = buffer_.as<std::byte>(), .blocks = 2 * layout.BlocksFor(tokens), .layout = layout};
    std::memset(kv_.arena, 0xff, buffer_.bytes());  // NaN, so that reading a page unwritten shows
    table_.resize(static_cast<size_t>(kv_.blocks));
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(seed));
  }
  const PagedKv& kv() const { return kv_; }
  std::span<const uint32_t> table() const { return table_; }

 private:
  Buffer buffer_;
  PagedKv kv_;
  std::vector<uint32_t> table_;
};

inline std::vector<size_t> RandomChunks(size_t total, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<size_t> chunks;
  while (total > 0) {
    chunks.push_back(std::min<size_t>(total, 1 + random() % 13));
    total -= chunks.back();
  }
  return chunks;
}

struct Difference {
  double max = 0;
  double rms = 0;  // relative to the root mean square of the logits
};

inline Difference Compare(const std::vector<std::vector<float>>& rows,
                          const std::vector<float>& expected) {
  double max = 0, error = 0, scale = 0;
  for (size_t i = 0; i < rows.size(); i++) {
    for (size_t id = 0; id < rows[i].size(); id++) {
      const double want = expected[i * rows[i].size() + id];
      const double off = rows[i][id] - want;
      max = std::max(max, std::abs(off));
      error += off * off;  // carries a NaN, which max does not
      scale += want * want;
    }
  }
  return {max, std::sqrt(error / scale)};
}

// f32 arithmetic differs from transformers in the order of sums alone, which now and then rounds a
// key or value to the other bf16. Products of bf16 activations (8 bits) keep about two digits.
inline constexpr Difference kF32Limit = {.max = 0.01, .rms = 2e-4};
inline constexpr Difference kBf16Limit = {.max = 0.5, .rms = 0.015};

}  // namespace penstock
