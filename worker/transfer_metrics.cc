#include "worker/transfer_metrics.h"

#include <chrono>

namespace penstock {
namespace {

constexpr const char* kOutcomes[] = {"ok",        "timeout", "checksum", "peer_gone",
                                     "cancelled", "refused", "error"};
constexpr const char* kLanes[] = {"shm", "tcp", "rdma", "other"};

const char* OutcomeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return "ok";
    case absl::StatusCode::kDeadlineExceeded:
      return "timeout";
    case absl::StatusCode::kDataLoss:
      return "checksum";
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
      return "peer_gone";
    case absl::StatusCode::kCancelled:
      return "cancelled";
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
      return "refused";
    default:
      return "error";
  }
}

// A label's value for what the wire says it negotiated.
const char* LaneOf(const std::string& transport) {
  if (transport.find("shared memory") != std::string::npos) return "shm";
  if (transport.find("tcp") != std::string::npos) return "tcp";
  if (transport.find("rc") == 0 || transport.find("dc") == 0 || transport.find("ud") == 0) {
    return "rdma";
  }
  return "other";
}

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

TransferMetrics::TransferMetrics(MetricsRegistry& registry, Direction direction) {
  const bool sent = direction == Direction::kSent;
  const std::string side = sent ? "tx" : "rx";
  for (const char* outcome : kOutcomes) {
    outcomes_[outcome] =
        &registry.Counter("penstock_kv_transfers_total", "Handoffs of KV by how they ended.",
                          {{"direction", side}, {"outcome", outcome}});
  }
  if (!sent) return;
  for (const char* lane : kLanes) {
    lanes_[lane] = {
        .bytes = &registry.Counter("penstock_kv_transfer_bytes_total",
                                   "Bytes of KV handed over, by the lane really negotiated.",
                                   {{"direction", side}, {"transport", lane}}),
        .wire_bytes =
            &registry.Counter("penstock_kv_transfer_wire_bytes_total",
                              "The same as they went over the wire: fewer where a codec is used.",
                              {{"direction", side}, {"transport", lane}}),
        .duration = &registry.Histogram("penstock_kv_transfer_duration_seconds",
                                        "From the offer to the commit, compute included.",
                                        LatencyBuckets(), {{"transport", lane}})};
  }
  exposed_ = &registry.Histogram("penstock_kv_transfer_exposed_seconds",
                                 "From the end of compute to the commit: what is not hidden.",
                                 LatencyBuckets());
}

void TransferMetrics::OnCommitted(const KvSendStats& stats, Duration took) {
  OnCommitted();
  const Lane& lane = lanes_.at(LaneOf(stats.transport));
  lane.bytes->Increment(static_cast<double>(stats.kv_bytes));
  lane.wire_bytes->Increment(static_cast<double>(stats.wire_bytes));
  lane.duration->Observe(Seconds(took));
  exposed_->Observe(Seconds(stats.exposed));
}

void TransferMetrics::OnFailed(const absl::Status& status) {
  outcomes_.at(OutcomeOf(status))->Increment();
}

}  // namespace penstock
