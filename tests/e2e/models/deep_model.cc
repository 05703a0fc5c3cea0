#include "tests/e2e/models/deep_model.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "tests/support/environment.h"
#include "tests/support/files.h"

namespace penstock {
namespace {

using Json = nlohmann::json;

// A safetensors file: the length of a header, the header, and the tensors.
class Tensors {
 public:
  explicit Tensors(const std::string& file) {
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof(length));
    header_ = Json::parse(file.substr(sizeof(length), length));
    data_ = file.substr(sizeof(length) + length);
  }

  // Repeats the first layer as layer `to`, with zeros for what it adds.
  void AddIdleLayer(int to) {
    const std::string from = "model.layers.0.";
    Json added = Json::object();
    for (const auto& [name, tensor] : header_.items()) {
      if (!name.starts_with(from)) continue;
      const std::string rest = name.substr(from.size());
      const bool adds = rest == "self_attn.o_proj.weight" || rest == "mlp.down_proj.weight";
      const size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
      Json copy = tensor;
      copy["data_offsets"] = {data_.size(), data_.size() + end - begin};
      data_ += adds ? std::string(end - begin, '\0') : data_.substr(begin, end - begin);
      added["model.layers." + std::to_string(to) + "." + rest] = copy;
    }
    header_.update(added);
  }

  std::string Bytes() const {
    const std::string header = header_.dump();
    const uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + data_;
  }

 private:
  Json header_;
  std::string data_;
};

}  // namespace

void WriteDeepModel(const std::string& folder, int layers) {
  Json config = Json::parse(ReadFile(ModelFolder() + "/config.json"));
  Tensors tensors(ReadFile(ModelFolder() + "/model.safetensors"));
  for (int layer = config["num_hidden_layers"]; layer < layers; ++layer) {
    tensors.AddIdleLayer(layer);
  }
  config["num_hidden_layers"] = layers;
  std::ofstream(folder + "/config.json") << config.dump();
  std::ofstream weights(folder + "/model.safetensors", std::ios::binary);
  weights << tensors.Bytes();
  PENSTOCK_CHECK(weights.good());
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    std::filesystem::copy_file(ModelFolder() + "/" + name, folder + "/" + name);
  }
}

}  // namespace penstock
