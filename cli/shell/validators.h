#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>

#include "base/bytes.h"
#include "kernels/kv_format.h"

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

// A format of the workers' --kv_format.
inline CLI::Validator FormatOfPages() {
  const auto check = [](const std::string& name) {
    if (KvPageFormatOf(name)) return std::string();
    return fmt::format(
        "{} is no format: bf16, f8, i8, i4r, k8v4, k3v3 or k3v2, all but bf16 also with a span of "
        "recent tokens, a multiple of {} up to {}, as in i4r+128, and then with centred keys, as "
        "in i4rc+128",
        name, KvPageFormat::kSpanStep, KvPageFormat::kSpanMax);
  };
  return {check, ""};
}

}  // namespace penstock
