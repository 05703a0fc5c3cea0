#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/tokenizer/tokenizer.h"

namespace penstock {

struct DetokenizerOptions {
  bool skip_special_tokens = true;
  // True where the ids go on from earlier text (a completion after its prompt): the leading space
  // of a first SentencePiece token is then kept, as it separates words.
  bool continues_text = false;
};

// Turns one stream of ids into text that is valid UTF-8 after every call: bytes of an unfinished
// code point wait for the next id. One thread at a time; the tokenizer must outlive it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, DetokenizerOptions options = {});

  // The text that `id` completes; often empty in the middle of a code point.
  std::string Feed(uint32_t id);
  // The end of the stream: an unfinished code point becomes U+FFFD.
  std::string Flush();

 private:
  std::string TakeComplete(bool at_end);

  const Tokenizer& tokenizer_;
  DetokenizerOptions options_;
  bool first_token_;     // the next token would be the first of its text
  size_t strip_left_;    // spaces still to drop at the start of the text
  std::string pending_;  // bytes not yet emitted; at most 3 between calls
};

}  // namespace penstock
