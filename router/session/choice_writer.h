#pragma once

#include <optional>
#include <span>
#include <string>

#include "model/output/output_parser.h"
#include "model/tokenizer/detokenizer.h"
#include "model/tokenizer/stop_matcher.h"
#include "proto/inference.pb.h"
#include "proto/worker.pb.h"
#include "router/request/answer_spec.h"

namespace penstock {

// Writes one choice of an answer: detokenizes, searches for stop strings, and makes Chunks and one
// Final. Text that may be the beginning of a stop string is held back. Where the answer has parts
// (AnswerSpec.parts), stop strings end its content, before any call. One thread at a time; the
// tokenizer and `spec` outlive it.
class ChoiceWriter {
 public:
  // `continues_text`: the prompt is plain text that the answer continues.
  struct Args {
    uint32_t index = 0;
    const Tokenizer& tokenizer;
    const AnswerSpec& spec;
    bool continues_text = false;
    uint64_t call_ids = 0;  // the ids of tool calls depend on it
  };
  ChoiceWriter(const Args& args, StopMatcher stops);

  // Begins the output with what the request wants of the prompt: its text, and its tokens'
  // log-probabilities. `scores`: of the tokens from the second on; empty without log-probabilities.
  void ShowPrompt(const std::string& text, std::span<const uint32_t> prompt,
                  std::span<const v1::TokenScore> scores);
  void ShowEmbedding(std::span<const float> embedding);
  // Adds the next token. ended() must be false.
  void Add(const v1::TokenOut& token);
  // The output of Add since the last call; nullopt: none.
  std::optional<v1::Chunk> TakeChunk();

  bool ended() const { return ending_.finish_reason() != v1::FINISH_REASON_UNSPECIFIED; }
  uint64_t tokens() const { return tokens_; }  // tokens added so far
  uint64_t reasoning_tokens() const { return reasoning_tokens_; }
  // Index, finish reason, matched stop, sum of log-probabilities and embedding; complete once
  // ended.
  const v1::Final& ending() const { return ending_; }

 private:
  void Report(const v1::TokenOut& token);
  void Show(const std::string& text, bool search);
  void ShowPieces(const std::vector<OutputPiece>& pieces, bool search);
  void ShowContent(const std::string& text, bool search);
  void BeginCall(const std::string& name);
  void ShowArguments(const std::string& text);
  void Finish(const v1::TokenOut& token);
  template <class Scored>  // TokenOut or TokenScore
  v1::TokenLogprob Logprob(uint32_t token, const Scored& scored, uint32_t alternatives) const;
  v1::TokenLogprob PromptLogprob(std::span<const uint32_t> prompt,
                                 std::span<const v1::TokenScore> scores, size_t at,
                                 uint32_t alternatives) const;

  const Tokenizer& tokenizer_;
  const AnswerSpec& spec_;
  Detokenizer detokenizer_;
  std::optional<OutputParser> parser_;  // nullopt: all is content
  StopMatcher stops_;
  v1::Chunk chunk_;  // the output that TakeChunk has not returned yet
  v1::Final ending_;
  uint64_t tokens_ = 0;
  uint64_t reasoning_tokens_ = 0;
  uint32_t calls_ = 0;  // tool calls begun so far
  const uint64_t call_ids_;
};

}  // namespace penstock
