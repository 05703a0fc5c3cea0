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

// The options of a configuration field in its .proto file.
struct FieldTraits {
  std::string help;
  std::string default_value;
  std::optional<int64_t> min;
  std::optional<int64_t> max;
  std::vector<std::string> choices;  // empty: any value
  bool byte_size = false;
  bool required = false;
  bool hidden = false;  // left out of the help
};
FieldTraits TraitsOf(const google::protobuf::FieldDescriptor& field);
// The same with the program's own default.
FieldTraits TraitsOf(const google::protobuf::FieldDescriptor& field, const ProgramInfo& program);

// Sets `field` to `values`, as typed: one for a scalar (the last counts), any number for a list,
// each of which may hold several separated by commas. INVALID_ARGUMENT says what the field may be.
absl::Status SetField(const google::protobuf::FieldDescriptor& field,
                      const std::vector<std::string>& values, google::protobuf::Message& config);

// The field of that name, where '-' stands for '_' too; nullptr if there is none.
const google::protobuf::FieldDescriptor* FindField(const google::protobuf::Descriptor& type,
                                                   std::string name);

// The candidate with the least edit distance to `name`; nullopt when none is similar.
std::optional<std::string> Nearest(const std::string& name,
                                   const std::vector<std::string>& candidates);

// The names of all fields.
std::vector<std::string> FieldNames(const google::protobuf::Descriptor& type);

// Splits "a,b" at commas. Blanks around items and empty items are dropped.
std::vector<std::string> SplitList(const std::string& text);

}  // namespace penstock
