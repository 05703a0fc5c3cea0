#pragma once

#include <deque>
#include <optional>

#include "proto/inference.pb.h"

namespace penstock {

// What a client has not read yet. A chunk joins the last one of its choice, so that there are never
// more than two messages a choice, whatever the client does. One thread at a time.
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

// `next` is the continuation of `chunk`.
void JoinChunks(v1::Chunk& chunk, v1::Chunk&& next);

// The choices of a whole answer, collected from its stream.
class AnswerCollector {
 public:
  explicit AnswerCollector(uint32_t choices);
  void Add(v1::GenerateResponse response);
  v1::GenerateUnaryResponse Take() { return std::move(answer_); }

 private:
  v1::GenerateUnaryResponse answer_;
};

}  // namespace penstock
