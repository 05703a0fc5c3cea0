#pragma once

#include <string>
#include <string_view>

#include "base/log/log_line.h"

namespace penstock {

// Appends `text` as it may stand between quotes: see AppendLogField.
void AppendEscaped(std::string_view text, LogFormat format, std::string& line);

// The same for a terminal: what others have named shows no control characters there.
std::string Printable(std::string_view text);

}  // namespace penstock
