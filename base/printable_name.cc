#include "base/printable_name.h"

#include <fmt/format.h>

namespace penstock {

std::string PrintableName(std::string_view name) {
  constexpr size_t kMaxBytes = 80;
  std::string text(name.substr(0, kMaxBytes));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return fmt::format("\"{}\"{}", text, name.size() > kMaxBytes ? "..." : "");
}

}  // namespace penstock
