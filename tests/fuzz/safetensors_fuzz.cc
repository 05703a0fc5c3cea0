#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/safetensors.h"

// The bytes are a safetensors file; what is accepted must lie within it and tile its data. The same
// bytes are tried as a model.safetensors.index.json.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using penstock::SafetensorsTensor;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto header = penstock::ParseSafetensors(bytes, "fuzz");
  if (header.ok()) {
    size_t total = header->data_begin;
    for (const SafetensorsTensor& tensor : header->tensors) {
      PENSTOCK_CHECK_LE(tensor.begin, tensor.end);
      PENSTOCK_CHECK_LE(tensor.end, size);
      total += tensor.end - tensor.begin;
    }
    PENSTOCK_CHECK_EQ(total, size);
  }
  const auto index = penstock::ParseSafetensorsIndex({reinterpret_cast<const char*>(data), size});
  if (index.ok()) {
    for (const auto& [tensor, shard] : *index) {
      PENSTOCK_CHECK(shard.find('/') == std::string::npos);
    }
  }
  return 0;
}
