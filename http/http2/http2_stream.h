#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "http/body_budget.h"
#include "http/http2/http2_answer.h"
#include "http/http2/http2_head.h"

namespace penstock {

// One request of an HTTP/2 connection, from its head to the end of its answer. Owned by Http2 and
// used on the connection's thread.
struct Http2Stream {
  Http2Stream(int32_t number, const HttpLimits& limits, BodyBudget& budget, std::string client)
      : id(number), place(budget, std::move(client)), head(limits) {}

  const int32_t id;
  BodyReservation place;  // reservation for the stream's own memory

  // The request.
  Http2Head head;
  HttpHead taken;                  // taken from `head`; moved to the handler
  std::string body;                // the body, if it is collected
  std::shared_ptr<BodySink> sink;  // receives the body, if it is processed as it arrives
  // Reservation for head and body, from the complete head until the handler or the answer takes
  // over.
  std::shared_ptr<BodyReservation> held;
  size_t body_bytes = 0;  // bytes received
  TimePoint body_deadline;
  bool head_only = false;      // HEAD: the answer has no body
  bool discards_body = false;  // further bytes of the body are discarded
  bool complete = false;

  std::shared_ptr<Exchange> exchange;  // null before it is created and after it is closed

  // The answer.
  std::vector<HttpHeader> more_headers;  // the handler's for the request
  std::optional<Http2Answer> answer;     // the body of the answer
  TimePoint progress;                    // last time that a part of it was sent
  bool begun = false;
  bool waits = false;  // waits for its source
  bool answered = false;
};

}  // namespace penstock
