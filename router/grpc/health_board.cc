#include "router/grpc/health_board.h"

#include "router/grpc/answer.h"
#include "router/grpc/frame.h"

namespace penstock {

using grpc_standard::v1::HealthCheckResponse;

class HealthBoard::WatchStream final : public StandingStream {
 public:
  WatchStream(const HealthBoard& board, std::string service, std::shared_ptr<Exchange> exchange)
      : StandingStream(std::move(exchange)), board_(board), service_(std::move(service)) {}

 private:
  bool Append(std::string& out, size_t) override {
    const Status now = board_.Check(service_).value_or(HealthCheckResponse::SERVICE_UNKNOWN);
    if (now == sent_) return false;
    sent_ = now;
    HealthCheckResponse response;
    response.set_status(now);
    AppendFrame(response, out);
    return false;
  }

  const HealthBoard& board_;
  const std::string service_;
  std::optional<Status> sent_;
};

void HealthBoard::Set(const std::string& service, bool serving) {
  {
    MutexLock lock(mutex_);
    statuses_[service] = serving ? HealthCheckResponse::SERVING : HealthCheckResponse::NOT_SERVING;
  }
  streams_.WakeAll();
}

absl::StatusOr<HealthBoard::Status> HealthBoard::Check(const std::string& service) const {
  MutexLock lock(mutex_);
  const auto found = statuses_.find(service);
  if (found == statuses_.end()) return NotFound("there is no service of that name");
  return found->second;
}

void HealthBoard::Watch(const std::string& service, const std::shared_ptr<Exchange>& exchange) {
  const auto stream = std::make_shared<WatchStream>(*this, service, exchange);
  if (const absl::Status added = streams_.Add(stream); !added.ok()) {
    return exchange->Respond(TrailersOnly(added));
  }
  exchange->Stream(AnswerHead(), stream);
}

}  // namespace penstock
