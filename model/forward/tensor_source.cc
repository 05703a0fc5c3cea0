#include "model/forward/tensor_source.h"

#include <cstring>

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

absl::StatusOr<TensorView> GetShaped(const TensorSource& source, const std::string& name,
                                     const std::vector<int64_t>& shape) {
  auto found = source.Get(name);
  if (!found.ok()) return Annotate(found.status(), name);
  size_t bytes = ElementBytes(found->dtype);
  for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  if (found->shape != shape) {
    return InvalidArgument("tensor {} has shape [{}], config.json implies [{}]", name,
                           fmt::join(found->shape, ", "), fmt::join(shape, ", "));
  }
  if (found->bytes.size() != bytes) {
    return InvalidArgument("tensor {} has {} bytes, its shape needs {}", name, found->bytes.size(),
                           bytes);
  }
  return found;
}

}  // namespace

std::string_view TensorDtypeName(TensorDtype dtype) {
  constexpr std::string_view kNames[] = {"BF16", "F16", "F32", "I8", "I32", "I64"};
  return kNames[static_cast<size_t>(dtype)];
}

size_t ElementBytes(TensorDtype dtype) {
  constexpr size_t kBytes[] = {2, 2, 4, 1, 4, 8};
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
  for (int64_t i = 0; i < count; ++i) target[i] = ToBf16(FloatAt(tensor, first + i));
}

}  // namespace penstock
