#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/inference.pb.h"
#include "router/request/json.h"

namespace penstock {

// A part of an answer: one element of a response's `output`.
struct OutputItem {
  enum class Kind : uint8_t { kReasoning, kMessage, kCall };
  Kind kind = Kind::kMessage;
  std::string id;
  std::string text;          // the reasoning, the message, or the call's arguments
  std::string call_id = {};  // of a call
  std::string name = {};     // of a call: the function
};

// The status of an item or a response.
inline constexpr char kInProgress[] = "in_progress";
inline constexpr char kCompleted[] = "completed";
inline constexpr char kIncomplete[] = "incomplete";
inline constexpr char kFailed[] = "failed";

// The item as JSON; one in progress has no content yet.
std::string ItemJson(const OutputItem& item, std::string_view status);

// The content of a message or of reasoning as JSON.
std::string PartJson(OutputItem::Kind kind, std::string_view text);

// {"input_tokens": ..., "output_tokens": ..., ...}
std::string ResponseUsageJson(const v1::Usage& usage);

// The members of a response that repeat its request's fields, "name":value,... They are kept until
// the answer is complete, so a field that does not fit in kEchoBytesMax together with those before
// it has the value of an absent one. Pure.
inline constexpr size_t kEchoBytesMax = 16 << 10;
std::string EchoMembers(const Json& body);

}  // namespace penstock
