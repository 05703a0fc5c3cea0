#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "model/gguf/gguf_config.h"
#include "tests/model/gguf/gguf_writer.h"

namespace penstock {

inline GgufWriter WithTable(GgufWriter writer) {
  writer.Tensor("token_embd.weight", "Q8_0", {100, 32});
  return writer;
}

inline absl::StatusOr<nlohmann::json> ConfigOf(const GgufWriter& writer) {
  const std::string bytes = writer.Bytes();
  ASSIGN_OR_RETURN(const GgufFile file, ParseWritten(bytes));
  ASSIGN_OR_RETURN(const std::string text, GgufConfigJson(file));
  return nlohmann::json::parse(text);
}

inline std::string ErrorOf(const GgufWriter& writer) { return Message(ConfigOf(writer).status()); }

}  // namespace penstock
