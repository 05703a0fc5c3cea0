#include "worker/main/worker_options.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/lifecycle.h"
#include "base/tls/tls_files.h"
#include "kvstore/names/kv_policy.h"
#include "worker/main/step_defaults.h"
#include "worker/runtime/fault.h"

namespace penstock {
namespace {

constexpr uint32_t kChunkTokensMin = 16;

bool OnGpus(const v1::WorkerConfig& config) { return config.device().starts_with("cuda"); }

bool UsesMtp(const v1::WorkerConfig& config) { return config.speculation() == "mtp"; }

// The guesses that one decode step may check.
uint32_t DraftRowsOf(const v1::WorkerConfig& config) {
  const bool speculates = config.speculation() != "off" || !config.draft_model().empty();
  return speculates ? std::max(kDraftRows, config.max_draft_tokens()) : 0;
}

bool Evicts(const v1::WorkerConfig& config) {
  return !config.kv_eviction().empty() && config.kv_eviction() != "none";
}

// The model's runner allocates its memory for it at start.
int32_t StepTokensOf(const v1::WorkerConfig& config) {
  return static_cast<int32_t>(
      StepTokensMax({.chunk_tokens = config.chunk_tokens(),
                     .max_batch = config.max_batch(),
                     .prefill_chunk = config.prefill_chunk(),
                     .draft_rows = DraftRowsOf(config),
                     .again_tokens = Evicts(config) ? kAgainTokensMax : 0}));
}

ModelHost::Options ModelOptionsOf(const v1::WorkerConfig& config) {
  return {.model = config.model(),
          .kv_memory = config.kv_memory(),
          .kv_file = {.directory = config.kv_file_dir(), .size = config.kv_file_size()},
          .block_tokens = static_cast<int32_t>(config.block_tokens()),
          .kv_format = config.kv_format(),
          .weights = config.weights(),
          .expert_memory = config.expert_memory(),
          .expert_dir = config.expert_dir(),
          .packed_directory = config.packed_weights_dir(),
          .threads = static_cast<int32_t>(config.threads()),
          .step_tokens = StepTokensOf(config),
          .device = config.device(),
          .gpu_memory_utilization = config.gpu_memory_utilization(),
          .tensor_parallel = static_cast<int32_t>(config.tensor_parallel()),
          .nccl_library = config.nccl_library(),
          .gpu_kernels = config.gpu_kernels(),
          .gpu_graphs = config.gpu_graphs(),
          .numerics = config.numerics(),
          .evicts = Evicts(config),
          .selects = !config.kv_selection().empty() && config.kv_selection() != "none",
          .blends = config.kv_blend_deviation() > 0,
          .use_mtp = UsesMtp(config),
          .splits_kv = true};
}

absl::Status CheckDrafters(const v1::WorkerConfig& config) {
  if (!UsesMtp(config) || config.draft_model().empty()) return absl::OkStatus();
  return InvalidArgument(
      "speculation is mtp, and draft_model is {}; only one of them can guess: use "
      "speculation=ngram "
      "or off with a draft model, or leave draft_model out",
      config.draft_model());
}

// The draft model takes a step of a few tokens of each sequence, or chunks of a prompt. Its
// numerics are exact: they change guesses, not answers.
ModelHost::Options DraftOptionsOf(const v1::WorkerConfig& config) {
  return {.model = config.draft_model(),
          .kv_memory = config.draft_kv_memory(),
          .block_tokens = static_cast<int32_t>(config.block_tokens()),
          .weights = config.draft_weights(),
          .packed_directory = config.packed_weights_dir(),
          .threads = static_cast<int32_t>(config.threads()),
          .step_tokens = DraftStepTokens(config.max_batch()),
          .device = config.device(),
          .limits_gpu_pool = true,
          .gpu_memory_utilization = config.gpu_memory_utilization(),
          .gpu_kernels = config.gpu_kernels()};
}

// The host that the wire binds: the one of `listen` by default.
absl::StatusOr<std::string> WireHostOf(const v1::WorkerConfig& config) {
  ASSIGN_OR_RETURN(HostPort listen, ParseHostPort(config.listen()));
  return config.wire_listen().empty() ? listen.host : config.wire_listen();
}

}  // namespace

absl::StatusOr<v1::WorkerConfig> WithDeviceDefaults(v1::WorkerConfig config) {
  const StepDefaults defaults = StepDefaultsOn(OnGpus(config));
  if (config.chunk_tokens() == 0) config.set_chunk_tokens(defaults.chunk_tokens);
  if (config.max_batch() == 0) config.set_max_batch(defaults.max_batch);
  if (config.chunk_tokens() >= kChunkTokensMin) return config;
  return InvalidArgument("chunk_tokens is {}; it must be 0 or at least {}", config.chunk_tokens(),
                         kChunkTokensMin);
}

absl::StatusOr<WorkerRuntimeOptions> RuntimeOptionsOf(v1::WorkerState::Role first,
                                                      const v1::WorkerConfig& config) {
  RETURN_IF_ERROR(CheckDrafters(config));
  ASSIGN_OR_RETURN(auto fault, MakeFault(config.fault()));
  ASSIGN_OR_RETURN(std::string wire_listen, WireHostOf(config));
  // Tests inject a fault into the handoffs of the role that the worker starts with.
  const bool prefill = first == v1::WorkerState::PREFILL;
  return WorkerRuntimeOptions{
      .first_role = first,
      .worker_id = config.worker_id(),
      .listen = config.listen(),
      .metrics_listen = config.metrics_listen(),
      .stall_max = std::chrono::milliseconds(config.stall_ms()),
      .process = ProcessInfoOf(prefill ? "penstock-prefill" : "penstock-decode", config),
      .cluster = ClusterTlsOf(config),
      .model = ModelOptionsOf(config),
      .draft = DraftOptionsOf(config),
      .cache = {.keeps_blocks = config.prefix_cache() != "off",
                .policy = config.cache_policy(),
                .keep_tokens = !config.kv_events_listen().empty()},
      .kv_events_listen = config.kv_events_listen(),
      .kv_events_topic = config.kv_events_topic(),
      .kv_events_as_maps = config.kv_events_encoding() == "map",
      .dram_memory = config.dram_memory(),
      .nvme_dir = config.nvme_dir(),
      .nvme_size = config.nvme_size(),
      .nvme_io = config.nvme_io(),
      .nvme_codec = config.nvme_codec(),
      .nvme_min_uses = config.nvme_min_uses(),
      .wire = config.wire(),
      .wire_listen = std::move(wire_listen),
      .wire_network_trusted = config.wire_network_trusted(),
      .wire_codec = config.wire_codec(),
      .lossy_kv = config.lossy_kv(),
      .kv_eviction = config.kv_eviction(),
      .kv_selection = config.kv_selection(),
      .kv_blend_deviation = config.kv_blend_deviation(),
      .chunk_tokens = config.chunk_tokens(),
      .max_batch = config.max_batch(),
      .nccl_library = config.nccl_library(),
      .lease = std::chrono::milliseconds(config.lease_ms()),
      .max_waiting = config.max_waiting(),
      .peer_reads = config.peer_reads(),
      .on_send_step = prefill ? fault : FaultOfMoves(fault),
      .on_receive_step = prefill ? nullptr : fault,
      .on_peer_send_step = fault};
}

PrefillRoleOptions PrefillOptionsOf(const v1::WorkerConfig& config) {
  return {.chunk_tokens = static_cast<int32_t>(config.chunk_tokens()),
          .layers_per_group = static_cast<int32_t>(config.layers_per_group()),
          .max_waiting = config.max_waiting(),
          .random_chunks = config.random_chunks()};
}

DecodeRoleOptions DecodeOptionsOf(const v1::WorkerConfig& config) {
  return {.batch_max = config.max_batch(),
          .prefill_chunk = config.prefill_chunk(),
          .local_prefill_max_tokens = config.local_prefill_max_tokens(),
          .max_waiting = config.max_waiting(),
          .draft_tokens = DraftRowsOf(config) > 0 ? config.max_draft_tokens() : 0,
          .draft_rows = DraftRowsOf(config),
          .ngrams = config.speculation() == "ngram",
          .random_drafts = config.random_drafts()};
}

void LoadKernelsAtStart(const v1::WorkerConfig& config) {
  if (OnGpus(config)) setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
}

void KeepNcclOnThisHost(const v1::WorkerConfig& config) {
  const bool within_host = config.tensor_parallel() > 1 && config.wire() != "nccl";
  // "=": this interface, and no other whose name begins so.
  if (within_host) setenv("NCCL_SOCKET_IFNAME", "=lo", /*overwrite=*/0);
}

}  // namespace penstock
