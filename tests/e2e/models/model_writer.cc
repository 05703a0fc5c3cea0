#include "tests/e2e/models/model_writer.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/check.h"
#include "kernels/bf16.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file << bytes;
  PENSTOCK_CHECK(file.good());
}

}  // namespace

void ModelWriter::Matrix(const std::string& name, int64_t rows, int64_t columns, float factor) {
  Add(name + ".weight", {rows, columns}, 0, factor * 1.6f / std::sqrt(static_cast<float>(columns)));
}

void ModelWriter::Selection(const std::string& name, int64_t rows, int64_t columns) {
  AddValues(name + ".weight", {rows, columns},
            [columns](int64_t i) { return i / columns == i % columns ? 1.0f : 0.0f; });
}

void ModelWriter::PlainNorm(const std::string& name, int64_t size) {
  AddValues(name + ".weight", {size}, [](int64_t) { return 1.0f; });
}

void ModelWriter::Norm(const std::string& name, int64_t size) {
  Add(name + ".weight", {size}, 1, 0.2f);
}

void ModelWriter::Mlp(const std::string& prefix, int64_t hidden, int64_t intermediate,
                      float factor) {
  Matrix(prefix + "gate_proj", intermediate, hidden);
  Matrix(prefix + "up_proj", intermediate, hidden);
  Matrix(prefix + "down_proj", hidden, intermediate, factor);
}

void ModelWriter::Bias(const std::string& name, int64_t size) { Add(name, {size}, 0.3f, 0.1f); }

void ModelWriter::Biases(const std::string& name, const std::vector<int64_t>& shape) {
  Add(name, shape, 0, 0.3f);
}

void ModelWriter::BiasedMatrix(const std::string& name, int64_t rows, int64_t columns) {
  Matrix(name, rows, columns);
  Biases(name + ".bias", {rows});
}

void ModelWriter::Mxfp4(const std::string& name, int64_t experts, int64_t rows, int64_t columns) {
  AddBytes(name + "_blocks", {experts, rows, columns / 32, 16}, 0, 255);
  AddBytes(name + "_scales", {experts, rows, columns / 32}, 119, 122);
  Biases(name + "_bias", {experts, rows});
}

void ModelWriter::AddBytes(const std::string& name, const std::vector<int64_t>& shape, int min,
                           int max) {
  std::uniform_int_distribution<int> byte(min, max);
  const size_t begin = data_.size();
  int64_t size = 1;
  for (const int64_t extent : shape) size *= extent;
  for (int64_t i = 0; i < size; ++i) data_ += static_cast<char>(byte(random_));
  header_[name] = {{"dtype", "U8"}, {"shape", shape}, {"data_offsets", {begin, data_.size()}}};
}

void ModelWriter::Add(const std::string& name, const std::vector<int64_t>& shape, float mean,
                      float deviation) {
  std::normal_distribution<float> normal(mean, deviation);
  AddValues(name, shape, [&](int64_t) { return normal(random_); });
}

void ModelWriter::AddValues(const std::string& name, const std::vector<int64_t>& shape,
                            const std::function<float(int64_t)>& value_of) {
  const size_t begin = data_.size();
  const int64_t size = shape.size() == 1 ? shape[0] : shape[0] * shape[1];
  for (int64_t i = 0; i < size; ++i) {
    const Bf16 value = ToBf16(value_of(i));
    data_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  header_[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {begin, data_.size()}}};
}

void ModelWriter::Write(const nlohmann::json& config, const std::string& folder) const {
  const std::string header = header_.dump();
  const uint64_t length = header.size();
  const std::string prefix(reinterpret_cast<const char*>(&length), sizeof(length));
  WriteFile(folder + "/config.json", config.dump());
  WriteFile(folder + "/model.safetensors", prefix + header + data_);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    std::filesystem::copy_file(ModelFolder() + "/" + name, folder + "/" + name);
  }
}

int64_t BundledVocab() {
  std::ifstream tiny(ModelFolder() + "/config.json");
  return nlohmann::json::parse(tiny)["vocab_size"];
}

}  // namespace penstock
