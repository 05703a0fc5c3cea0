#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "model/weights/formats/quantised_tensor.h"

namespace penstock {
namespace {

// Reads the input from the front.
class FuzzBytes {
 public:
  explicit FuzzBytes(std::span<const std::byte> bytes) : bytes_(bytes) {}
  int Byte() {
    if (bytes_.empty()) return 0;
    const int byte = std::to_integer<int>(bytes_[0]);
    bytes_ = bytes_.subspan(1);
    return byte;
  }
  std::span<const std::byte> Take(size_t count) {
    const auto taken = bytes_.first(std::min(count, bytes_.size()));
    bytes_ = bytes_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const std::byte> bytes_;
};

// Tensors of any of the names that readers ask for, with shapes and dtypes from the input.
class FuzzTensors final : public TensorSource {
 public:
  explicit FuzzTensors(FuzzBytes& input) {
    for (const char* suffix :
         {"weight_packed", "weight_scale", "weight_shape", "weight_g_idx", "weight_zero_point",
          "weight", "qweight", "qzeros", "scales", "g_idx"}) {
      const int kind = input.Byte();
      if (kind % 2 == 0) continue;
      Tensor& tensor = tensors_[std::string("m.") + suffix];
      tensor.view.dtype = static_cast<TensorDtype>(kind / 2 % 6);
      size_t count = 1;
      for (int rank = kind / 16 % 4; rank > 0; --rank) {
        tensor.view.shape.push_back(input.Byte());
        count *= static_cast<size_t>(tensor.view.shape.back());
      }
      if (count > 1 << 16) count = 0;
      tensor.bytes.resize(count * ElementBytes(tensor.view.dtype));
      const auto taken = input.Take(tensor.bytes.size());
      std::copy(taken.begin(), taken.end(), tensor.bytes.begin());
      tensor.view.bytes = tensor.bytes;
    }
  }
  absl::StatusOr<TensorView> Get(const std::string& name) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return NotFound("no such tensor");
    return found->second.view;
  }
  bool Has(const std::string& name) const override { return tensors_.contains(name); }

 private:
  struct Tensor {
    TensorView view;
    std::vector<std::byte> bytes;
  };
  std::map<std::string, Tensor> tensors_;
};

// A tensor of one of GGUF's blocks with any bytes.
class FuzzBlocks final : public TensorSource {
 public:
  explicit FuzzBlocks(FuzzBytes& input) {
    constexpr const char* kNames[] = {"Q8_0", "Q4_0", "Q4_1",   "Q5_0",   "Q5_1", "Q4_K",
                                      "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"};
    const BlockType& type = *BlockTypeNamed(kNames[input.Byte() % std::size(kNames)]);
    const int64_t rows = 1 + input.Byte() % 4, blocks = 1 + input.Byte() % 3;
    bytes_.resize(static_cast<size_t>(rows * blocks * type.bytes));
    std::ranges::copy(input.Take(bytes_.size()), bytes_.begin());
    view_ = {.dtype = TensorDtype::kBlocks,
             .blocks = &type,
             .shape = {rows, blocks * type.elements},
             .bytes = bytes_};
  }
  absl::StatusOr<TensorView> Get(const std::string&) const override { return view_; }
  bool Has(const std::string& name) const override { return HasBlocks(name); }
  bool HasBlocks(const std::string& name) const override { return name == "m.weight"; }

 private:
  std::vector<std::byte> bytes_;
  TensorView view_;
};

// What is accepted must make a matrix: no code, zero point, scale or order beyond its bounds.
// Returns its weights.
std::vector<float> WeightsOf(const QuantisedTensor& tensor) {
  QuantisedMatrix matrix(tensor.rows, tensor.inputs, tensor.format, tensor.order);
  std::vector<float> values(static_cast<size_t>(tensor.rows * tensor.inputs));
  for (int64_t row = 0; row < tensor.rows; ++row) {
    for (const uint8_t code : tensor.Row(row).codes) {
      PENSTOCK_CHECK_LT(code, 1 << tensor.format.bits);
    }
    matrix.SetRow(row, tensor.Row(row));
    matrix.GetRow(row, values.data() + row * tensor.inputs);
  }
  for (const float value : values) PENSTOCK_CHECK(value == value);
  return values;
}

void ReadAnyBlocks(FuzzBytes input) {
  const FuzzBlocks blocks(input);
  const std::vector<int64_t> shape = blocks.Get("m.weight")->shape;
  auto tensor = ReadQuantised({}, blocks, "m", shape[0], shape[1]);
  if (!tensor.ok()) return;
  const std::vector<float> weights = WeightsOf(*tensor);
  if (!tensor->format.two_level()) return;
  tensor->MultiplyFactors();
  PENSTOCK_CHECK(WeightsOf(*tensor) == weights);
}

void Read(FuzzBytes input) {
  constexpr int kBlocks = 255;
  const int method = input.Byte();
  if (method == kBlocks) return ReadAnyBlocks(input);
  QuantisationConfig config;
  config.method = static_cast<QuantisationConfig::Method>(method % 4);
  config.zero_form = static_cast<QuantisationConfig::ZeroForm>(input.Byte() % 3);
  config.group_size = input.Byte() * 8;
  const int64_t rows = 1 + input.Byte(), inputs = 1 + input.Byte();
  const FuzzTensors tensors(input);
  const auto tensor = ReadQuantised(config, tensors, "m", rows, inputs);
  if (tensor.ok()) WeightsOf(*tensor);
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  penstock::Read(penstock::FuzzBytes(std::span(reinterpret_cast<const std::byte*>(data), size)));
  return 0;
}
