#include "router/grpc/standing_stream.h"

#include "router/grpc/answer.h"

namespace penstock {
namespace {

absl::Status ShuttingDown() { return Unavailable("the router is shutting down"); }

}  // namespace

void StandingStream::End(const absl::Status& status) {
  {
    MutexLock lock(mutex_);
    if (ending_) return;
    ending_ = status;
  }
  Wake();
}

BodySource::State StandingStream::Pull(std::string& out, size_t max) {
  MutexLock lock(mutex_);
  const bool ends =
      ending_.has_value();  // read before Append, so that all messages before the end are sent
  return !Append(out, max) && ends ? State::kEnd : State::kMore;
}

std::vector<HttpHeader> StandingStream::Trailers() {
  MutexLock lock(mutex_);
  return StatusTrailers(*ending_);
}

absl::Status StandingStreams::Add(const std::shared_ptr<StandingStream>& stream) {
  MutexLock lock(mutex_);
  if (ended_) return ShuttingDown();
  if (streams_.size() >= max_) Alive();
  if (streams_.size() >= max_) {
    return ResourceExhausted("{} streams of health and reflection are open, which is the limit",
                             max_);
  }
  streams_.push_back(stream);
  return absl::OkStatus();
}

std::vector<std::shared_ptr<StandingStream>> StandingStreams::Alive() {
  std::vector<std::shared_ptr<StandingStream>> alive;
  streams_.remove_if([&](const std::weak_ptr<StandingStream>& weak) {
    auto stream = weak.lock();
    const bool gone = stream == nullptr;
    if (!gone) alive.push_back(std::move(stream));
    return gone;
  });
  return alive;
}

void StandingStreams::WakeAll() {
  std::vector<std::shared_ptr<StandingStream>> alive;
  {
    MutexLock lock(mutex_);
    alive = Alive();
  }
  for (const auto& stream : alive) stream->Wake();
}

void StandingStreams::EndAll() {
  std::vector<std::shared_ptr<StandingStream>> alive;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    alive = Alive();
  }
  for (const auto& stream : alive) stream->End(ShuttingDown());
}

}  // namespace penstock
