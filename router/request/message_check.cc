#include "router/request/message_check.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <map>
#include <string>

#include "base/utf8.h"

namespace penstock {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int kMessageDepthMax = 32;  // messages of inference.proto nest 4 levels
// A parsed element occupies up to about 150 bytes, but only two bytes of the encoding.
constexpr int kMaxElements = 100'000;

// True for an element of a repeated number in its own tag: it occupies no more than its encoding.
bool IsRepeatedNumber(const FieldDescriptor* field, uint32_t tag) {
  if (field == nullptr || !field->is_packable()) return false;
  const auto type = static_cast<WireFormatLite::FieldType>(field->type());
  return WireFormatLite::GetTagWireType(tag) == WireFormatLite::WireTypeForFieldType(type);
}

class Walker {
 public:
  explicit Walker(std::string_view bytes)
      : bytes_(bytes),
        stream_(reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int>(bytes.size())) {}

  // Checks the fields of `type` up to offset `end` of the whole message.
  absl::Status Walk(const Descriptor& type, const std::string& path, int end, int depth) {
    if (depth > kMessageDepthMax)
      return InvalidArgument("{}: nested more than {} deep", path, kMessageDepthMax);
    std::map<int, int> seen;  // values so far, by field number: the index within repeated fields
    while (stream_.CurrentPosition() < end) {
      const uint32_t tag = stream_.ReadTag();
      const int number = WireFormatLite::GetTagFieldNumber(tag);
      if (number == 0) return Broken();
      const FieldDescriptor* field = type.FindFieldByNumber(number);
      if (!IsRepeatedNumber(field, tag)) RETURN_IF_ERROR(CountElement());
      if (WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_START_GROUP) {
        return InvalidArgument("the request is not a valid message: byte {} begins a group",
                               stream_.CurrentPosition());
      }
      if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
        if (!WireFormatLite::SkipField(&stream_, tag) || stream_.CurrentPosition() > end) {
          return Broken();
        }
        continue;
      }
      int size = 0;
      if (!stream_.ReadVarintSizeAsInt(&size) || size > end - stream_.CurrentPosition()) {
        return Broken();
      }
      RETURN_IF_ERROR(Value(field, path, seen[number]++, size, depth));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Broken() {
    return InvalidArgument("the request is not a valid message: its encoding breaks off at byte {}",
                           stream_.CurrentPosition());
  }

  absl::Status CountElement() {
    if (++elements_ <= kMaxElements) return absl::OkStatus();
    return InvalidArgument("the request has more than {} elements, the limit", kMaxElements);
  }

  absl::Status Value(const FieldDescriptor* field, const std::string& path, int index, int size,
                     int depth) {
    const int begin = stream_.CurrentPosition();
    if (field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE) {
      return Walk(*field->message_type(), Path(path, *field, index), begin + size, depth + 1);
    }
    if (field != nullptr && field->type() == FieldDescriptor::TYPE_STRING) {
      const size_t bad = FirstInvalidUtf8(bytes_.substr(begin, size));
      if (bad != std::string_view::npos) {
        return InvalidArgument("{}: byte {} of {} is not valid UTF-8", Path(path, *field, index),
                               bad, size);
      }
    }
    stream_.Skip(size);
    return absl::OkStatus();
  }

  static std::string Path(const std::string& path, const FieldDescriptor& field, int index) {
    return fmt::format("{}{}{}{}", path, path.empty() ? "" : ".", field.name(),
                       field.is_repeated() ? fmt::format("[{}]", index) : "");
  }

  std::string_view bytes_;
  CodedInputStream stream_;
  int elements_ = 0;
};

}  // namespace

absl::Status CheckEncoding(std::string_view bytes, const Descriptor& type) {
  return Walker(bytes).Walk(type, "", static_cast<int>(bytes.size()), 0);
}

absl::Status ParseChecked(std::string_view bytes, google::protobuf::Message& message) {
  RETURN_IF_ERROR(CheckEncoding(bytes, *message.GetDescriptor()));
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return InvalidArgument("the request is not a valid {}", message.GetDescriptor()->full_name());
  }
  return absl::OkStatus();
}

}  // namespace penstock
