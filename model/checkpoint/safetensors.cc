#include "model/checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace penstock {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxTensors = size_t{1} << 20;
constexpr size_t kMaxRank = 8;
constexpr size_t kMaxNameBytes = 1024;
// Elements and bytes: a sum of two cannot overflow.
constexpr uint64_t kMaxExtent = uint64_t{1} << 48;

struct DtypeSize {
  std::string_view name;
  uint64_t bytes;
};
constexpr std::array<DtypeSize, 15> kDtypes = {{{"BOOL", 1},
                                                {"U8", 1},
                                                {"I8", 1},
                                                {"F8_E5M2", 1},
                                                {"F8_E4M3", 1},
                                                {"F8_E8M0", 1},
                                                {"I16", 2},
                                                {"U16", 2},
                                                {"F16", 2},
                                                {"BF16", 2},
                                                {"I32", 4},
                                                {"U32", 4},
                                                {"F32", 4},
                                                {"F64", 8},
                                                {"I64", 8}}};

uint64_t DtypeBytes(std::string_view dtype) {  // 0: unknown dtype
  for (const DtypeSize& known : kDtypes) {
    if (known.name == dtype) return known.bytes;
  }
  return dtype == "U64" ? 8 : 0;
}

// Parses the header's JSON as events (SAX), so that memory is bounded by the described tensors and
// a duplicate key is detected.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(std::string_view file_name) : file_name_(file_name) {}

  std::vector<SafetensorsTensor> TakeTensors() { return std::move(tensors_); }
  const absl::Status& status() const { return status_; }

  bool start_object(size_t) override {
    if (depth_ == 0 || (depth_ == 1 && !in_array_)) {
      depth_++;
      seen_ = 0;
      field_ = Field::kNone;
      return true;
    }
    return WrongType("an object");
  }

  bool end_object() override {
    depth_--;
    if (depth_ == 1 && !in_metadata_ && seen_ != kAllFields) {
      return Fail("needs the fields dtype, shape and data_offsets");
    }
    return true;
  }

  bool key(string_t& key) override { return depth_ == 1 ? StartTensor(key) : StartField(key); }

  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (field_ != Field::kDtype || in_array_) return WrongType("a string");
    if (DtypeBytes(value) == 0) {
      return Fail("dtype is {}, which safetensors does not define", PrintableName(value));
    }
    tensors_.back().dtype = value;
    return true;
  }

  bool start_array(size_t) override {
    if (in_array_ || (field_ != Field::kShape && field_ != Field::kOffsets)) {
      return WrongType("an array");
    }
    in_array_ = true;
    offsets_ = 0;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return WrongType("a number");
    SafetensorsTensor& tensor = tensors_.back();
    if (value > kMaxExtent) return Fail("{} has {}, the limit is 2^48", FieldName(), value);
    if (field_ == Field::kShape) {
      if (tensor.shape.size() == kMaxRank) return Fail("shape has more than {} extents", kMaxRank);
      tensor.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (offsets_ == 2) return Fail("data_offsets has more than two numbers");
    (offsets_++ == 0 ? tensor.begin : tensor.end) = value;
    return true;
  }

  bool end_array() override {
    in_array_ = false;
    if (field_ == Field::kOffsets && offsets_ != 2) return Fail("data_offsets needs two numbers");
    return true;
  }

  bool null() override { return WrongType("null"); }
  bool boolean(bool) override { return WrongType("a boolean"); }
  bool number_integer(number_integer_t) override { return WrongType("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return WrongType("a fraction"); }
  bool binary(binary_t&) override { return WrongType("binary data"); }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    if (status_.ok()) {
      status_ = InvalidArgument("{}: the header is not JSON at its byte {}", file_name_, position);
    }
    return false;
  }

 private:
  enum class Field { kNone = 0, kDtype = 1, kShape = 2, kOffsets = 4 };
  static constexpr int kAllFields = 7;

  bool StartTensor(const std::string& name) {
    field_ = Field::kNone;
    in_metadata_ = name == "__metadata__";
    name_ = name;
    if (in_metadata_) return true;
    if (name.size() > kMaxNameBytes) return Fail("name is longer than {} bytes", kMaxNameBytes);
    if (tensors_.size() == kMaxTensors) return Fail("is one more than {} tensors", kMaxTensors);
    tensors_.push_back({.name = name, .dtype = {}, .shape = {}});
    return true;
  }

  bool StartField(const std::string& key) {
    if (in_metadata_) return true;
    field_ = key == "dtype"          ? Field::kDtype
             : key == "shape"        ? Field::kShape
             : key == "data_offsets" ? Field::kOffsets
                                     : Field::kNone;
    if (field_ == Field::kNone) {
      return Fail("unknown field {}; allowed are dtype, shape, data_offsets", PrintableName(key));
    }
    if (seen_ & static_cast<int>(field_)) return Fail("{} appears twice", FieldName());
    seen_ |= static_cast<int>(field_);
    return true;
  }

  std::string_view FieldName() const {
    return field_ == Field::kDtype ? "dtype" : field_ == Field::kShape ? "shape" : "data_offsets";
  }

  bool WrongType(std::string_view found) {
    if (depth_ == 0) {
      status_ = InvalidArgument("{}: the header is {}, not an object", file_name_, found);
      return false;
    }
    if (in_metadata_) return Fail("has {}, allowed is an object of strings", found);
    if (field_ == Field::kNone) return Fail("is {}, not an object", found);
    return Fail("{} has {}, allowed is {}", FieldName(), found,
                field_ == Field::kDtype ? "a string" : "an array of numbers from 0");
  }

  template <class... Args>
  bool Fail(fmt::format_string<Args...> format, Args&&... args) {
    status_ = InvalidArgument("{}: tensor {}: {}", file_name_, PrintableName(name_),
                              fmt::format(format, std::forward<Args>(args)...));
    return false;
  }

  const std::string file_name_;
  std::vector<SafetensorsTensor> tensors_;
  absl::Status status_;
  std::string name_;  // name of the tensor in progress
  Field field_ = Field::kNone;
  int depth_ = 0;
  int seen_ = 0;     // fields of the tensor in progress
  int offsets_ = 0;  // numbers of data_offsets so far
  bool in_metadata_ = false;
  bool in_array_ = false;
};

// Returns the size that dtype and shape require, or kMaxExtent + 1 if it exceeds kMaxExtent.
uint64_t BytesByShape(const SafetensorsTensor& tensor) {
  if (std::ranges::find(tensor.shape, 0) != tensor.shape.end()) return 0;
  uint64_t bytes = DtypeBytes(tensor.dtype);
  for (const int64_t extent : tensor.shape) {
    if (static_cast<uint64_t>(extent) > kMaxExtent / bytes) return kMaxExtent + 1;
    bytes *= static_cast<uint64_t>(extent);
  }
  return bytes;
}

// Checks that the tensors, sorted by offset, tile [0, data_bytes) without gaps or overlaps.
absl::Status CheckOffsets(std::vector<SafetensorsTensor>& tensors, uint64_t data_bytes,
                          std::string_view file_name) {
  std::ranges::sort(tensors, [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t expected = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const std::string name = PrintableName(tensor.name);
    if (tensor.begin != expected || tensor.end < tensor.begin) {
      return InvalidArgument("{}: tensor {}: data_offsets are [{}, {}], the next must begin at {}",
                             file_name, name, tensor.begin, tensor.end, expected);
    }
    if (tensor.end - tensor.begin != BytesByShape(tensor)) {
      return InvalidArgument("{}: tensor {}: data_offsets hold {} bytes, {} of shape [{}] needs {}",
                             file_name, name, tensor.end - tensor.begin, tensor.dtype,
                             fmt::join(tensor.shape, ", "), BytesByShape(tensor));
    }
    if (tensor.end > data_bytes) {
      return absl::DataLossError(fmt::format(
          "{}: tensor {} ends at byte {} of the data, the file has {}: it is truncated, fetch it "
          "again",
          file_name, name, tensor.end, data_bytes));
    }
    expected = tensor.end;
  }
  if (expected != data_bytes) {
    return InvalidArgument("{}: {} bytes after the last tensor belong to no tensor", file_name,
                           data_bytes - expected);
  }
  return absl::OkStatus();
}

absl::Status CheckNamesUnique(const std::vector<SafetensorsTensor>& sorted,
                              std::string_view file_name) {
  const auto twice = std::ranges::adjacent_find(sorted, {}, &SafetensorsTensor::name);
  if (twice == sorted.end()) return absl::OkStatus();
  return InvalidArgument("{}: tensor {} appears twice", file_name, PrintableName(twice->name));
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensors(std::span<const std::byte> file,
                                                   std::string_view file_name) {
  uint64_t header_bytes = 0;
  if (file.size() < sizeof(header_bytes)) {
    return DataLoss("{}: {} bytes, a safetensors file begins with 8 bytes of header length",
                    file_name, file.size());
  }
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes) {
    return InvalidArgument("{}: header length is {}, the limit is {}: is it a safetensors file?",
                           file_name, header_bytes, kMaxHeaderBytes);
  }
  const auto rest = file.subspan(sizeof(header_bytes));
  if (header_bytes > rest.size()) {
    return DataLoss("{}: header length is {}, {} bytes follow: the file is truncated", file_name,
                    header_bytes, rest.size());
  }
  const auto* text = reinterpret_cast<const char*>(rest.data());
  HeaderReader reader(file_name);
  const bool read = nlohmann::json::sax_parse(text, text + header_bytes, &reader);
  RETURN_IF_ERROR(reader.status());
  if (!read) return InvalidArgument("{}: the header is not JSON", file_name);

  SafetensorsHeader header;
  header.tensors = reader.TakeTensors();
  header.data_begin = sizeof(header_bytes) + header_bytes;
  RETURN_IF_ERROR(CheckOffsets(header.tensors, rest.size() - header_bytes, file_name));
  for (SafetensorsTensor& tensor : header.tensors) {
    tensor.begin += header.data_begin;
    tensor.end += header.data_begin;
  }
  std::ranges::sort(header.tensors, {}, &SafetensorsTensor::name);
  RETURN_IF_ERROR(CheckNamesUnique(header.tensors, file_name));
  return header;
}

}  // namespace penstock
