#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "model/tokenizer/tokenizer.h"

namespace penstock {

// Options of one stream of ids.
struct DetokenizerOptions {
  bool skip_special_tokens = true;
  bool show_markers = false;  // tokens of IsMarkerToken, although they are special
  // True if the ids continue an earlier text (a completion after its prompt). The leading space of
  // a first SentencePiece token is then kept, because it separates words.
  bool continues_text = false;
};

// Turns one stream of ids into text, which is valid UTF-8 after every call: the bytes of an
// incomplete code point are kept until the next id. One thread at a time. The tokenizer must
// outlive it.
class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, DetokenizerOptions options = {});

  // Returns the text that `id` completes; often empty, in the middle of a code point.
  std::string Feed(uint32_t id);
  // Ends the stream. An incomplete code point becomes U+FFFD.
  std::string Flush();

 private:
  std::string TakeComplete(bool at_end);

  const Tokenizer& tokenizer_;
  DetokenizerOptions options_;
  bool first_token_;     // the next token is the first of its text
  size_t strip_left_;    // spaces to drop at the start of the text
  std::string pending_;  // bytes not yet returned; at most 3 between calls
};

}  // namespace penstock
