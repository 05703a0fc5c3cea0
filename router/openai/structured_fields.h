#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/inference.pb.h"
#include "router/request/json.h"

namespace penstock {

// Where OpenAI's APIs have the format of an answer.
enum class FormatPlace : uint8_t {
  kResponseFormat,  // response_format: {"type", "json_schema": {"name", "schema", "strict"}}
  kTextFormat,      // text.format: {"type", "name", "schema", "strict"}
};

// Reads the fields that say what the answer looks like: OpenAI's format, vLLM's structured_outputs
// and guided_*, SGLang's json_schema, regex and ebnf. `text` is the body's text, which has the
// order of a schema's properties. At most one of them may be set. Returns the name of the one that
// is, for errors about its value; empty if none is. Pure.
std::string ReadStructured(FieldReader& reader, std::string_view text, FormatPlace place,
                           v1::StructuredOutput& structured);

}  // namespace penstock
