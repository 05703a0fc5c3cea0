#pragma once

#include <optional>
#include <string>

#include "model/tokenizer/detokenizer.h"
#include "model/tokenizer/stop_matcher.h"
#include "proto/inference.pb.h"
#include "proto/worker.pb.h"
#include "router/request/answer_spec.h"

namespace penstock {

// Writes one choice of an answer: detokenizes, searches for stop strings, and makes Chunks and one
// Final. Text that may be the beginning of a stop string is held back. One thread at a time; the
// tokenizer and `spec` outlive it.
class ChoiceWriter {
 public:
  // `continues_text`: the prompt is plain text that the answer continues.
  struct Args {
    uint32_t index = 0;
    const Tokenizer& tokenizer;
    const AnswerSpec& spec;
    bool continues_text = false;
  };
  ChoiceWriter(const Args& args, StopMatcher stops);

  // Adds the next token. ended() must be false.
  void Add(const v1::TokenOut& token);
  // The output of Add since the last call; nullopt: none.
  std::optional<v1::Chunk> TakeChunk();

  bool ended() const { return ending_.finish_reason() != v1::FINISH_REASON_UNSPECIFIED; }
  uint64_t tokens() const { return tokens_; }  // tokens added so far
  // Index, finish reason and matched stop; complete once ended.
  const v1::Final& ending() const { return ending_; }

 private:
  void Report(const v1::TokenOut& token);
  void Show(const std::string& text, bool search);
  void Finish(const v1::TokenOut& token);
  v1::TokenLogprob Logprob(const v1::TokenOut& token) const;

  const Tokenizer& tokenizer_;
  const AnswerSpec& spec_;
  Detokenizer detokenizer_;
  StopMatcher stops_;
  v1::Chunk chunk_;  // the output that TakeChunk has not returned yet
  v1::Final ending_;
  uint64_t tokens_ = 0;
};

}  // namespace penstock
