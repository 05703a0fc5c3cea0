#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/log/log.h"
#include "kvstore/handoff/slab_memory.h"
#include "kvstore/wire/host/host_wire.h"
#include "worker/handoff/held_metrics.h"
#include "worker/runtime/wire_metrics.h"
#include "worker/runtime/worker_runtime.h"

namespace penstock {
namespace {

// A GPU encodes and decodes slabs up to this size. Larger ones, of models with large layers, are
// encoded by the host.
constexpr size_t kGpuCodecBytes = size_t{4} << 20;
// Pending slabs of a handoff that GPUs pack and check: these work on many at a time.
constexpr size_t kGpuPutsMax = 16;

// The lossless codecs and those of `lossy`, with their rates on this machine.
std::vector<KvCodecRates> MeasuredCodecs(const LossyKv& lossy) {
  std::vector<KvCodecSpec> codecs = AllKvCodecs();
  std::erase_if(codecs, [](const KvCodecSpec& codec) { return !IsLossless(codec); });
  codecs.insert(codecs.end(), lossy.codecs().begin(), lossy.codecs().end());
  std::vector<KvCodecRates> rates = MeasureKvCodecs(codecs, lossy.calibration());
  for (const KvCodecRates& one : rates) {
    LogInfo("codec_measured", "{}: encodes {:.1f} GB/s, decodes {:.1f} GB/s on one core",
            KvCodecName(one.spec), one.encode_bytes_per_s / 1e9, one.decode_bytes_per_s / 1e9);
  }
  return rates;
}

void ReportSlab(const KvSlabReport& report, TransferMetrics& transfers) {
  LogDebug("slab_sent",
           "{} bytes went as {}, {} bytes: {:.3f} ms, of them {:.3f} to encode; predicted {:.3f}",
           report.raw_bytes, KvCodecName(report.codec), report.wire_bytes,
           Milliseconds(report.took), Milliseconds(report.encode), Milliseconds(report.predicted));
  transfers.OnSlab(report);
}

}  // namespace

void WorkerRuntime::OpenReceiver() {
  receiver_ = std::make_unique<KvReceiver>(
      KvReceiverOptions{.timing = {.lease = options_.lease},
                        .waiting_max = options_.max_waiting,
                        .calibration = lossy_->calibration(),
                        .on_step = options_.on_receive_step,
                        .writer = {}},
      HandoffFormat{.model_fingerprint = host_->fingerprint, .layout = host_->layout}, clock_,
      *host_->pool);
}

absl::Status WorkerRuntime::OpenWire() {
  const GpuHost* const gpu = host_->gpu.get();
  const auto transfers = gpu == nullptr ? nullptr : gpu->transfers();
  ASSIGN_OR_RETURN(wire_, MakeHostWire({.listen = options_.wire_listen,
                                        .lanes = options_.wire,
                                        .identity = cluster_,
                                        .network_trusted = options_.wire_network_trusted,
                                        .limits = {},
                                        .gpu = transfers,
                                        .same_host_gpu = transfers,
                                        .nccl = {.library = options_.nccl_library},
                                        .on_refused = CountRefusals(metrics_)},
                                       *receiver_));
  if (const absl::Status status = OpenGpuSlabs(); !status.ok()) {
    LogWarning("gpu_memory_not_used", "KV goes by the host's memory: {}", Message(status));
  }
  AddDetourMetric(metrics_, gpu);
  receiver_->SetWireAddress(wire_->address());
  return absl::OkStatus();
}

// The GPU packs, verifies and writes slabs.
absl::Status WorkerRuntime::OpenGpuSlabs() {
  if (host_->gpu == nullptr) return absl::OkStatus();
  ASSIGN_OR_RETURN(DeviceSlabs* const slabs, host_->gpu->OpenSlabs());
  const auto make = [&](size_t bytes) -> absl::StatusOr<GpuSlabMemories> {
    ASSIGN_OR_RETURN(auto codec, host_->gpu->MakeSlabCoder(kGpuCodecBytes, lossy_->calibration()));
    return MakeGpuSlabs(host_->layout, *slabs, bytes, std::move(codec));
  };
  ASSIGN_OR_RETURN(GpuSlabMemories outgoing, make(KvSenderOptions().staging_bytes));
  ASSIGN_OR_RETURN(gpu_incoming_, make(KvReceiverOptions().staging_bytes));
  gpu_outgoing_ = std::move(outgoing);
  receiver_->SetGpuSlabs(gpu_incoming_);
  LogInfo("gpu_memory_for_slabs", "{} of GPU memory hold outgoing and incoming slabs",
          FormatBytes(gpu_outgoing_.device->budget() + gpu_incoming_.device->budget()));
  if (gpu_outgoing_.mirrored == nullptr || gpu_incoming_.mirrored == nullptr) {
    LogWarning("page_locked_memory_not_used",
               "slabs in the host's memory are packed and verified by the CPU, which is slower: as "
               "much memory of the host cannot be page-locked");
  }
  if (const std::string reason = host_->gpu->slab_detours().reason; !reason.empty()) {
    LogWarning("peer_access_not_used",
               "slabs go between this worker's GPUs through page-locked host memory: {}", reason);
  }
  return absl::OkStatus();
}

absl::Status WorkerRuntime::StartSender() {
  KvSenderOptions options;
  options.timing.lease = options_.lease;
  options.calibration = lossy_->calibration();
  options.on_step = options_.on_send_step;
  options.device_slabs = gpu_outgoing_.device.get();
  options.mirrored_slabs = gpu_outgoing_.mirrored.get();
  if (options.device_slabs != nullptr) options.puts_max = kGpuPutsMax;
  if (options_.wire_codec == "auto") {
    options.choices = MeasuredCodecs(*lossy_);
  } else {
    ASSIGN_OR_RETURN(options.codec, ParseKvCodec(options_.wire_codec));
  }
  transfers_ = std::make_unique<TransferMetrics>(metrics_, TransferMetrics::Direction::kSent);
  options.on_slab = [this](const KvSlabReport& report) { ReportSlab(report, *transfers_); };
  sender_ = std::make_unique<KvSender>(
      std::move(options),
      HandoffFormat{.model_fingerprint = host_->fingerprint, .layout = host_->layout}, clock_,
      *wire_, host_->pool->view());
  handoffs_ = std::make_unique<HandoffClient>(*sender_, peer_credentials());
  sender_->Launch();
  AddHeldMetrics(metrics_, *sender_, *receiver_);
  return absl::OkStatus();
}

}  // namespace penstock
