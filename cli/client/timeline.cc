#include "cli/client/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace penstock {
namespace {

double Ms(const google::protobuf::Duration& time) {
  return static_cast<double>(time.seconds()) * 1e3 + time.nanos() / 1e6;
}

struct Bar {
  const char* name;
  double begin;
  double length;
  std::string note;
};

std::vector<Bar> BarsOf(const v1::Timing& timing) {
  const double queue = Ms(timing.queue()), prefill = Ms(timing.prefill());
  const double first = Ms(timing.first_token()), decode = Ms(timing.decode());
  const double exposed = Ms(timing.kv_transfer());
  // The time before the queue: the router, and the call to the worker.
  const double begun = std::max(0.0, first - queue - prefill);
  return {{"router", 0, begun, "tokenize, place, call"},
          {"queue", begun, queue, "in " + timing.prefill_worker()},
          {"prefill", begun + queue, prefill,
           fmt::format("{} of {} layers sent during prefill", timing.layers_overlapped(),
                       timing.layers())},
          {"transfer", begun + queue + prefill, exposed,
           fmt::format("exposed after prefill; {} bytes over {}", timing.kv_bytes_moved(),
                       timing.transport().empty() ? "no lane" : timing.transport())},
          {"decode", first, decode, "in " + timing.decode_worker()}};
}

}  // namespace

std::string TimelineText(const v1::Timing& timing, int width) {
  const std::vector<Bar> bars = BarsOf(timing);
  double end = 1e-3;
  for (const Bar& bar : bars) end = std::max(end, bar.begin + bar.length);
  const double columns_a_ms = width / end;
  std::string text;
  for (const Bar& bar : bars) {
    const int begin = std::min(width - 1, static_cast<int>(bar.begin * columns_a_ms));
    // A stage that took any time has at least one column.
    const int length = bar.length <= 0
                           ? 0
                           : std::clamp(static_cast<int>(std::lround(bar.length * columns_a_ms)), 1,
                                        width - begin);
    text += fmt::format("{:<9}|{:{}}{:#<{}}{:{}}| {:>9.2f} ms  {}\n", bar.name, "", begin, "",
                        length, "", width - begin - length, bar.length, bar.note);
  }
  text +=
      fmt::format("{:<9}TTFT {:.2f} ms, end after {:.2f} ms", "", Ms(timing.first_token()), end);
  if (timing.migrations() > 0) {
    text += fmt::format("; replanned {}x", timing.migrations());
  }
  return text + "\n";
}

}  // namespace penstock
