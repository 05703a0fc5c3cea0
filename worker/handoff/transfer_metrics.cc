#include "worker/handoff/transfer_metrics.h"

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

// The label's value for the transport that the wire reports.
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
        &registry.Counter("penstock_kv_transfers_total", "Handoffs of KV, by outcome.",
                          {{"direction", side}, {"outcome", outcome}});
  }
  if (!sent) return;
  for (const KvCodecSpec& codec : AllKvCodecs()) {
    codecs_.emplace(KvCodecName(codec), CountersOf(registry, KvCodecName(codec)));
  }
  for (const char* lane : kLanes) {
    lanes_[lane] = {.bytes = &registry.Counter("penstock_kv_transfer_bytes_total",
                                               "Bytes of KV handed over, by negotiated transport.",
                                               {{"direction", side}, {"transport", lane}}),
                    .wire_bytes = &registry.Counter(
                        "penstock_kv_transfer_wire_bytes_total",
                        "Bytes on the wire for KV handed over; fewer if a codec is used.",
                        {{"direction", side}, {"transport", lane}}),
                    .duration = &registry.Histogram("penstock_kv_transfer_duration_seconds",
                                                    "Time from offer to commit, compute included.",
                                                    LatencyBuckets(), {{"transport", lane}})};
  }
  exposed_ = &registry.Histogram(
      "penstock_kv_transfer_exposed_seconds",
      "Time from the end of compute to commit: the part that compute does not hide.",
      LatencyBuckets());
  first_slab_ = &registry.Histogram(
      "penstock_kv_transfer_first_slab_seconds",
      "Time from the first ready pages until their first slab has arrived.", LatencyBuckets());
}

TransferMetrics::Codec TransferMetrics::CountersOf(MetricsRegistry& registry,
                                                   const std::string& codec) {
  const auto seconds = [&](const char* name, const char* help) {
    return &registry.Counter(name, help, {{"codec", codec}});
  };
  const auto bytes = [&](const char* side) {
    return &registry.Counter("penstock_kv_codec_bytes_total",
                             "Bytes of slabs before (in) and after (out) the chosen codec.",
                             {{"codec", codec}, {"side", side}});
  };
  return {
      .slabs = &registry.Counter("penstock_kv_codec_slabs_total", "Slabs of KV, by chosen codec.",
                                 {{"codec", codec}}),
      .bytes_in = bytes("in"),
      .bytes_out = bytes("out"),
      .encoding =
          seconds("penstock_kv_codec_seconds_total", "Seconds spent packing and encoding slabs."),
      .predicted = seconds("penstock_kv_codec_predicted_seconds_total",
                           "Predicted seconds until slabs are decoded."),
      .actual = seconds("penstock_kv_codec_actual_seconds_total",
                        "Actual seconds until slabs are decoded, for slabs with a prediction.")};
}

void TransferMetrics::OnSlab(const KvSlabReport& report) {
  const Codec& codec = codecs_.at(KvCodecName(report.codec));
  codec.slabs->Increment();
  codec.bytes_in->Increment(static_cast<double>(report.raw_bytes));
  codec.bytes_out->Increment(static_cast<double>(report.wire_bytes));
  codec.encoding->Increment(Seconds(report.encode));
  if (report.predicted == Duration::zero()) return;
  codec.predicted->Increment(Seconds(report.predicted));
  codec.actual->Increment(Seconds(report.took));
}

void TransferMetrics::OnCommitted(const KvSendStats& stats, Duration took) {
  OnCommitted();
  const Lane& lane = lanes_.at(LaneOf(stats.transport));
  lane.bytes->Increment(static_cast<double>(stats.kv_bytes));
  lane.wire_bytes->Increment(static_cast<double>(stats.wire_bytes));
  lane.duration->Observe(Seconds(took));
  exposed_->Observe(Seconds(stats.exposed));
  if (stats.slabs > 0) first_slab_->Observe(Seconds(stats.first_slab));
}

void TransferMetrics::OnFailed(const absl::Status& status) {
  outcomes_.at(OutcomeOf(status))->Increment();
}

}  // namespace penstock
