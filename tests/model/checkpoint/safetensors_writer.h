#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// A safetensors file around `header`, verbatim, and `data_bytes` of zeros.
inline std::string SafetensorsBytes(std::string_view header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  file += header;
  file.append(data_bytes, '\0');
  return file;
}

struct WrittenTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype = "F32";
  char fill = 0;
};

// A well-formed file of f32 (or other four- and two-byte) tensors, each filled with one byte.
inline std::string SafetensorsBytes(const std::vector<WrittenTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const WrittenTensor& tensor : tensors) {
    size_t bytes = tensor.dtype == "F32" ? 4 : 2;
    for (const int64_t extent : tensor.shape) bytes *= static_cast<size_t>(extent);
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + bytes}}};
    data.append(bytes, tensor.fill);
  }
  return SafetensorsBytes(header.dump(), 0) + data;
}

}  // namespace penstock
