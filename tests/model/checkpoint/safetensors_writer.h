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
  std::vector<uint32_t> words = {};  // instead of the fill: all bytes of the tensor
};

inline size_t WrittenElementBytes(std::string_view dtype) {
  if (dtype == "I64") return 8;
  if (dtype == "F32" || dtype == "I32") return 4;
  return dtype == "I8" || dtype == "U8" || dtype.starts_with("F8_") ? 1 : 2;
}

// A well-formed file of tensors, each filled with one byte.
inline std::string SafetensorsBytes(const std::vector<WrittenTensor>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const WrittenTensor& tensor : tensors) {
    size_t bytes = WrittenElementBytes(tensor.dtype);
    for (const int64_t extent : tensor.shape) bytes *= static_cast<size_t>(extent);
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + bytes}}};
    if (tensor.words.empty()) {
      data.append(bytes, tensor.fill);
    } else {
      data.append(reinterpret_cast<const char*>(tensor.words.data()), bytes);
    }
  }
  return SafetensorsBytes(header.dump(), 0) + data;
}

}  // namespace penstock
