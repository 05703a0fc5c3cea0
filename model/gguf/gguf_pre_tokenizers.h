#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace penstock {

// The parts of a byte-level tokenizer.json that a GGUF file has as a name only
// (tokenizer.ggml.pre): converters hash what a tokenizer makes of a test text, and the hash gives
// the name.
struct GgufPreTokenizer {
  nlohmann::json normalizer;
  nlohmann::json pre_tokenizer;
  bool ignore_merges = false;  // a piece that is a token is that token
  bool adds_bos = false;       // where tokenizer.ggml.add_bos_token is absent, as in llama.cpp
};

// Absent for names that are not in the table.
std::optional<GgufPreTokenizer> FindGgufPreTokenizer(std::string_view name);
std::string GgufPreTokenizerNames();  // for errors

}  // namespace penstock
