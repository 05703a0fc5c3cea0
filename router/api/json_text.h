#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace penstock {

// The text of a member of nested objects, named by its keys from the outside in; nullopt when it is
// not there. `json` is valid JSON, and the keys have no characters that JSON may escape. Parsed
// objects sort their keys; where their order matters, as in a schema, the client's text is read
// again. Pure.
std::optional<std::string_view> JsonTextAt(std::string_view json,
                                           std::span<const std::string_view> keys);

// The texts of the elements of a list, which is valid JSON. Pure.
std::vector<std::string_view> JsonTextsIn(std::string_view list);

}  // namespace penstock
