#pragma once

#include <memory>
#include <optional>
#include <string>

#include "http/body_budget.h"
#include "http/http2/http2_answer.h"
#include "http/http2/http2_head.h"

namespace penstock {

// One request of an HTTP/2 connection, from its head to the end of its answer. The connection's
// thread.
struct Http2Stream {
  Http2Stream(int32_t number, const HttpLimits& limits, BodyBudget& budget)
      : id(number), place(budget), head(limits), held(std::make_shared<HeldBody>(budget)) {}

  const int32_t id;
  HeldBody place;  // what the stream itself takes, as long as it lives

  // The request.
  Http2Head head;
  HttpHead taken;                  // of `head`, until it is handed over
  std::string body;                // where it is collected
  std::shared_ptr<BodySink> sink;  // where it is taken as it comes
  std::shared_ptr<HeldBody> held;  // its bytes, until it is handed over or its answer begins
  size_t body_bytes = 0;           // that have come
  TimePoint body_begin;
  bool head_only = false;    // HEAD: no body goes out
  bool throws_away = false;  // what still comes of it
  bool complete = false;

  std::shared_ptr<Exchange> exchange;  // null: not made yet, or closed

  // The answer.
  std::optional<Http2Answer> answer;  // its body
  TimePoint progress;                 // when something of it was last sent
  bool begun = false;
  bool waits = false;  // for its source
  bool answered = false;
};

}  // namespace penstock
