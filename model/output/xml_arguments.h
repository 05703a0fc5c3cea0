#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/output/output_format.h"

namespace penstock {

// The arguments of a tool in a notation that writes each parameter (CallNotation.key_begin).
struct XmlArguments {
  std::string grammar;             // model/grammar
  std::vector<std::string> texts;  // the parameters that are text
};

// The properties of `schema`, which is an object's, in their order. A text has no limits here but
// an `enum`. INVALID_ARGUMENT names what is not supported by JSON pointer and keyword, if it has to
// be enforced; else any text, or any JSON, is allowed there. Pure.
absl::StatusOr<XmlArguments> XmlArgumentsOf(std::string_view schema, const CallNotation& notation,
                                            bool enforced);

}  // namespace penstock
