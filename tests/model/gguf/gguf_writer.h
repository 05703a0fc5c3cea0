#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "model/gguf/file/gguf_file.h"

namespace penstock {

// Builds the bytes of a GGUF file. Nothing is checked, so that tests can build bad ones.
class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3) : version_(version) {}

  template <class T>
  GgufWriter& Number(std::string_view key, GgufType type, T value) {
    Begin(key, type);
    Append(pairs_, value);
    return *this;
  }
  GgufWriter& U32(std::string_view key, uint32_t value) {
    return Number(key, GgufType::kU32, value);
  }
  GgufWriter& F32(std::string_view key, float value) { return Number(key, GgufType::kF32, value); }
  GgufWriter& Bool(std::string_view key, bool value) {
    return Number(key, GgufType::kBool, static_cast<uint8_t>(value));
  }
  GgufWriter& Text(std::string_view key, std::string_view value) {
    Begin(key, GgufType::kString);
    AppendText(pairs_, value);
    return *this;
  }
  template <class T>
  GgufWriter& Numbers(std::string_view key, GgufType type, const std::vector<T>& values) {
    BeginArray(key, type, values.size());
    for (const T value : values) Append(pairs_, value);
    return *this;
  }
  GgufWriter& I32s(std::string_view key, const std::vector<int32_t>& values) {
    return Numbers(key, GgufType::kI32, values);
  }
  GgufWriter& F32s(std::string_view key, const std::vector<float>& values) {
    return Numbers(key, GgufType::kF32, values);
  }
  GgufWriter& Texts(std::string_view key, const std::vector<std::string>& values) {
    BeginArray(key, GgufType::kString, values.size());
    for (const std::string& value : values) AppendText(pairs_, value);
    return *this;
  }
  GgufWriter& BeginArray(std::string_view key, GgufType type, uint64_t count) {
    Begin(key, GgufType::kArray);
    Append(pairs_, type);
    Append(pairs_, count);
    return *this;
  }
  // What follows a key and its type, verbatim.
  GgufWriter& Raw(std::string_view key, uint32_t type, std::string_view bytes) {
    Begin(key, static_cast<GgufType>(type));
    pairs_ += bytes;
    return *this;
  }

  // A tensor of `shape`, outermost extent first, whose bytes are all `fill`.
  GgufWriter& Tensor(std::string_view name, std::string_view type,
                     const std::vector<uint64_t>& shape, char fill = 0) {
    const GgmlType* known = FindGgmlType(type);
    PENSTOCK_CHECK(known != nullptr);
    size_t elements = 1;
    for (const uint64_t extent : shape) elements *= extent;
    const size_t bytes = elements / static_cast<size_t>(known->block_elements) *
                         static_cast<size_t>(known->block_bytes);
    return TensorData(name, known->id, shape, std::string(bytes, fill));
  }
  GgufWriter& TensorData(std::string_view name, uint32_t type, const std::vector<uint64_t>& shape,
                         std::string_view data) {
    TensorHeader(name, type, shape, data_.size());
    data_ += data;
    data_.resize((data_.size() + alignment_ - 1) / alignment_ * alignment_);
    return *this;
  }
  // A tensor's header alone.
  GgufWriter& TensorHeader(std::string_view name, uint32_t type, const std::vector<uint64_t>& shape,
                           uint64_t offset) {
    AppendText(tensors_, name);
    Append(tensors_, static_cast<uint32_t>(shape.size()));
    for (size_t i = shape.size(); i > 0; i--) Append(tensors_, shape[i - 1]);
    Append(tensors_, type);
    Append(tensors_, offset);
    tensor_count_++;
    return *this;
  }
  // general.alignment as the writer uses it; call it before tensors.
  GgufWriter& Align(uint32_t alignment) {
    alignment_ = alignment;
    return U32("general.alignment", alignment);
  }

  std::string Bytes() const {
    std::string bytes = "GGUF";
    Append(bytes, version_);
    Append(bytes, tensor_count_);
    Append(bytes, pair_count_);
    bytes += pairs_ + tensors_;
    bytes.resize((bytes.size() + alignment_ - 1) / alignment_ * alignment_);
    return bytes + data_;
  }

 private:
  template <class T>
  static void Append(std::string& target, T value) {
    target.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static void AppendText(std::string& target, std::string_view text) {
    Append(target, static_cast<uint64_t>(text.size()));
    target += text;
  }
  void Begin(std::string_view key, GgufType type) {
    AppendText(pairs_, key);
    Append(pairs_, type);
    pair_count_++;
  }

  uint32_t version_;
  size_t alignment_ = 32;
  uint64_t pair_count_ = 0;
  uint64_t tensor_count_ = 0;
  std::string pairs_;
  std::string tensors_;
  std::string data_;
};

// Parses `bytes`, which must outlive the result.
inline absl::StatusOr<GgufFile> ParseWritten(const std::string& bytes) {
  return ParseGguf(std::as_bytes(std::span(bytes)), "m.gguf");
}

// The sizes of a model of 2 layers with 4 heads of 8 in metadata.
inline GgufWriter SmallMetadata(const std::string& a) {
  GgufWriter writer;
  writer.Text("general.architecture", a)
      .U32(a + ".block_count", 2)
      .U32(a + ".context_length", 64)
      .U32(a + ".embedding_length", 32)
      .U32(a + ".feed_forward_length", 48)
      .U32(a + ".attention.head_count", 4);
  return writer;
}

// A Llama of these sizes in metadata, without tokenizer.
inline GgufWriter LlamaMetadata(std::string_view architecture = "llama") {
  const std::string a(architecture);
  GgufWriter writer = SmallMetadata(a);
  writer.U32(a + ".attention.head_count_kv", 2)
      .F32(a + ".attention.layer_norm_rms_epsilon", 1e-5f)
      .F32(a + ".rope.freq_base", 500000);
  return writer;
}

}  // namespace penstock
