#pragma once

#include <google/protobuf/descriptor.h>

#include <span>
#include <string>
#include <string_view>

namespace penstock {

// A configuration field that was renamed. Flags, environment variables and keys of the config file
// accept the old name for one release, with a warning. One name at a time: setting a field by both
// names from one place is an error.
struct RenamedField {
  std::string_view message;   // full name of the configuration's message
  std::string_view old_name;  // what was the field's name
  std::string_view new_name;  // the field's name now
};

// Every rename that is still accepted. Remove an entry in the second release after its rename.
std::span<const RenamedField> RenamedFields();

// The entry of `table` for the old name `name` ('-' stands for '_' too) of `type`; nullptr when
// there is none.
const RenamedField* FindRenamed(std::span<const RenamedField> table,
                                const google::protobuf::Descriptor& type, std::string name);

}  // namespace penstock
