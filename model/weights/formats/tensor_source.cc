#include "model/weights/formats/tensor_source.h"

#include <cstring>

#include "base/check.h"
#include "kernels/f16.h"

namespace penstock {
namespace {

// Reads element `index` of an array that may be unaligned.
template <class T>
T Element(const std::byte* array, int64_t index) {
  T value;
  std::memcpy(&value, array + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

size_t BytesOf(const TensorView& tensor) {
  size_t elements = 1;
  for (const int64_t extent : tensor.shape) elements *= static_cast<size_t>(extent);
  if (tensor.blocks == nullptr) return elements * ElementBytes(tensor.dtype);
  return elements / static_cast<size_t>(tensor.blocks->elements) *
         static_cast<size_t>(tensor.blocks->bytes);
}

absl::StatusOr<TensorView> GetShaped(const TensorSource& source, const std::string& name,
                                     const std::vector<int64_t>& shape) {
  auto found = source.Get(name);
  if (!found.ok()) return Annotate(found.status(), name);
  if (found->shape != shape) {
    return InvalidArgument("tensor {} has shape [{}], config.json implies [{}]", name,
                           fmt::join(found->shape, ", "), fmt::join(shape, ", "));
  }
  const size_t bytes = BytesOf(*found);
  if (found->bytes.size() != bytes) {
    return InvalidArgument("tensor {} has {} bytes, its shape needs {}", name, found->bytes.size(),
                           bytes);
  }
  return found;
}

}  // namespace

std::string_view TensorDtypeName(TensorDtype dtype) {
  constexpr std::string_view kNames[] = {
      "BF16", "F16", "F32", "I8", "F8_E4M3", "I32", "I64", "U8", "quantised blocks"};
  return kNames[static_cast<size_t>(dtype)];
}

size_t ElementBytes(TensorDtype dtype) {
  PENSTOCK_CHECK(dtype != TensorDtype::kBlocks);
  constexpr size_t kBytes[] = {2, 2, 4, 1, 1, 4, 8, 1};
  return kBytes[static_cast<size_t>(dtype)];
}

absl::StatusOr<TensorView> GetFloats(const TensorSource& source, const std::string& name,
                                     const std::vector<int64_t>& shape) {
  ASSIGN_OR_RETURN(const TensorView tensor, GetShaped(source, name, shape));
  if (IsFloat(tensor.dtype)) return tensor;
  return InvalidArgument("tensor {}: dtype is {}, allowed are BF16, F16 and F32", name,
                         TensorDtypeName(tensor.dtype));
}

absl::StatusOr<TensorView> GetIntegers(const TensorSource& source, const std::string& name,
                                       TensorDtype dtype, const std::vector<int64_t>& shape) {
  ASSIGN_OR_RETURN(const TensorView tensor, GetShaped(source, name, shape));
  if (tensor.dtype == dtype) return tensor;
  return InvalidArgument("tensor {}: dtype is {}, allowed is {}", name,
                         TensorDtypeName(tensor.dtype), TensorDtypeName(dtype));
}

absl::StatusOr<TensorView> GetBlocks(const TensorSource& source, const std::string& name,
                                     const std::vector<int64_t>& shape) {
  ASSIGN_OR_RETURN(const TensorView tensor, GetShaped(source, name, shape));
  PENSTOCK_CHECK(tensor.dtype == TensorDtype::kBlocks);
  if (shape.back() % tensor.blocks->elements == 0) return tensor;
  return InvalidArgument("tensor {}: rows have {} inputs, and blocks of {} have {}", name,
                         shape.back(), tensor.blocks->name, tensor.blocks->elements);
}

int64_t TensorView::StoredRow(int64_t row) const {
  if (interleaved_head == 0) return row;
  const int64_t half = interleaved_head / 2, at = row % interleaved_head;
  return row - at + at % half * 2 + at / half;
}

float FloatAt(const TensorView& tensor, int64_t i) {
  const std::byte* bytes = tensor.bytes.data();
  if (tensor.dtype == TensorDtype::kF32) return Element<float>(bytes, i);
  const auto bits = Element<uint16_t>(bytes, i);
  return tensor.dtype == TensorDtype::kF16 ? HalfToFloat(bits) : ToFloat({bits});
}

uint32_t WordAt(const TensorView& tensor, int64_t i) {
  return Element<uint32_t>(tensor.bytes.data(), i);
}

int8_t ByteAt(const TensorView& tensor, int64_t i) {
  return Element<int8_t>(tensor.bytes.data(), i);
}

void ToBf16s(const TensorView& tensor, int64_t first, int64_t count, Bf16* target) {
  if (tensor.dtype == TensorDtype::kBf16) {
    std::memcpy(target, tensor.bytes.data() + first * 2, static_cast<size_t>(count) * 2);
    return;
  }
  const std::byte* bytes = tensor.bytes.data();
  if (tensor.dtype == TensorDtype::kF32) {
    for (int64_t i = 0; i < count; ++i) target[i] = ToBf16(Element<float>(bytes, first + i));
  } else {
    for (int64_t i = 0; i < count; ++i) {
      target[i] = ToBf16(HalfToFloat(Element<uint16_t>(bytes, first + i)));
    }
  }
}

}  // namespace penstock
