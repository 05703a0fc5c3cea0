#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/config/config.h"
#include "base/status.h"

namespace penstock {

// The options of a configuration field in the .proto file, beyond its type.
struct FieldTraits {
  std::string help;
  std::string default_value;
  std::optional<int64_t> min;
  std::optional<int64_t> max;
  std::vector<std::string> choices;  // empty: any value
  bool byte_size = false;
  bool required = false;
  bool hidden = false;  // not shown in the help
};
FieldTraits TraitsOf(const google::protobuf::FieldDescriptor& field);
// The options with the defaults of `program`.
FieldTraits TraitsOf(const google::protobuf::FieldDescriptor& field, const ProgramInfo& program);

// Sets `field` from `values` as typed: a scalar takes the last value; a list takes all values, each
// of which may hold several separated by commas. Returns INVALID_ARGUMENT that names the allowed
// values.
absl::Status SetField(const google::protobuf::FieldDescriptor& field,
                      const std::vector<std::string>& values, google::protobuf::Message& config);

// Returns the field with that name ('-' and '_' are equal), or nullptr.
const google::protobuf::FieldDescriptor* FindField(const google::protobuf::Descriptor& type,
                                                   std::string name);

// Returns the candidate closest to `name` by edit distance, or nothing if none is close.
std::optional<std::string> Nearest(const std::string& name,
                                   const std::vector<std::string>& candidates);

// Returns the names of all fields.
std::vector<std::string> FieldNames(const google::protobuf::Descriptor& type);

// The help of a program whose configuration is `type`; lines of at most `width` columns.
std::string HelpText(const ProgramInfo& program, const google::protobuf::Descriptor& type,
                     size_t width);

// "a,b" is a and b; blanks around them are dropped, and so are empty ones.
std::vector<std::string> SplitList(const std::string& text);

}  // namespace penstock
