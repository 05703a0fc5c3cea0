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

// What the .proto file says about a field of a configuration, beyond its type.
struct FieldTraits {
  std::string help;
  std::string default_value;
  std::optional<int64_t> min;
  std::optional<int64_t> max;
  std::vector<std::string> choices;  // empty: anything
  bool byte_size = false;
  bool required = false;
  bool hidden = false;  // not in the help
};
FieldTraits TraitsOf(const google::protobuf::FieldDescriptor& field);
// As `program` has them.
FieldTraits TraitsOf(const google::protobuf::FieldDescriptor& field, const ProgramInfo& program);

// Sets `field` to `values`, as typed: one for a scalar (the last counts), any number for a list,
// each of which may hold several separated by commas. INVALID_ARGUMENT says what the field may be.
absl::Status SetField(const google::protobuf::FieldDescriptor& field,
                      const std::vector<std::string>& values, google::protobuf::Message& config);

// The field of that name, where '-' stands for '_' too; nullptr if there is none.
const google::protobuf::FieldDescriptor* FindField(const google::protobuf::Descriptor& type,
                                                   std::string name);

// The candidate most like `name`, or nothing when none is near.
std::optional<std::string> Nearest(const std::string& name,
                                   const std::vector<std::string>& candidates);

// The names of all fields.
std::vector<std::string> FieldNames(const google::protobuf::Descriptor& type);

// "a,b" is a and b; blanks around them are dropped, and so are empty ones.
std::vector<std::string> SplitList(const std::string& text);

}  // namespace penstock
