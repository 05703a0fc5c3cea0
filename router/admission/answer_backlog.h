#pragma once

#include <deque>
#include <optional>

#include "proto/inference.pb.h"

namespace penstock {

// The messages that a client has not read yet. A new chunk is merged into the waiting one of its
// choice, so a slow client costs at most two messages a choice. One thread at a time.
class AnswerBacklog {
 public:
  void Add(v1::GenerateResponse response);
  std::optional<v1::GenerateResponse> Take();
  bool empty() const { return waiting_.empty(); }
  size_t size() const { return waiting_.size(); }
  void Clear() { waiting_.clear(); }

 private:
  std::deque<v1::GenerateResponse> waiting_;
};

// Appends `next`, the continuation of `chunk`, to it.
void JoinChunks(v1::Chunk& chunk, v1::Chunk&& next);

// Collects the messages of a stream into one whole answer. One thread at a time.
class AnswerCollector {
 public:
  explicit AnswerCollector(uint32_t choices);
  void Add(v1::GenerateResponse response);
  v1::GenerateUnaryResponse Take() { return std::move(answer_); }

 private:
  v1::GenerateUnaryResponse answer_;
};

}  // namespace penstock
