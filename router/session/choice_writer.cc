#include "router/session/choice_writer.h"

#include "base/check.h"
#include "router/session/call_id.h"

namespace penstock {

ChoiceWriter::ChoiceWriter(const Args& args, StopMatcher stops)
    : tokenizer_(args.tokenizer),
      spec_(args.spec),
      detokenizer_(args.tokenizer, {.skip_special_tokens = args.spec.skip_special_tokens,
                                    .show_markers = args.spec.show_markers,
                                    .continues_text = args.continues_text}),
      stops_(std::move(stops)),
      call_ids_(args.call_ids) {
  const OutputParts& parts = spec_.parts;
  if (parts.calls != nullptr || parts.reasoning != nullptr) parser_.emplace(parts);
  chunk_.set_index(args.index);
  ending_.set_index(args.index);
}

void ChoiceWriter::ShowPrompt(const std::string& text, std::span<const uint32_t> prompt,
                              std::span<const v1::TokenScore> scores) {
  chunk_.mutable_text()->append(text);
  for (size_t i = 0; i < prompt.size() && spec_.echo && spec_.return_logprobs; ++i) {
    v1::TokenLogprob& logprob = *chunk_.add_logprobs();
    logprob = PromptLogprob(prompt, scores, i, spec_.sampling.top_logprobs());
    logprob.clear_rank();
    logprob.set_omitted(spec_.skip_special_tokens && tokenizer_.is_special(prompt[i]));
  }
  for (size_t i = 0; i < prompt.size() && spec_.prompt_logprobs; ++i) {
    *chunk_.add_prompt_logprobs() = PromptLogprob(prompt, scores, i, *spec_.prompt_logprobs);
  }
}

void ChoiceWriter::ShowEmbedding(std::span<const float> embedding) {
  ending_.mutable_embedding()->Assign(embedding.begin(), embedding.end());
}

// Of the token at `at`; nothing precedes the first one.
v1::TokenLogprob ChoiceWriter::PromptLogprob(std::span<const uint32_t> prompt,
                                             std::span<const v1::TokenScore> scores, size_t at,
                                             uint32_t alternatives) const {
  const v1::TokenScore score = at == 0 ? v1::TokenScore() : scores[at - 1];
  v1::TokenLogprob logprob = Logprob(prompt[at], score, alternatives);
  if (at == 0) logprob.clear_logprob();
  logprob.set_rank(score.rank());
  return logprob;
}

void ChoiceWriter::Add(const v1::TokenOut& token) {
  PENSTOCK_CHECK(!ended());
  if (spec_.prompt_only) return ending_.set_finish_reason(v1::LENGTH);
  ++tokens_;
  ending_.set_cumulative_logprob(ending_.cumulative_logprob() + double{token.logprob()});
  if (parser_ && parser_->in_reasoning()) ++reasoning_tokens_;
  Report(token);
  const bool is_stop_token = token.finish() == v1::TokenOut::STOP;
  // Before min_tokens, stop strings are ignored, as the sampler excludes stop tokens there.
  const bool search = tokens_ > spec_.sampling.min_tokens();
  if (!is_stop_token || spec_.include_stop_in_output) {
    Show(detokenizer_.Feed(token.token()), search);
  }
  if (ended() || token.finish() == v1::TokenOut::GOING_ON) return;
  Show(detokenizer_.Flush(), search);
  if (parser_) ShowPieces(parser_->Flush(), search);
  if (!ended()) Finish(token);
}

void ChoiceWriter::Report(const v1::TokenOut& token) {
  if (spec_.return_token_ids) chunk_.add_token_ids(token.token());
  if (!spec_.return_logprobs) return;
  *chunk_.add_logprobs() = Logprob(token.token(), token, spec_.sampling.top_logprobs());
}

void ChoiceWriter::Show(const std::string& text, bool search) {
  if (!parser_) return ShowContent(text, search);
  ShowPieces(parser_->Feed(text), search);
}

void ChoiceWriter::ShowPieces(const std::vector<OutputPiece>& pieces, bool search) {
  for (const OutputPiece& piece : pieces) {
    if (ended()) return;
    switch (piece.kind) {
      case OutputPiece::Kind::kReasoning:
        if (spec_.reasoning == v1::REASONING_APART) {
          chunk_.mutable_reasoning()->append(piece.text);
        }
        break;
      case OutputPiece::Kind::kContent:
        ShowContent(piece.text, search && calls_ == 0);
        break;
      case OutputPiece::Kind::kCall:
        BeginCall(piece.text);
        break;
      case OutputPiece::Kind::kArguments:
        ShowArguments(piece.text);
        break;
    }
  }
}

void ChoiceWriter::BeginCall(const std::string& name) {
  chunk_.mutable_text()->append(stops_.Flush());
  v1::ToolCallPiece& piece = *chunk_.add_tool_calls();
  piece.set_index(calls_);
  piece.set_id(MakeCallId({.seed = call_ids_, .choice = chunk_.index(), .call = calls_},
                          spec_.parts.calls->id_length));
  piece.set_name(name);
  ++calls_;
}

void ChoiceWriter::ShowArguments(const std::string& text) {
  const bool joins = !chunk_.tool_calls().empty();
  v1::ToolCallPiece& piece =
      joins ? *chunk_.mutable_tool_calls()->rbegin() : *chunk_.add_tool_calls();
  piece.set_index(calls_ - 1);
  piece.mutable_arguments()->append(text);
}

void ChoiceWriter::ShowContent(const std::string& text, bool search) {
  if (!search) {
    chunk_.mutable_text()->append(text);
    return;
  }
  StopMatcher::Result result = stops_.Feed(text);
  chunk_.mutable_text()->append(result.text);
  if (!result.stop) return;
  ending_.set_finish_reason(v1::STOP);
  ending_.set_matched_stop_string(spec_.stop[*result.stop]);
}

void ChoiceWriter::Finish(const v1::TokenOut& token) {
  chunk_.mutable_text()->append(stops_.Flush());
  if (token.finish() == v1::TokenOut::STOP) {
    ending_.set_finish_reason(calls_ > 0 ? v1::TOOL_CALLS : v1::STOP);
    ending_.set_matched_token_id(token.token());
  } else {
    ending_.set_finish_reason(v1::LENGTH);
  }
}

template <class Scored>
v1::TokenLogprob ChoiceWriter::Logprob(uint32_t token, const Scored& scored,
                                       uint32_t alternatives) const {
  const auto bytes = [this](uint32_t id) { return std::string(tokenizer_.TokenBytes(id)); };
  v1::TokenLogprob logprob;
  logprob.set_token_id(token);
  logprob.set_logprob(scored.logprob());
  logprob.set_token_bytes(bytes(token));
  for (const v1::Alternative& alternative : scored.top()) {
    if (static_cast<uint32_t>(logprob.top_size()) == alternatives) break;
    v1::TopLogprob* top = logprob.add_top();
    top->set_token_id(alternative.token());
    top->set_logprob(alternative.logprob());
    top->set_token_bytes(bytes(alternative.token()));
  }
  return logprob;
}

std::optional<v1::Chunk> ChoiceWriter::TakeChunk() {
  const bool empty = chunk_.text().empty() && chunk_.token_ids().empty() &&
                     chunk_.logprobs().empty() && chunk_.reasoning().empty() &&
                     chunk_.tool_calls().empty() && chunk_.prompt_logprobs().empty();
  if (empty) return std::nullopt;
  v1::Chunk taken;
  taken.set_index(chunk_.index());
  taken.Swap(&chunk_);
  chunk_.set_index(taken.index());
  chunk_.set_sequence(tokens_);
  return taken;
}

}  // namespace penstock
