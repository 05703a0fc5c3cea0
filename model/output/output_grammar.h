#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "model/output/output_format.h"

namespace penstock {

// A tool that an answer may call.
struct CallableTool {
  std::string name;
  std::string arguments;  // a grammar (model/grammar) of its arguments in the notation
  std::vector<std::string> texts = {};  // CalledTool.texts
};

// The form that an answer must have.
struct OutputRules {
  enum class Calls : uint8_t {
    kNone,       // tools play no part
    kForbidden,  // no call begins
    kAllowed,    // text, or calls behind text
    kRequired,
  };
  Calls calls = Calls::kNone;
  const CallNotation* notation = nullptr;  // needed unless kNone
  std::vector<CallableTool> tools;         // needed for kAllowed and kRequired
  bool single = false;                     // at most one call
  std::string structured;                  // a grammar of answers without calls; empty: any text
  const ReasoningNotation* reasoning = nullptr;  // nullptr: none comes first
  bool reasoning_begun = false;                  // by the prompt
};

// One grammar of all that. Behind what begins a call, name and arguments have to follow, so that
// the arguments are valid even where calls are only allowed. The rules begin behind the reasoning,
// which is any text. Empty: any answer is allowed. INVALID_ARGUMENT for what becomes too large.
// Pure.
absl::StatusOr<std::string> OutputGrammar(const OutputRules& rules);

}  // namespace penstock
