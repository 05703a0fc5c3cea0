#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/tokenizer/bpe.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_added.h"
#include "model/tokenizer/tokenizer_decoder.h"
#include "model/tokenizer/tokenizer_normalizer.h"
#include "model/tokenizer/tokenizer_post.h"

namespace penstock {

// The parsed parts of a tokenizer.json, in the order in which a text passes through them. Immutable
// after Load.
struct Tokenizer::Parts {
  struct Named {
    std::string spelling;
    std::optional<uint32_t> id;
  };

  AddedTokens added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe model;
  PostProcessor post_processor;
  TokenDecoder decoder;

  std::vector<std::string> bytes = {};  // indexed by id
  std::vector<bool> special = {};       // indexed by id
  Named bos = {}, eos = {}, unk = {}, pad = {};

  static absl::StatusOr<Parts> ParseFile(const JsonField& file);  // tokenizer.json
  absl::Status ParseConfig(const JsonField& config);              // tokenizer_config.json

  std::optional<uint32_t> Find(std::string_view spelling) const;
  std::string_view Spelling(uint32_t id) const;
  void FillTables();
  absl::Status EncodeText(std::string_view text, bool starts_input, bool parse_special,
                          std::vector<uint32_t>& ids) const;
};

}  // namespace penstock
