#pragma once

#include <string>
#include <string_view>

#include "base/log/log_line.h"

namespace penstock {

// Appends `text` escaped for a quoted value: see AppendLogField.
void AppendEscaped(std::string_view text, LogFormat format, std::string& line);

// Escapes text from outside for a terminal, so that it shows no control characters.
std::string Printable(std::string_view text);

}  // namespace penstock
