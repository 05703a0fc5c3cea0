#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "router/request/json.h"

namespace penstock {

// The bodies of OpenAI's API that ask for an answer.
enum class BodyKind : uint8_t { kChat, kCompletion, kResponse };
inline constexpr BodyKind kBodyKinds[] = {BodyKind::kChat, BodyKind::kCompletion,
                                          BodyKind::kResponse};

// Treatment of a field.
enum class FieldUse : uint8_t {
  kDone,     // it has its effect
  kRefused,  // 400 `unsupported_parameter`, because an answer without its effect would be wrong
  kIgnored,  // it cannot change the answer
};

// A field of the requests of OpenAI, vLLM, SGLang or llama.cpp. Every one that their documents name
// has a row, so that no field that would change an answer is ignored in silence.
struct RequestField {
  std::string_view name;
  FieldUse chat;
  FieldUse completion;
  FieldUse response;
  // A JSON list of the values of a refused field that ask for nothing; null always does.
  std::string_view neutral = "[]";
  std::string_view note = "";  // completes "<field> ..." in the error, or explains the row
  std::string_view neutral_completion = neutral;  // where completions have another default
};

// By name. Constant.
std::span<const RequestField> RequestFields();

FieldUse UseOf(const RequestField& field, BodyKind kind);
// RequestField.neutral of this kind of body.
std::string_view NeutralOf(const RequestField& field, BodyKind kind);

// Notes an error for each field of `body` that its row refuses. Pure.
void RefuseUnsupported(const Json& body, BodyKind kind, FieldReader& reader);

}  // namespace penstock
