#include "router/admission/answer_backlog.h"

#include <algorithm>

namespace penstock {

namespace {

// The piece continues the last of `calls`, or begins another one.
template <class Calls>
auto& CallOf(Calls& calls, v1::ToolCallPiece& piece) {
  if (!piece.id().empty() || calls.empty()) {
    auto& call = *calls.Add();
    call.set_id(std::move(*piece.mutable_id()));
    call.set_name(std::move(*piece.mutable_name()));
    return call;
  }
  return *calls.rbegin();
}

}  // namespace

void JoinChunks(v1::Chunk& chunk, v1::Chunk&& next) {
  chunk.mutable_token_ids()->MergeFrom(next.token_ids());
  chunk.mutable_text()->append(next.text());
  chunk.mutable_reasoning()->append(next.reasoning());
  for (v1::ToolCallPiece& piece : *next.mutable_tool_calls()) {
    v1::ToolCallPiece& call = CallOf(*chunk.mutable_tool_calls(), piece);
    call.set_index(piece.index());
    call.mutable_arguments()->append(piece.arguments());
  }
  for (v1::TokenLogprob& logprob : *next.mutable_logprobs()) {
    chunk.add_logprobs()->Swap(&logprob);
  }
}

void AnswerBacklog::Add(v1::GenerateResponse response) {
  if (response.has_chunk()) {
    const auto same = std::find_if(waiting_.begin(), waiting_.end(), [&](const auto& other) {
      return other.has_chunk() && other.chunk().index() == response.chunk().index();
    });
    if (same != waiting_.end()) {
      return JoinChunks(*same->mutable_chunk(), std::move(*response.mutable_chunk()));
    }
  }
  waiting_.push_back(std::move(response));
}

std::optional<v1::GenerateResponse> AnswerBacklog::Take() {
  if (waiting_.empty()) return std::nullopt;
  v1::GenerateResponse taken = std::move(waiting_.front());
  waiting_.pop_front();
  return taken;
}

AnswerCollector::AnswerCollector(uint32_t choices) {
  for (uint32_t i = 0; i < choices; ++i) answer_.add_choices()->set_index(i);
}

void AnswerCollector::Add(v1::GenerateResponse response) {
  if (response.has_chunk()) {
    v1::Chunk& chunk = *response.mutable_chunk();
    v1::Choice& choice = *answer_.mutable_choices(static_cast<int>(chunk.index()));
    choice.mutable_token_ids()->MergeFrom(chunk.token_ids());
    choice.mutable_text()->append(chunk.text());
    choice.mutable_reasoning()->append(chunk.reasoning());
    for (v1::ToolCallPiece& piece : *chunk.mutable_tool_calls()) {
      CallOf(*choice.mutable_tool_calls(), piece).mutable_arguments()->append(piece.arguments());
    }
    for (v1::TokenLogprob& logprob : *chunk.mutable_logprobs()) {
      choice.add_logprobs()->Swap(&logprob);
    }
    for (v1::TokenLogprob& logprob : *chunk.mutable_prompt_logprobs()) {
      choice.add_prompt_logprobs()->Swap(&logprob);
    }
    return;
  }
  v1::Final& ending = *response.mutable_final();
  v1::Choice& choice = *answer_.mutable_choices(static_cast<int>(ending.index()));
  choice.set_finish_reason(ending.finish_reason());
  choice.set_cumulative_logprob(ending.cumulative_logprob());
  choice.mutable_embedding()->Swap(ending.mutable_embedding());
  if (ending.has_matched_token_id()) choice.set_matched_token_id(ending.matched_token_id());
  if (ending.has_matched_stop_string()) {
    choice.set_matched_stop_string(ending.matched_stop_string());
  }
  answer_.set_request_id(ending.request_id());
  answer_.set_system_fingerprint(ending.system_fingerprint());
  if (ending.has_usage()) answer_.mutable_usage()->Swap(ending.mutable_usage());
  if (ending.has_timing()) answer_.mutable_timing()->Swap(ending.mutable_timing());
  if (ending.has_explanation()) answer_.mutable_explanation()->Swap(ending.mutable_explanation());
}

}  // namespace penstock
