#pragma once

#include <google/protobuf/message.h>

#include <string_view>

#include "base/status.h"

namespace penstock {

// Walks `bytes` as an encoded message of this type. INVALID_ARGUMENT names the string field that is
// not UTF-8 and the offset in it, the byte at which the encoding is invalid, or the limit of
// elements, beyond which a small encoding would become a large message. Protobuf's own
// parser refuses the same messages without a reason, and gRPC turns that into UNIMPLEMENTED. Pure.
absl::Status CheckEncoding(std::string_view bytes, const google::protobuf::Descriptor& type);

// CheckEncoding, then parses `bytes` into `message`. INVALID_ARGUMENT.
absl::Status ParseChecked(std::string_view bytes, google::protobuf::Message& message);

}  // namespace penstock
