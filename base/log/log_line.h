#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace penstock {

enum class LogFormat { kText, kJson };

// One field of an event. Keys are constants: lower case with underscores. Values may come from any
// source; views must stay valid until the line is written.
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

// Appends ` key=value` to a text line, or `,"key":value` to a JSON line. For any value, the line
// stays one line, JSON stays valid UTF-8, and no value can be read as another field. In text,
// values other than plain characters are quoted and escaped as in C; in JSON, invalid UTF-8 becomes
// U+FFFD. Values longer than kLogValueMax bytes are truncated. Non-finite numbers are null.
inline constexpr size_t kLogValueMax = 2048;
void AppendLogField(const LogField& field, LogFormat format, std::string& line);

}  // namespace penstock
