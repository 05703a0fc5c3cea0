// Streams of a gateway: whatever messages come, in whatever order, the state machine answers or
// ends, holds no more than its limits, and gives a body back as it came.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "router/picker/processing.h"

namespace {

using penstock::Processing;
using penstock::ext_proc::ProcessingRequest;

constexpr size_t kBodyMax = 300;

class FuzzRule final : public penstock::PickRule {
 public:
  std::optional<penstock::HttpResponse> Screen(const penstock::HttpHead& head,
                                               const Subset& subset) override {
    if (subset) penstock::Includes(*subset, "10.0.0.1:80");
    (void)penstock::FirstTokenLimitOf(head);
    if (head.path == "/refused") return penstock::HttpResponse{.status = 404};
    return std::nullopt;
  }
  std::string AccountOf(const penstock::HttpHead&) override { return ""; }
  std::optional<penstock::HttpResponse> Decide(const penstock::HttpRequest& request) override {
    PENSTOCK_CHECK(request.body.size() <= kBodyMax);
    if (request.body.starts_with('!')) return penstock::HttpResponse{.status = 400};
    return std::nullopt;
  }
  void OnNamed() override { PENSTOCK_CHECK_EQ(++named, 1); }
  penstock::HttpResponse Refuse(int status, const std::string&) override {
    return {.status = status};
  }

  int named = 0;
};

// Takes all answers; returns the pieces of the request's body in them.
std::string TakeAll(Processing& stream) {
  std::string back;
  while (const auto answer = stream.TakeAnswer()) {
    if (answer->has_request_body()) {
      back += answer->request_body().response().body_mutation().streamed_response().body();
    }
  }
  return back;
}

}  // namespace

// The input is a sequence of messages, each behind its length in two bytes.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzRule rule;
  penstock::BodyBudget bodies(2 * kBodyMax);
  {
    Processing stream({.rule = rule,
                       .bodies = bodies,
                       .endpoint = "10.0.0.1:80",
                       .limits = {.body_bytes = kBodyMax}});
    auto next = absl::StatusOr<Processing::Next>(Processing::Next::kRead);
    while (size >= 2 && next.ok() && *next == Processing::Next::kRead) {
      const size_t bytes = std::min<size_t>(data[0] | (data[1] << 8), size - 2);
      ProcessingRequest message;
      const bool parsed = message.ParseFromArray(data + 2, static_cast<int>(bytes));
      data += 2 + bytes;
      size -= 2 + bytes;
      if (!parsed) break;
      next = stream.OnMessage(std::move(message));
      if (!next.ok()) break;
      PENSTOCK_CHECK(bodies.reserved() <= kBodyMax);
      PENSTOCK_CHECK(TakeAll(stream).empty());
      if (*next != Processing::Next::kDecide) continue;
      const std::string body = stream.request().body;
      next = stream.OnDecided(rule.Decide(stream.request()));
      const std::string back = TakeAll(stream);
      PENSTOCK_CHECK(back.empty() || back == body);
    }
  }
  PENSTOCK_CHECK_EQ(bodies.reserved(), 0u);
  return 0;
}
