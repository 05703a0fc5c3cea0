#include "cli/client/json_text.h"

#include <google/protobuf/util/json_util.h>

#include "base/check.h"

namespace penstock {

std::string JsonText(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  PENSTOCK_CHECK(google::protobuf::util::MessageToJsonString(message, &json, options).ok());
  return json;
}

}  // namespace penstock
