#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace penstock {

class Tokenizer;

// This room, model/grammar, turns what a client wants an answer to look like (a JSON schema, a
// regular expression, a list of choices, a grammar) into one grammar, and a grammar into the sets
// of tokens that may come next. It knows vocabularies; it does not know requests, sampling, batches
// or workers. XGrammar, whose header no other room sees, is the engine; a grammar is a text in its
// notation of EBNF with the rule `root`.

// INVALID_ARGUMENT unless `ebnf` is a grammar in XGrammar's notation. Needs no vocabulary. Pure.
absl::Status CheckGrammar(const std::string& ebnf);

// INVALID_ARGUMENT also when no text begins an answer. Compiles the grammar over single bytes.
// Pure.
absl::Status CheckGrammarBegins(const std::string& ebnf);

// The grammar of a JSON schema that has passed the gate. Pure.
absl::StatusOr<std::string> ConvertSchema(const std::string& gated_schema, bool compact);

// Names the library's version and our options. Workers of equal fingerprints allow the same tokens.
// Not 0.
uint64_t GrammarFingerprint();

// A grammar over one vocabulary. Immutable; any thread.
class CompiledGrammar {
 public:
  struct Parts;
  explicit CompiledGrammar(std::unique_ptr<const Parts> parts);
  ~CompiledGrammar();
  const Parts& parts() const { return *parts_; }
  size_t bytes() const;  // of memory

 private:
  const std::unique_ptr<const Parts> parts_;
};

// Compiles grammars over one vocabulary. One thread at a time. There is no way to end a
// compilation, so its input must have passed the gates of this room.
class GrammarCompiler {
 public:
  // `logits_width`: tokens of the model, at least those of the tokenizer.
  static absl::StatusOr<std::unique_ptr<GrammarCompiler>> Create(const Tokenizer& tokenizer,
                                                                 uint32_t logits_width);
  // The token i is texts[i]; those behind `texts` have none.
  static absl::StatusOr<std::unique_ptr<GrammarCompiler>> CreateOver(
      const std::vector<std::string>& texts, uint32_t width);
  ~GrammarCompiler();

  // INVALID_ARGUMENT when `ebnf` is not a grammar, or no text satisfies it.
  absl::StatusOr<std::shared_ptr<const CompiledGrammar>> Compile(const std::string& ebnf);

 private:
  struct Parts;
  explicit GrammarCompiler(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

// The tokens that may come next in one answer. Depends on the grammar and the accepted tokens
// alone, so another process that accepts the same tokens goes on with the same sets. One thread at
// a time.
class TokenMask {
 public:
  // `stop_ids` end an answer: one of them is allowed exactly where the grammar is complete.
  static absl::StatusOr<std::unique_ptr<TokenMask>> Open(
      std::shared_ptr<const CompiledGrammar> grammar, std::span<const uint32_t> stop_ids);
  ~TokenMask();

  static size_t WordsFor(uint32_t logits_width) { return (size_t{logits_width} + 31) / 32; }
  // Sets bit i % 32 of word i / 32 for each token i that may come next. INTERNAL when no token may.
  // Not after the end.
  absl::Status Fill(std::span<uint32_t> bits);
  // INTERNAL when the grammar does not allow the token; nothing has changed then.
  absl::Status Accept(uint32_t id);
  bool ended() const;  // a stop token was accepted

 private:
  struct Parts;
  explicit TokenMask(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace penstock
