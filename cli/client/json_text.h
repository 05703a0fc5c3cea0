#pragma once

#include <google/protobuf/message.h>

#include <string>

namespace penstock {

// A message for programs: indented, with all fields under their proto names.
std::string JsonText(const google::protobuf::Message& message);

}  // namespace penstock
