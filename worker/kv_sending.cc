#include "worker/kv_sending.h"

#include <utility>
#include <vector>

#include "base/log.h"

namespace penstock {
namespace {

// Those that change no bit, with their rates on this machine.
std::vector<KvCodecRates> ExactKvCodecs() {
  std::vector<KvCodecSpec> exact = AllKvCodecs();
  std::erase_if(exact, [](const KvCodecSpec& codec) { return !IsLossless(codec); });
  std::vector<KvCodecRates> rates = MeasureKvCodecs(exact);
  for (const KvCodecRates& one : rates) {
    LogInfo("KV codec {}: encodes {:.1f} GB/s, decodes {:.1f} GB/s on one core",
            KvCodecName(one.spec), one.encode_bytes_per_s / 1e9, one.decode_bytes_per_s / 1e9);
  }
  return rates;
}

KvSenderOptions Reporting(KvSenderOptions options, TransferMetrics& transfers) {
  options.on_slab = [&transfers](const KvSlabReport& report) { transfers.OnSlab(report); };
  return options;
}

}  // namespace

v1::HandoffDone HandoffDoneOf(const KvSendStats& stats) {
  v1::HandoffDone done;
  done.set_kv_bytes(stats.kv_bytes);
  done.set_slabs(stats.slabs);
  done.set_layers(stats.layers);
  done.set_layers_overlapped(stats.layers_overlapped);
  done.set_transport(stats.transport);
  done.set_exposed_ms(Milliseconds(stats.exposed));
  return done;
}

absl::StatusOr<std::unique_ptr<KvSending>> KvSending::Start(KvSendingOptions options,
                                                            const Parts& parts) {
  KvSenderOptions sending;
  sending.timing.lease = options.lease;
  sending.on_step = std::move(options.on_step);
  if (options.wire_codec == "auto") {
    sending.choices = ExactKvCodecs();
  } else {
    ASSIGN_OR_RETURN(sending.codec, ParseKvCodec(options.wire_codec));
  }
  std::unique_ptr<KvSending> made(new KvSending(std::move(sending), parts));
  made->sender_.Launch();
  return made;
}

KvSending::KvSending(KvSenderOptions options, const Parts& parts)
    : transfers_(parts.metrics, TransferMetrics::Direction::kSent),
      sender_(
          Reporting(std::move(options), transfers_),
          HandoffFormat{.model_fingerprint = parts.host.fingerprint, .layout = parts.host.layout},
          parts.clock, parts.wire, parts.host.pool->view()),
      handoffs_(sender_) {}

}  // namespace penstock
