#include "worker/handoff/kv_sending.h"

#include <set>
#include <utility>
#include <vector>

#include "base/log/log.h"

namespace penstock {
namespace {

// Those that change no bit, and what requests may ask for, with their rates on this machine.
std::vector<KvCodecRates> Measured(const LossyKv* lossy) {
  std::vector<KvCodecSpec> codecs = AllKvCodecs();
  std::erase_if(codecs, [](const KvCodecSpec& codec) { return !IsLossless(codec); });
  if (lossy != nullptr) {
    codecs.insert(codecs.end(), lossy->codecs().begin(), lossy->codecs().end());
  }
  std::vector<KvCodecRates> rates =
      MeasureKvCodecs(codecs, lossy == nullptr ? nullptr : lossy->calibration());
  for (const KvCodecRates& one : rates) {
    LogInfo("codec_measured", "{}: encodes {:.1f} GB/s, decodes {:.1f} GB/s on one core",
            KvCodecName(one.spec), one.encode_bytes_per_s / 1e9, one.decode_bytes_per_s / 1e9);
  }
  return rates;
}

KvSenderOptions Reporting(KvSenderOptions options, TransferMetrics& transfers) {
  options.on_slab = [&transfers](const KvSlabReport& report) {
    LogDebug("slab_sent",
             "{} bytes went as {}, {} bytes: {:.3f} ms, of them {:.3f} to encode; predicted "
             "{:.3f}",
             report.raw_bytes, KvCodecName(report.codec), report.wire_bytes,
             Milliseconds(report.took), Milliseconds(report.encode),
             Milliseconds(report.predicted));
    transfers.OnSlab(report);
  };
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
  std::set<std::string> codecs;
  for (const KvCodecSpec& codec : stats.codecs) codecs.insert(KvCodecName(codec));
  for (const std::string& codec : codecs) done.add_codecs(codec);
  return done;
}

void LogHandedOff(const RequestTag& tag, const KvSendStats& stats) {
  LogRequest(LogLevel::kDebug, tag, "handed_off",
             {{"bytes", stats.kv_bytes},
              {"wire_bytes", stats.wire_bytes},
              {"slabs", stats.slabs},
              {"transport", stats.transport},
              {"exposed_ms", Milliseconds(stats.exposed)}});
}

absl::StatusOr<std::unique_ptr<KvSending>> KvSending::Start(KvSendingOptions options,
                                                            const Parts& parts) {
  KvSenderOptions sending;
  sending.timing.lease = options.lease;
  sending.calibration = options.lossy == nullptr ? nullptr : options.lossy->calibration();
  sending.on_step = std::move(options.on_step);
  sending.device_slabs = parts.device_slabs;
  if (options.wire_codec == "auto") {
    sending.choices = Measured(options.lossy);
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
      handoffs_(sender_, parts.credentials) {}

}  // namespace penstock
