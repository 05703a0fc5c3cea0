#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "base/bytes.h"

// Checks of the commands' options.
namespace penstock {

// A limit whose text stands in the help by our own words.
inline CLI::Validator Quiet(CLI::Validator validator) { return validator.description(""); }

// "512MiB"
inline CLI::Validator Size() {
  const auto check = [](const std::string& text) {
    const auto bytes = ParseBytes(text);
    return bytes.ok() ? std::string() : fmt::format("{} {}", text, Message(bytes.status()));
  };
  return {check, ""};
}

}  // namespace penstock
