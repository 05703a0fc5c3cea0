#pragma once

#include <string_view>

namespace penstock {

// True for the spelling of a token that delimits reasoning or tool calls in some family of models
// (model/output). Where a checkpoint calls such a token special, answers with a grammar or with
// tools show it as text all the same, and a grammar allows it. The list is a part of the grammars'
// fingerprint.
bool IsMarkerToken(std::string_view spelling);

}  // namespace penstock
