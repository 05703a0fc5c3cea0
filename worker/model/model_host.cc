#include "worker/model/model_host.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "kernels/cpu/isa.h"
#include "kernels/kv_rows.h"
#include "kernels/selection/page_bounds.h"
#include "kvstore/cache/kv_split.h"
#include "model/gguf/model_text.h"
#include "model/load/load_model.h"
#include "model/load/stored_model.h"

namespace penstock {
namespace {

// More threads than these read memory no faster than the bus to a GPU takes it.
constexpr int kLoadThreadsMax = 32;

// A larger file would leave no memory for a layer of all its blocks, in models of few layers.
constexpr uint64_t kFileShareMax = 16;

int ThreadCount(int32_t asked) {
  if (asked > 0) return asked;
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

// Workers compute equal tokens only with equal rounding, which the instruction set or the GPU
// decides.
uint64_t WithArithmetic(uint64_t fingerprint, const std::string& arithmetic) {
  for (const char c : arithmetic) {
    fingerprint = (fingerprint ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  return fingerprint;
}

absl::StatusOr<KvPageFormat> FormatOf(const std::string& kv_format) {
  const std::optional<KvPageFormat> format = KvPageFormatOf(kv_format);
  if (!format) {
    return InvalidArgument(
        "kv_format is '{}'; it must be bf16, f8, i8, i4r, k8v4, k3v3 or k3v2, all but bf16 also "
        "with a span of recent tokens in bf16, a multiple of {} up to {}, as in i4r+128, and then "
        "with centred keys, as in i4rc+128",
        kv_format, KvPageFormat::kSpanStep, KvPageFormat::kSpanMax);
  }
  return *format;
}

// Says why a model's pages cannot have the format.
absl::Status CheckFormat(const KvPageFormat& format, const ModelConfig& config) {
  const std::string kv_format = KvPageFormatName(format);
  if (config.HasLatents() && format.dtype != KvDtype::kBf16) {
    return InvalidArgument(
        "kv_format is {}, and the pages of this model ({}) have latents, which are always bf16; "
        "use bf16",
        kv_format, config.architecture);
  }
  if (!HoldsHeads(format.dtype, config.head_dim)) {
    return InvalidArgument(
        "kv_format is {}, which needs head dimensions that are multiples of 16 up to {}; this "
        "model has {}; use bf16",
        kv_format, kQuantisedHeadMax, config.head_dim);
  }
  const bool windows = std::any_of(config.sliding_window.begin(), config.sliding_window.end(),
                                   [](int32_t window) { return window > 0; });
  if (format.span > 0 && windows) {
    return InvalidArgument(
        "kv_format is {}, and this model has sliding windows, whose layers have no span; use {}",
        kv_format, KvDtypeName(format.dtype));
  }
  return absl::OkStatus();
}

absl::StatusOr<WeightPolicy> PolicyFor(const std::string& weights) {
  const std::optional<WeightPolicy> policy = WeightPolicyOf(weights);
  if (!policy) {
    return InvalidArgument("weights is '{}'; it must be checkpoint, int8 or int4", weights);
  }
  return *policy;
}

absl::StatusOr<KvRoom> RoomIn(const ModelHost::Options& options, const ModelHost& host) {
  ASSIGN_OR_RETURN(const uint64_t bytes, ParseBytes(options.kv_memory));
  const KvLayout& layout = host.layout;
  const auto together = static_cast<int64_t>(bytes / layout.BlockStride());
  if (together < 1) {
    return InvalidArgument("kv_memory is {}; one block of this model takes {}", options.kv_memory,
                           FormatBytes(layout.BlockStride()));
  }
  if (!options.splits_kv) return KvRoom{.blocks = together, .rows = together};
  return SplitKvMemory(layout, bytes, host.runner->max_position(), options.step_tokens);
}

// The blocks that fit the file, and the memory for those of them that are not on the disk alone.
absl::StatusOr<DiskPager::Options> PagerOptionsFor(const ModelHost::Options& options,
                                                   const KvLayout& layout) {
  ASSIGN_OR_RETURN(const uint64_t memory, ParseBytes(options.kv_memory));
  const absl::StatusOr<uint64_t> file = ParseBytes(options.kv_file.size);
  if (!file.ok()) return Annotate(file.status(), "kv_file_size");
  if (*file <= memory || *file / kFileShareMax > memory) {
    return InvalidArgument(
        "kv_file_size is {}, and kv_memory is {}; the file must be larger, and at most {} times "
        "as large",
        options.kv_file.size, options.kv_memory, kFileShareMax);
  }
  const auto blocks = static_cast<int64_t>(*file / layout.BlockStride());
  const uint64_t bounds =
      options.selects ? static_cast<uint64_t>(blocks) * PageBounds::BytesOf(layout) : 0;
  if (bounds > memory / 2) {
    return InvalidArgument(
        "kv_file_size is {}, and the bounds of its pages for kv_selection take {}, more than half "
        "of kv_memory, which is {}; lower kv_file_size or raise kv_memory",
        options.kv_file.size, FormatBytes(bounds), options.kv_memory);
  }
  return DiskPager::Options{
      .directory = options.kv_file.directory, .blocks = blocks, .memory_bytes = memory - bounds};
}

absl::Status MapPool(const ModelHost::Options& options, ModelHost& host) {
  if (options.kv_file.directory.empty()) {
    ASSIGN_OR_RETURN(const KvRoom room, RoomIn(options, host));
    if (options.splits_kv) {
      ASSIGN_OR_RETURN(host.pool, BlockPool::Create(host.layout, room.blocks, room.rows));
    } else {
      ASSIGN_OR_RETURN(host.pool, BlockPool::Create(host.layout, room.blocks));
    }
    return absl::OkStatus();
  }
  if (host.layout.span > 0) {
    return InvalidArgument("kv_format is {}, and kv_file_dir is set, whose pages have no span",
                           options.kv_format);
  }
  ASSIGN_OR_RETURN(DiskPager::Options pager, PagerOptionsFor(options, host.layout));
  absl::StatusOr<std::unique_ptr<DiskPager>> opened =
      DiskPager::Create(host.layout, std::move(pager));
  if (!opened.ok()) return Annotate(opened.status(), "kv_file_dir and kv_memory");
  host.pager = *std::move(opened);
  ASSIGN_OR_RETURN(host.pool, BlockPool::CreateOver(host.pager->pages()));
  return absl::OkStatus();
}

// The index of the GPU; nullopt for the CPU.
absl::StatusOr<std::optional<int>> GpuOf(std::string_view device) {
  constexpr std::string_view kCuda = "cuda:";
  if (device == "cpu") return std::nullopt;
  int index = 0;
  if (device.starts_with(kCuda)) {
    const std::string_view number = device.substr(kCuda.size());
    const auto [end, error] = std::from_chars(number.begin(), number.end(), index);
    if (error == std::errc() && end == number.end() && index >= 0) return index;
  }
  return InvalidArgument("device is '{}'; it must be cpu or cuda:N, for example cuda:0", device);
}

absl::StatusOr<std::optional<ExpertCache::Options>> ExpertCacheFor(
    const ModelHost::Options& options) {
  if (options.expert_memory.empty()) return std::nullopt;
  if (options.expert_dir.empty()) {
    return InvalidArgument(
        "expert_memory is {}, and expert_dir is empty; set expert_dir to a directory on a disk "
        "with "
        "room for all experts",
        options.expert_memory);
  }
  const absl::StatusOr<uint64_t> bytes = ParseBytes(options.expert_memory);
  if (!bytes.ok()) return Annotate(bytes.status(), "expert_memory");
  return ExpertCache::Options{.directory = options.expert_dir, .bytes = *bytes};
}

// What the options say, checked before anything is loaded.
struct Place {
  std::optional<int> gpu;  // nullopt: the CPU
  WeightPolicy policy = WeightPolicy::kCheckpoint;
  std::optional<ExpertCache::Options> expert_cache;
  KvPageFormat format;
};

absl::StatusOr<Place> PlaceOf(const ModelHost::Options& options) {
  ASSIGN_OR_RETURN(const std::optional<int> gpu, GpuOf(options.device));
  if (!gpu && options.tensor_parallel != 1) {
    return FailedPrecondition(
        "tensor_parallel is {}, which needs GPUs, and device is {}; set device=cuda:0, or "
        "tensor_parallel=1",
        options.tensor_parallel, options.device);
  }
  if (!gpu && options.gpu_kernels == "library") {
    return FailedPrecondition(
        "gpu_kernels is {}, and device is {}; set device=cuda:0, or leave gpu_kernels out",
        options.gpu_kernels, options.device);
  }
  if (!gpu && options.gpu_graphs == "always") {
    return FailedPrecondition(
        "gpu_graphs is {}, and device is {}; set device=cuda:0, or leave gpu_graphs out",
        options.gpu_graphs, options.device);
  }
  if (!gpu && options.numerics != "exact") {
    return FailedPrecondition(
        "numerics is {}, and device is {}; the library's attention needs a GPU: set device=cuda:0, "
        "or leave numerics out",
        options.numerics, options.device);
  }
  if (gpu && !options.expert_memory.empty()) {
    return FailedPrecondition(
        "expert_memory is {}, and device is {}; experts on a disk need device=cpu: leave "
        "expert_memory out",
        options.expert_memory, options.device);
  }
  if (gpu && !options.packed_directory.empty()) {
    return FailedPrecondition(
        "packed_weights_dir is {}, and device is {}; weights are shared with device=cpu only: "
        "leave "
        "packed_weights_dir out",
        options.packed_directory, options.device);
  }
  if (gpu && !options.kv_file.directory.empty()) {
    return FailedPrecondition(
        "kv_file_dir is {}, and device is {}; pages in a file need device=cpu: leave kv_file_dir "
        "out",
        options.kv_file.directory, options.device);
  }
  ASSIGN_OR_RETURN(const WeightPolicy policy, PolicyFor(options.weights));
  ASSIGN_OR_RETURN(auto expert_cache, ExpertCacheFor(options));
  ASSIGN_OR_RETURN(const KvPageFormat format, FormatOf(options.kv_format));
  return Place{
      .gpu = gpu, .policy = policy, .expert_cache = std::move(expert_cache), .format = format};
}

absl::Status OpenOnCpu(const ModelHost::Options& options, const Place& place, ModelHost& host) {
  const TimePoint begin = SteadyClock().Now();
  ASSIGN_OR_RETURN(LoadedModel model,
                   LoadModel(options.model, {.policy = place.policy,
                                             .use_mtp = options.use_mtp,
                                             .expert_cache = place.expert_cache,
                                             .key_means = place.format.centred,
                                             .packed_directory = options.packed_directory,
                                             .threads = ThreadCount(options.threads)}));
  host.start = {.load_s = ElapsedSeconds(begin), .weight_bytes = model.weights.bytes()};
  host.weights = std::move(model.weights);
  host.weights_form = host.weights.FormName();
  host.checkpoint_fingerprint = model.fingerprint;
  host.arithmetic = IsaName(BestIsa());
  host.fingerprint = WithArithmetic(model.fingerprint, host.arithmetic);
  ThreadPool* threads = options.shared_threads;
  if (threads == nullptr) {
    host.threads = std::make_unique<ThreadPool>(ThreadCount(options.threads));
    threads = host.threads.get();
  }
  host.cpu_runner = std::make_unique<TransformerRunner>(host.weights, Exec{.threads = threads},
                                                        options.step_tokens);
  host.runner = host.cpu_runner.get();
  host.layout = host.runner->kv_layout();
  host.layout.block_tokens = options.block_tokens;
  RETURN_IF_ERROR(CheckFormat(place.format, host.weights.config));
  host.layout = host.layout.In(place.format);
  return MapPool(options, host);
}

absl::Status OpenOnGpu(const ModelHost::Options& options, const Place& place, ModelHost& host) {
  const int threads = std::min(ThreadCount(options.threads), kLoadThreadsMax);
  ASSIGN_OR_RETURN(const auto model,
                   StoredModel::Open(options.model, {.policy = place.policy,
                                                     .use_mtp = options.use_mtp,
                                                     .key_means = place.format.centred,
                                                     .threads = threads}));
  RETURN_IF_ERROR(CheckFormat(place.format, model->weights().config));
  GpuOptions gpu{.index = *place.gpu,
                 .tensor_parallel = options.tensor_parallel,
                 .nccl_library = options.nccl_library,
                 .memory_utilization = options.gpu_memory_utilization,
                 .step_tokens = options.step_tokens,
                 .kernels = options.gpu_kernels,
                 .graphs = options.gpu_graphs,
                 .numerics = options.numerics,
                 .block_tokens = options.block_tokens,
                 .format = place.format,
                 .evicts = options.evicts,
                 .selects = options.selects,
                 .blends = options.blends,
                 .splits_pages = options.splits_kv,
                 .threads = threads};
  if (options.limits_gpu_pool) {
    ASSIGN_OR_RETURN(gpu.page_bytes_max, ParseBytes(options.kv_memory));
  }
  ASSIGN_OR_RETURN(host.gpu, OpenGpuHost(model->weights(), gpu));
  host.weights_form = model->weights().MatricesName();
  host.checkpoint_fingerprint = model->Fingerprint();
  host.arithmetic = host.gpu->arithmetic();
  host.fingerprint = WithArithmetic(host.checkpoint_fingerprint, host.arithmetic);
  host.start = host.gpu->start;
  host.runner = &host.gpu->runner();
  host.layout = host.gpu->pages().layout;
  ASSIGN_OR_RETURN(host.pool, host.gpu->MakePool());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelHost>> ModelHost::Open(const Options& options) {
  ASSIGN_OR_RETURN(const Place place, PlaceOf(options));
  auto host = std::make_unique<ModelHost>();
  host->name = DefaultModelName(options.model);
  host->numerics = options.numerics;
  host->step_tokens = options.step_tokens;
  RETURN_IF_ERROR(place.gpu ? OpenOnGpu(options, place, *host) : OpenOnCpu(options, place, *host));
  return host;
}

}  // namespace penstock
