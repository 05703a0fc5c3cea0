#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

// Python's str methods over UTF-8. Positions and lengths count code points.

namespace penstock::jinja {

bool IsPythonSpace(char32_t code_point);
int64_t CodePointCount(std::string_view text);
// The byte offset of code point `index`, or the end of the text.
size_t ByteOffset(std::string_view text, int64_t index);

enum class Side { kLeft, kRight, kBoth };
// Without `characters`, strips white space.
std::string_view Strip(std::string_view text, Side side,
                       const std::optional<std::string>& characters = std::nullopt);

std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);
std::string TitleMethod(std::string_view text);  // the method str.title
// The filter `title`, which has fewer word boundaries.
std::string TitleFilter(std::string_view text);

// `max_splits` < 0 means no limit. Without `separator`, splits at runs of white space.
std::vector<std::string> Split(std::string_view text, const std::optional<std::string>& separator,
                               int64_t max_splits);
std::vector<std::string> SplitFromRight(std::string_view text, std::string_view separator,
                                        int64_t max_splits);
std::vector<std::string> SplitLines(std::string_view text);

// `count` < 0 replaces all. An empty `from` matches between all code points.
std::string Replace(std::string_view text, std::string_view from, std::string_view to,
                    int64_t count);
std::string HtmlEscape(std::string_view text);

}  // namespace penstock::jinja
