#include "base/trace_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace penstock {
namespace {

constexpr size_t kMembersMax = 32;
constexpr size_t kLongMember = 128;
// Limit for all tracestate headers together; beyond it they are ignored.
constexpr size_t kHeaderMax = 8192;

bool IsHex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }
bool IsLower(char c) { return c >= 'a' && c <= 'z'; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool AllHex(std::string_view text) { return std::all_of(text.begin(), text.end(), IsHex); }
bool AllZero(std::string_view text) {
  return text.find_first_not_of('0') == std::string_view::npos;
}

uint8_t HexByte(std::string_view two) {
  const auto digit = [](char c) { return IsDigit(c) ? c - '0' : c - 'a' + 10; };
  return static_cast<uint8_t>(digit(two[0]) * 16 + digit(two[1]));
}

// Parses version "-" trace-id "-" parent-id "-" flags. Later versions may append "-" and more.
std::optional<TraceContext> ParseParent(std::string_view text) {
  constexpr size_t kLength = 55;
  if (text.size() < kLength || text[2] != '-' || text[35] != '-' || text[52] != '-') return {};
  const std::string_view version = text.substr(0, 2), trace = text.substr(3, 32);
  const std::string_view span = text.substr(36, 16), flags = text.substr(53, 2);
  if (!AllHex(version) || !AllHex(trace) || !AllHex(span) || !AllHex(flags)) return {};
  if (version == "ff" || AllZero(trace) || AllZero(span)) return {};
  if (text.size() > kLength && (version == "00" || text[kLength] != '-')) return {};
  return TraceContext{.trace_id = std::string(trace),
                      .span_id = std::string(span),
                      .flags = static_cast<uint8_t>(HexByte(flags) & kTraceFlags),
                      .state = {}};
}

std::string_view TrimmedOfBlanks(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

// Checks one part of a key: it begins with a lower-case letter or, in a tenant id, with a digit.
bool IsKeyPart(std::string_view text, size_t max, bool digit_first) {
  if (text.empty() || text.size() > max) return false;
  if (!IsLower(text[0]) && !(digit_first && IsDigit(text[0]))) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return IsLower(c) || IsDigit(c) || c == '_' || c == '-' || c == '*' || c == '/';
  });
}

bool IsKey(std::string_view key) {
  const size_t at = key.find('@');
  if (at == std::string_view::npos) return IsKeyPart(key, 256, false);
  return IsKeyPart(key.substr(0, at), 241, true) && IsKeyPart(key.substr(at + 1), 14, false);
}

bool IsValue(std::string_view value) {
  if (value.empty() || value.size() > 256 || value.back() == ' ') return false;
  return std::all_of(value.begin(), value.end(),
                     [](char c) { return c >= ' ' && c <= '~' && c != ',' && c != '='; });
}

// Returns the members of the list in order, or nothing if one is malformed or there are too many.
std::optional<std::vector<std::string_view>> MembersOf(
    const std::vector<std::string_view>& headers) {
  size_t bytes = 0;
  for (const std::string_view header : headers) bytes += header.size();
  if (bytes > kHeaderMax) return std::nullopt;
  std::vector<std::string_view> members;
  std::set<std::string_view> keys;
  for (std::string_view header : headers) {
    while (!header.empty()) {
      const size_t comma = std::min(header.find(','), header.size());
      const std::string_view member = TrimmedOfBlanks(header.substr(0, comma));
      header.remove_prefix(std::min(comma + 1, header.size()));
      if (member.empty()) continue;  // an empty member is allowed and ignored
      const size_t equals = member.find('=');
      if (equals == std::string_view::npos || !IsKey(member.substr(0, equals)) ||
          !IsValue(member.substr(equals + 1)) || !keys.insert(member.substr(0, equals)).second) {
        return std::nullopt;
      }
      members.push_back(member);
      if (members.size() > kMembersMax) return std::nullopt;
    }
  }
  return members;
}

std::string ParseState(const std::vector<std::string_view>& headers) {
  std::optional<std::vector<std::string_view>> members = MembersOf(headers);
  if (!members) return {};
  const auto length = [&] {
    size_t bytes = 0;
    for (const std::string_view member : *members) bytes += member.size() + 1;
    return bytes;  // counts a comma after each member, one too many
  };
  for (auto it = members->end(); length() > kTraceStateMax + 1 && it != members->begin();) {
    --it;
    if (it->size() > kLongMember) it = members->erase(it);
  }
  while (length() > kTraceStateMax + 1) members->pop_back();
  return fmt::format("{}", fmt::join(*members, ","));
}

}  // namespace

TraceContext ParseTrace(const TraceHeaders& headers) {
  if (headers.parents.size() != 1) return {};
  std::optional<TraceContext> trace = ParseParent(headers.parents.front());
  if (!trace) return {};
  trace->state = ParseState(headers.states);
  return *std::move(trace);
}

TraceContext ContinueTrace(TraceContext caller, const TraceRandom& random) {
  if (caller.trace_id.empty()) {
    // An all-zero trace id means no trace.
    const bool is_zero = random.trace_high == 0 && random.trace_low == 0;
    caller = {.trace_id =
                  fmt::format("{:016x}{:016x}", random.trace_high, is_zero ? 1 : random.trace_low),
              .span_id = {},
              .flags = kTraceRandomId,
              .state = {}};
  }
  caller.parent_id = std::exchange(caller.span_id, {});
  caller.span_id = fmt::format("{:016x}", std::max<uint64_t>(1, random.span));
  return caller;
}

std::string TraceParent(const TraceContext& trace) {
  return fmt::format("00-{}-{}-{:02x}", trace.trace_id, trace.span_id, trace.flags);
}

}  // namespace penstock
