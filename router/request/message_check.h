#pragma once

#include <google/protobuf/message.h>

#include <string_view>

#include "base/status.h"

namespace penstock {

// Walks `bytes` as an encoded message of this type. INVALID_ARGUMENT names the string field that is
// not UTF-8 and the offset in it, or where the encoding breaks off. Protobuf's own parser refuses
// the same messages without saying why, and gRPC turns that into UNIMPLEMENTED.
absl::Status CheckEncoding(std::string_view bytes, const google::protobuf::Descriptor& type);

// Checks, then parses.
absl::Status ParseChecked(std::string_view bytes, google::protobuf::Message& message);

}  // namespace penstock
