#include "model/checkpoint/key_means.h"

#include <xxhash.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/mapped_file.h"
#include "model/checkpoint/safetensors.h"

namespace penstock {
namespace {

constexpr char kMeansFile[] = "key_means.safetensors";

std::string MeansPath(const std::string& model) {
  return fmt::format("{}{}{}", model, model.ends_with(".gguf") ? "." : "/", kMeansFile);
}

size_t WidthOf(const ModelConfig& config) {
  return static_cast<size_t>(config.kv_heads) * static_cast<size_t>(config.head_dim);
}

// The tensor `name` of `file`.
absl::StatusOr<std::vector<float>> ReadMeans(std::span<const std::byte> file,
                                             const SafetensorsHeader& header,
                                             const std::string& name, const ModelConfig& config) {
  const std::vector<int64_t> shape = {config.kv_heads, config.head_dim};
  for (const SafetensorsTensor& tensor : header.tensors) {
    if (tensor.name != name) continue;
    if (tensor.dtype != "F32" || tensor.shape != shape) {
      return InvalidArgument("{} has another type or shape than F32 [{}, {}] of this model", name,
                             config.kv_heads, config.head_dim);
    }
    std::vector<float> means(WidthOf(config));
    std::memcpy(means.data(), file.data() + tensor.begin, tensor.end - tensor.begin);
    for (const float mean : means) {
      if (!std::isfinite(mean)) return InvalidArgument("{} has a value that is not finite", name);
    }
    return means;
  }
  return InvalidArgument("{} is missing", name);
}

std::string LayerName(size_t layer) { return fmt::format("layers.{}", layer); }

}  // namespace

absl::StatusOr<KeyMeans> KeyMeans::Load(const std::string& model, const ModelConfig& config) {
  const std::string path = MeansPath(model);
  const absl::StatusOr<MappedFile> file = MappedFile::Open(path);
  if (!file.ok()) {
    return NotFound("{}; `penstock calibrate --model {}` makes it", Message(file.status()), model);
  }
  ASSIGN_OR_RETURN(const SafetensorsHeader header, ParseSafetensors(file->bytes(), path));
  KeyMeans means;
  for (size_t layer = 0; layer < static_cast<size_t>(config.layers); ++layer) {
    auto read = ReadMeans(file->bytes(), header, LayerName(layer), config);
    if (!read.ok()) return Annotate(read.status(), path);
    means.layers.push_back(*std::move(read));
  }
  return means;
}

absl::Status KeyMeans::Save(const std::string& model, const ModelConfig& config) const {
  const size_t bytes = WidthOf(config) * sizeof(float);
  nlohmann::json header;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    header[LayerName(layer)] = {{"dtype", "F32"},
                                {"shape", {config.kv_heads, config.head_dim}},
                                {"data_offsets", {layer * bytes, (layer + 1) * bytes}}};
  }
  const std::string text = header.dump();
  const uint64_t size = text.size();
  const std::string path = MeansPath(model);
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&size), sizeof(size));
  file << text;
  for (const std::vector<float>& layer : layers) {
    file.write(reinterpret_cast<const char*>(layer.data()), static_cast<std::streamsize>(bytes));
  }
  file.close();
  if (!file) return Unavailable("{} cannot be written", path);
  return absl::OkStatus();
}

uint64_t KeyMeans::Hash() const {
  uint64_t hash = 0;
  for (const std::vector<float>& layer : layers) {
    hash = XXH3_64bits_withSeed(layer.data(), layer.size() * sizeof(float), hash);
  }
  return hash;
}

}  // namespace penstock
