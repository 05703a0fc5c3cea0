#include "base/log/log_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/log/log_escape.h"

namespace penstock {
namespace {

bool IsPlain(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c > ' ' && c < 0x7f && c != '"' && c != '=' && c != '\\';
  });
}

void AppendText(std::string_view text, LogFormat format, std::string& line) {
  const bool cut = text.size() > kLogValueMax;
  text = text.substr(0, kLogValueMax);
  if (format == LogFormat::kText && !cut && IsPlain(text)) {
    line += text;
    return;
  }
  line += '"';
  AppendEscaped(text, format, line);
  if (cut) line += "...";
  line += '"';
}

}  // namespace

void AppendLogField(const LogField& field, LogFormat format, std::string& line) {
  if (format == LogFormat::kText) {
    fmt::format_to(std::back_inserter(line), " {}=", field.key());
  } else {
    fmt::format_to(std::back_inserter(line), ",\"{}\":", field.key());
  }
  if (const auto* text = std::get_if<std::string_view>(&field.value())) {
    AppendText(*text, format, line);
  } else if (const auto* real = std::get_if<double>(&field.value())) {
    line += std::isfinite(*real) ? fmt::format("{:.3f}", *real) : "null";
  } else {
    std::visit([&](const auto& value) { line += fmt::format("{}", value); }, field.value());
  }
}

}  // namespace penstock
