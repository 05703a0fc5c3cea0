#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace penstock {

enum class LogFormat { kText, kJson };

// One thing that is known of an event. Keys are constants of ours: lower case and underscores.
// Values may come from anywhere; what they view lives until the line is written.
class LogField {
 public:
  using Value = std::variant<std::string_view, bool, int64_t, uint64_t, double>;

  LogField(std::string_view key, std::string_view text) : key_(key), value_(text) {}
  LogField(std::string_view key, const std::string& text) : key_(key), value_(text) {}
  LogField(std::string_view key, const char* text) : key_(key), value_(std::string_view(text)) {}
  LogField(std::string_view key, bool flag) : key_(key), value_(flag) {}
  LogField(std::string_view key, double number) : key_(key), value_(number) {}
  template <std::signed_integral Integer>
  LogField(std::string_view key, Integer number) : key_(key), value_(int64_t{number}) {}
  template <std::unsigned_integral Integer>
  LogField(std::string_view key, Integer number) : key_(key), value_(uint64_t{number}) {}

  std::string_view key() const { return key_; }
  const Value& value() const { return value_; }

 private:
  const std::string_view key_;
  const Value value_;
};

// Appends ` key=value` to a text line, or `,"key":value` to a JSON one. Whatever the value is, the
// line stays one line, JSON stays valid UTF-8, and nothing in it can be taken for another field: in
// text, what is more than plain characters stands in quotes, with the rest escaped as in C; in
// JSON, bytes that are not UTF-8 become U+FFFD. Longer values than kLogValueMax bytes are cut.
// Numbers that are not finite are null.
inline constexpr size_t kLogValueMax = 2048;
void AppendLogField(const LogField& field, LogFormat format, std::string& line);

}  // namespace penstock
