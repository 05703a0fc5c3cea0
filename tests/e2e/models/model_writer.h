#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

namespace penstock {

// A small random model in Hugging Face's format, tensor by tensor. The same for the same calls.
class ModelWriter {
 public:
  // Tensors `name`.weight in bf16.
  void Matrix(const std::string& name, int64_t rows, int64_t columns, float factor = 1);
  void Norm(const std::string& name, int64_t size);
  // A matrix that returns the first `rows` inputs, and a norm without weights.
  void Selection(const std::string& name, int64_t rows, int64_t columns);
  void PlainNorm(const std::string& name, int64_t size);
  // gate_proj, up_proj and down_proj, whose outputs are multiplied by `factor`.
  void Mlp(const std::string& prefix, int64_t hidden, int64_t intermediate, float factor = 1);
  // A tensor `name` of small positive numbers.
  void Bias(const std::string& name, int64_t size);
  // A tensor `name` of small numbers, of one or two extents.
  void Biases(const std::string& name, const std::vector<int64_t>& shape);
  void BiasedMatrix(const std::string& name, int64_t rows, int64_t columns);
  // A matrix for each of some experts in MXFP4, with scales from 2^-8 to 2^-5, and their biases.
  void Mxfp4(const std::string& name, int64_t experts, int64_t rows, int64_t columns);

  // Writes the tensors, config.json and the bundled model's tokenizer to `folder`.
  void Write(const nlohmann::json& config, const std::string& folder) const;

 private:
  void Add(const std::string& name, const std::vector<int64_t>& shape, float mean, float deviation);
  void AddValues(const std::string& name, const std::vector<int64_t>& shape,
                 const std::function<float(int64_t)>& value_of);
  void AddBytes(const std::string& name, const std::vector<int64_t>& shape, int min, int max);

  std::mt19937 random_{5};
  nlohmann::json header_ = nlohmann::json::object();
  std::string data_;
};

// The number of tokens of the bundled model's tokenizer.
int64_t BundledVocab();

}  // namespace penstock
