#include "model/gguf/file/gguf_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/printable_name.h"
#include "model/gguf/file/gguf_cursor.h"

namespace penstock {
namespace {

template <class T>
T NumberAt(std::span<const std::byte> numbers, size_t i) {
  T value;
  std::memcpy(&value, numbers.data() + i * sizeof(T), sizeof(T));
  return value;
}

static_assert(std::endian::native == std::endian::little, "GGUF files are little-endian");

constexpr size_t kMaxHeaderBytes = size_t{256} << 20;
constexpr uint64_t kMaxPairs = 1 << 16;
constexpr uint64_t kMaxGgufTensors = 1 << 16;
constexpr uint64_t kMaxArray = 1 << 24;
constexpr uint64_t kMaxKeyBytes = 1024;
constexpr uint32_t kMaxExtents = 4;
constexpr int64_t kMaxElements = int64_t{1} << 48;
constexpr int64_t kMaxAlignment = 1 << 16;
constexpr int64_t kDefaultAlignment = 32;

// Bytes of a number or a boolean; 0: a string, an array, or no type at all.
size_t NumberBytes(GgufType type) {
  constexpr std::array<size_t, 13> kBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  const auto index = static_cast<size_t>(type);
  return index < kBytes.size() ? kBytes[index] : 0;
}

absl::StatusOr<GgufType> ReadType(GgufCursor& cursor) {
  ASSIGN_OR_RETURN(const uint32_t type, cursor.Number<uint32_t>());
  if (type > static_cast<uint32_t>(GgufType::kF64)) {
    return InvalidArgument("value type is {}, allowed are 0 to 12", type);
  }
  return static_cast<GgufType>(type);
}

absl::Status ReadElements(GgufCursor& cursor, GgufValue& value) {
  if (value.type == GgufType::kArray) return InvalidArgument("is an array of arrays");
  if (value.type != GgufType::kString) {
    ASSIGN_OR_RETURN(value.numbers, cursor.Take(value.count * NumberBytes(value.type)));
    return absl::OkStatus();
  }
  // Each string takes its length's 8 bytes at least.
  value.strings.reserve(std::min(value.count, cursor.rest() / sizeof(uint64_t)));
  for (size_t i = 0; i < value.count; i++) {
    ASSIGN_OR_RETURN(const std::string_view text, cursor.String(kMaxHeaderBytes));
    value.strings.push_back(text);
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufValue> ReadValue(GgufCursor& cursor) {
  GgufValue value;
  ASSIGN_OR_RETURN(value.type, ReadType(cursor));
  if (value.type == GgufType::kArray) {
    value.is_array = true;
    ASSIGN_OR_RETURN(value.type, ReadType(cursor));
    ASSIGN_OR_RETURN(const uint64_t count, cursor.Number<uint64_t>());
    if (count > kMaxArray) {
      return InvalidArgument("is an array of {} elements, the limit is {}", count, kMaxArray);
    }
    value.count = count;
  }
  RETURN_IF_ERROR(ReadElements(cursor, value));
  return value;
}

absl::StatusOr<int64_t> AlignmentOf(const GgufFile& file) {
  const GgufValue* value = file.Find("general.alignment");
  if (value == nullptr) return kDefaultAlignment;
  const int64_t alignment = value->is_array ? 0 : value->Int().value_or(0);
  if (alignment < 8 || alignment > kMaxAlignment ||
      !std::has_single_bit(static_cast<uint64_t>(alignment))) {
    return InvalidArgument("general.alignment is {}, allowed is a power of two from 8 to {}",
                           alignment, kMaxAlignment);
  }
  return alignment;
}

absl::StatusOr<std::vector<int64_t>> ReadShape(GgufCursor& cursor) {
  ASSIGN_OR_RETURN(const uint32_t extents, cursor.Number<uint32_t>());
  if (extents < 1 || extents > kMaxExtents) {
    return InvalidArgument("has {} extents, allowed are 1 to {}", extents, kMaxExtents);
  }
  std::vector<int64_t> shape;
  int64_t elements = 1;
  for (uint32_t i = 0; i < extents; i++) {
    ASSIGN_OR_RETURN(const uint64_t extent, cursor.Number<uint64_t>());
    if (extent < 1 || extent > static_cast<uint64_t>(kMaxElements / elements)) {
      return InvalidArgument(
          "extent {} is {}; extents are positive, and their product is at most "
          "2^48",
          i, extent);
    }
    shape.push_back(static_cast<int64_t>(extent));
    elements *= shape.back();
  }
  std::ranges::reverse(shape);
  return shape;
}

absl::StatusOr<const GgmlType*> ReadTensorType(GgufCursor& cursor) {
  ASSIGN_OR_RETURN(const uint32_t id, cursor.Number<uint32_t>());
  if (const GgmlType* type = FindGgmlType(id)) return type;
  return InvalidArgument("type is {}, allowed are {}", DescribeGgmlType(id), GgmlTypeNames());
}

// Bytes of the tensor; its product fits in 2^48 elements of at most 4 bytes.
absl::StatusOr<uint64_t> SizeOf(const GgufTensor& tensor) {
  const GgmlType& type = *tensor.type;
  if (tensor.shape.back() % type.block_elements != 0) {
    return InvalidArgument("rows of {} elements are not whole blocks of {} ({})",
                           tensor.shape.back(), type.block_elements, type.name);
  }
  uint64_t blocks = 1;
  for (const int64_t extent : tensor.shape) blocks *= static_cast<uint64_t>(extent);
  blocks /= static_cast<uint64_t>(type.block_elements);
  return blocks * static_cast<uint64_t>(type.block_bytes);
}

// Reads everything of a tensor but its name. begin and end count from the begin of the data.
absl::Status ReadTensor(GgufCursor& cursor, uint64_t alignment, GgufTensor& tensor) {
  ASSIGN_OR_RETURN(tensor.shape, ReadShape(cursor));
  ASSIGN_OR_RETURN(tensor.type, ReadTensorType(cursor));
  ASSIGN_OR_RETURN(tensor.begin, cursor.Number<uint64_t>());
  if (tensor.begin % alignment != 0) {
    return InvalidArgument("offset is {}, allowed are multiples of general.alignment ({})",
                           tensor.begin, alignment);
  }
  ASSIGN_OR_RETURN(const uint64_t size, SizeOf(tensor));
  if (tensor.begin > UINT64_MAX - size) return InvalidArgument("offset is {}", tensor.begin);
  tensor.end = tensor.begin + size;
  return absl::OkStatus();
}

class GgufReader {
 public:
  GgufReader(std::span<const std::byte> bytes, std::string name)
      : bytes_(bytes), cursor_(bytes, kMaxHeaderBytes) {
    file_.name = std::move(name);
  }

  absl::StatusOr<GgufFile> Read() {
    RETURN_IF_ERROR(ReadCounts());
    for (uint64_t i = 0; i < pairs_; i++) RETURN_IF_ERROR(ReadPair(i));
    const auto alignment = AlignmentOf(file_);
    if (!alignment.ok()) return Annotate(alignment.status(), file_.name);
    for (uint64_t i = 0; i < tensors_; i++) {
      RETURN_IF_ERROR(ReadNamedTensor(i, static_cast<uint64_t>(*alignment)));
    }
    RETURN_IF_ERROR(PlaceTensors(static_cast<size_t>(*alignment)));
    return std::move(file_);
  }

 private:
  absl::Status ReadCounts() {
    const auto magic = cursor_.Number<uint32_t>();
    if (!magic.ok() || *magic != 0x46554747) {
      return InvalidArgument("{}: is no GGUF file: it does not begin with \"GGUF\"", file_.name);
    }
    const auto version = cursor_.Number<uint32_t>();
    if (!version.ok()) return Annotate(version.status(), file_.name);
    if (*version != 2 && *version != 3) {
      return InvalidArgument("{}: GGUF version is {}, allowed are 2 and 3, little-endian",
                             file_.name, *version);
    }
    file_.version = *version;
    RETURN_IF_ERROR(ReadCount("tensors", kMaxGgufTensors, tensors_));
    return ReadCount("metadata pairs", kMaxPairs, pairs_);
  }

  absl::Status ReadCount(std::string_view what, uint64_t limit, uint64_t& count) {
    const auto read = cursor_.Number<uint64_t>();
    if (!read.ok()) return Annotate(read.status(), file_.name);
    count = *read;
    if (count <= limit) return absl::OkStatus();
    return InvalidArgument("{}: has {} {}, the limit is {}", file_.name, count, what, limit);
  }

  absl::Status ReadPair(uint64_t index) {
    const auto key = cursor_.String(kMaxKeyBytes);
    if (!key.ok()) {
      return Annotate(key.status(), fmt::format("{}: metadata pair {}", file_.name, index));
    }
    auto value = ReadValue(cursor_);
    const std::string where = fmt::format("{}: key {}", file_.name, PrintableName(*key));
    if (!value.ok()) return Annotate(value.status(), where);
    if (file_.metadata.emplace(*key, *std::move(value)).second) return absl::OkStatus();
    return InvalidArgument("{} appears twice", where);
  }

  absl::Status ReadNamedTensor(uint64_t index, uint64_t alignment) {
    GgufTensor tensor;
    const auto name = cursor_.String(kMaxKeyBytes);
    if (!name.ok()) {
      return Annotate(name.status(), fmt::format("{}: tensor {}", file_.name, index));
    }
    tensor.name = *name;
    const absl::Status read = ReadTensor(cursor_, alignment, tensor);
    if (!read.ok()) return Annotate(read, TensorPath(tensor));
    file_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  absl::Status PlaceTensors(size_t alignment) {
    file_.data_begin = (cursor_.at() + alignment - 1) / alignment * alignment;
    const size_t data_bytes =
        bytes_.size() > file_.data_begin ? bytes_.size() - file_.data_begin : 0;
    std::ranges::sort(file_.tensors, {}, &GgufTensor::begin);
    size_t used = 0;
    for (GgufTensor& tensor : file_.tensors) {
      if (tensor.begin < used) {
        return InvalidArgument("{}: offset is {}, but another tensor's bytes end at {}",
                               TensorPath(tensor), tensor.begin, used);
      }
      if (tensor.end > data_bytes) {
        return DataLoss(
            "{} ends at byte {} of the data, the file has {}: it is truncated, fetch it again",
            TensorPath(tensor), tensor.end, data_bytes);
      }
      used = tensor.end;
      tensor.begin += file_.data_begin;
      tensor.end += file_.data_begin;
      tensor.bytes = bytes_.subspan(tensor.begin, tensor.end - tensor.begin);
    }
    return SortByName();
  }

  absl::Status SortByName() {
    std::ranges::sort(file_.tensors, {}, &GgufTensor::name);
    const auto twice = std::ranges::adjacent_find(file_.tensors, {}, &GgufTensor::name);
    if (twice == file_.tensors.end()) return absl::OkStatus();
    return InvalidArgument("{} appears twice", TensorPath(*twice));
  }

  std::string TensorPath(const GgufTensor& tensor) const {
    return fmt::format("{}: tensor {}", file_.name, PrintableName(tensor.name));
  }

  std::span<const std::byte> bytes_;
  GgufCursor cursor_;
  GgufFile file_;
  uint64_t pairs_ = 0;
  uint64_t tensors_ = 0;
};

}  // namespace

std::optional<int64_t> GgufValue::Int(size_t i) const {
  switch (type) {
    case GgufType::kU8:
      return NumberAt<uint8_t>(numbers, i);
    case GgufType::kI8:
      return NumberAt<int8_t>(numbers, i);
    case GgufType::kU16:
      return NumberAt<uint16_t>(numbers, i);
    case GgufType::kI16:
      return NumberAt<int16_t>(numbers, i);
    case GgufType::kU32:
      return NumberAt<uint32_t>(numbers, i);
    case GgufType::kI32:
      return NumberAt<int32_t>(numbers, i);
    case GgufType::kI64:
      return NumberAt<int64_t>(numbers, i);
    case GgufType::kU64: {
      const auto value = NumberAt<uint64_t>(numbers, i);
      if (value > uint64_t{INT64_MAX}) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> GgufValue::Float(size_t i) const {
  if (type == GgufType::kF32) return NumberAt<float>(numbers, i);
  if (type == GgufType::kF64) return NumberAt<double>(numbers, i);
  const std::optional<int64_t> integer = Int(i);
  if (!integer) return std::nullopt;
  return static_cast<double>(*integer);
}

std::optional<bool> GgufValue::Bool(size_t i) const {
  if (type != GgufType::kBool) return std::nullopt;
  const auto value = NumberAt<uint8_t>(numbers, i);
  if (value > 1) return std::nullopt;
  return value == 1;
}

const GgufValue* GgufFile::Find(std::string_view key) const {
  const auto found = metadata.find(key);
  return found == metadata.end() ? nullptr : &found->second;
}

const GgufTensor* GgufFile::FindTensor(std::string_view tensor) const {
  const auto found = std::ranges::lower_bound(tensors, tensor, {}, &GgufTensor::name);
  return found == tensors.end() || found->name != tensor ? nullptr : &*found;
}

absl::StatusOr<GgufFile> ParseGguf(std::span<const std::byte> file, std::string file_name) {
  return GgufReader(file, std::move(file_name)).Read();
}

}  // namespace penstock
