#include "lab/router/router_streams.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <memory>

#include "base/mutex.h"
#include "lab/fake/wait_until.h"
#include "lab/router/router_probe.h"

namespace penstock {
namespace {

constexpr double kStreamsLimitMs = 2.0;
constexpr uint32_t kStreamTokens = 1000;  // longer than the bench takes

// One open answer. gRPC calls it until OnDone.
class Stream final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  Stream(v1::Inference::Stub& stub, const v1::GenerateRequest& request) : request_(request) {
    stub.async()->Generate(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  // Cancels and waits for the end.
  ~Stream() override {
    context_.TryCancel();
    MutexLock lock(mutex_);
    while (!done_) ended_.Wait(mutex_);
  }
  void Cancel() { context_.TryCancel(); }

  bool open() const {
    MutexLock lock(mutex_);
    return !done_;
  }
  uint64_t messages() const { return messages_; }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;
    ++messages_;
    StartRead(&response_);
  }
  void OnDone(const grpc::Status&) override {
    MutexLock lock(mutex_);
    done_ = true;
    ended_.NotifyAll();
  }

  const v1::GenerateRequest request_;
  grpc::ClientContext context_;
  v1::GenerateResponse response_;
  std::atomic<uint64_t> messages_{0};
  mutable Mutex mutex_;
  CondVar ended_;
  bool done_ GUARDED_BY(mutex_) = false;
};

using Streams = std::vector<std::unique_ptr<Stream>>;

uint64_t Messages(const Streams& streams) {
  uint64_t sum = 0;
  for (const auto& stream : streams) sum += stream->messages();
  return sum;
}

double P99(std::vector<double> values) {
  const auto at = values.begin() + static_cast<ptrdiff_t>(values.size() * 99 / 100);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

struct Times {
  std::vector<double> direct;
  std::vector<double> routed;
};

absl::StatusOr<Times> Measure(RouterProbe& probe, int requests) {
  Times times;
  for (int i = 0; i < requests; ++i) {  // in turns: whatever else there is falls on both
    ASSIGN_OR_RETURN(const double direct_ms, probe.AskPrefillWorker());
    ASSIGN_OR_RETURN(const double routed_ms, probe.AskRouter());
    times.direct.push_back(direct_ms);
    times.routed.push_back(routed_ms);
  }
  return times;
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> RunRouterStreamsBench(
    const RouterStreamsOptions& options, const std::function<void(const std::string&)>& progress) {
  progress(
      fmt::format("router: {} requests beside {} open streams", options.requests, options.streams));
  ASSIGN_OR_RETURN(const auto probe,
                   RouterProbe::Start({.token_every = options.token_every, .answer_tokens = 1}));
  const v1::GenerateRequest request = RouterProbe::Request(kStreamTokens);
  Streams streams;
  for (int i = 0; i < options.streams; ++i) {
    streams.push_back(std::make_unique<Stream>(probe->router(), request));
  }
  const auto flows = [](const auto& stream) { return stream->messages() >= 2; };
  if (!WaitUntil([&] { return std::all_of(streams.begin(), streams.end(), flows); })) {
    return Unavailable("not all of the {} streams began", options.streams);
  }
  const uint64_t before = Messages(streams);
  const TimePoint begin = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(const Times times, Measure(*probe, options.requests));
  const double seconds = Milliseconds(std::chrono::steady_clock::now() - begin) / 1000;
  const double per_s = static_cast<double>(Messages(streams) - before) / seconds;
  const bool all_open = std::all_of(streams.begin(), streams.end(),
                                    [](const auto& stream) { return stream->open(); });
  for (const auto& stream : streams) stream->Cancel();
  if (!all_open) return Unavailable("a stream ended before the measurement did");
  const double added = P99(times.routed) - P99(times.direct);
  return std::vector<BenchRow>{{.name = fmt::format("router_added_{}_p99", options.streams),
                                .value = added,
                                .unit = "ms",
                                .limit = kStreamsLimitMs,
                                .fraction = added / kStreamsLimitMs},
                               {.name = fmt::format("router_streamed_{}", options.streams),
                                .value = per_s,
                                .unit = "chunks/s"}};
}

}  // namespace penstock
