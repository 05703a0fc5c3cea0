#include <algorithm>
#include <limits>
#include <utility>

#include "base/bytes.h"
#include "base/clock.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cuda/cuda_slabs.h"
#include "kernels/cuda/cuda_transfers.h"
#include "kernels/cuda/sharded/head_ranges.h"
#include "kernels/cuda/sharded/shard_movers.h"
#include "kernels/library/library_products.h"
#include "kvstore/cache/kv_split.h"
#include "kvstore/codec/device_slab_coder.h"
#include "model/check/blend_check.h"
#include "model/check/mtp_check.h"
#include "model/cuda/cuda_model_check.h"
#include "model/cuda/prompts/fast_check.h"
#include "model/cuda/ranks/tensor_parallel_runner.h"
#include "model/forward/blended_rows.h"
#include "model/forward/runner_check.h"
#include "model/forward/transformer_runner.h"
#include "worker/model/gpu_host.h"
#include "worker/model/nccl_ranks.h"

namespace penstock {
namespace {

// Reserved for memory that steps allocate later: inputs, split attention, logits, CUDA graphs, and
// the ring of CudaPages.
constexpr size_t kReserveBytes = size_t{256} << 20;

std::string ComputeCapability(const cuda::CudaDevice& device) {
  return fmt::format("cuda {}.{}", device.info().compute_major, device.info().compute_minor);
}

bool IsFast(const GpuOptions& options) { return options.numerics == "fast"; }

// `products` is null where they are this project's.
std::string ArithmeticOf(const cuda::CudaDevice& device, const cuda::Products* products,
                         const GpuOptions& options) {
  std::string name = ComputeCapability(device);
  if (products != nullptr) name += fmt::format(" {}", products->name());
  if (IsFast(options)) name += fmt::format(" {}", cuda::library::kPrefillName);
  return name;
}

// Null: this project's.
absl::StatusOr<std::unique_ptr<cuda::Products>> MakeProducts(const cuda::CudaDevice& device,
                                                             const std::string& kernels) {
  if (kernels == "own") return nullptr;
  return cuda::MakeLibraryProducts(device.info());
}

// Graphs of several GPUs hold NCCL's calls, and never ran on real GPUs.
bool MakesGraphs(const GpuOptions& options) {
  return options.graphs == "always" || (options.graphs == "auto" && options.tensor_parallel == 1);
}

CudaRunner::Options RunnerOptions(const GpuOptions& options, const cuda::Products* products) {
  const CudaRunner::Options defaults;
  return {.max_step_tokens = options.step_tokens,
          .products = products == nullptr ? &cuda::OwnProducts() : products,
          .graphs_max = MakesGraphs(options) ? defaults.graphs_max : 0,
          .load_threads = options.threads,
          .evicts = options.evicts,
          .selects = options.selects,
          .blends = options.blends && options.format == KvPageFormat(),
          .fast_prompts = IsFast(options)};
}

// Makes the pool of pages. They have memory for `rows` rows; 0: blocks have memory for all layers.
template <class Pages>
absl::StatusOr<std::unique_ptr<BlockPool>> PoolOf(Pages& pages, int64_t rows) {
  if (rows == 0) return BlockPool::CreateOver(pages.view());
  ASSIGN_OR_RETURN(auto pool, BlockPool::CreateOver(pages.view(), rows));
  pages.SetRows(pool->view().rows);
  return pool;
}

class OneGpu final : public GpuHost {
 public:
  OneGpu(std::unique_ptr<cuda::CudaDevice> device, std::unique_ptr<cuda::Products> products,
         std::unique_ptr<CudaRunner> runner, std::unique_ptr<cuda::CudaPages> pages, int64_t rows,
         const GpuOptions& options)
      : arithmetic_(ArithmeticOf(*device, products.get(), options)),
        device_(std::move(device)),
        products_(std::move(products)),
        runner_(std::move(runner)),
        pages_(std::move(pages)),
        rows_(rows) {}

  ModelRunner& runner() override { return *runner_; }
  const PagedKv& pages() const override { return pages_->view(); }
  absl::StatusOr<std::unique_ptr<BlockPool>> MakePool() override { return PoolOf(*pages_, rows_); }
  std::shared_ptr<const TransferDevice> transfers() const override {
    return cuda::MakeTransferDevice(*device_);
  }
  absl::StatusOr<DeviceSlabs*> OpenSlabs() override {
    if (slabs_ == nullptr) {
      ASSIGN_OR_RETURN(slabs_, cuda::CudaSlabs::Create(*device_, pages_->view(), {}));
    }
    return slabs_.get();
  }
  SlabDetours slab_detours() const override { return {}; }
  absl::StatusOr<std::unique_ptr<SlabCoder>> MakeSlabCoder(
      size_t raw_bytes_max, const KvCalibration* calibration) override {
    return MakeDeviceSlabCoder(*device_, raw_bytes_max, calibration);
  }
  std::string arithmetic() const override { return arithmetic_; }

 private:
  const std::string arithmetic_;
  const std::unique_ptr<cuda::CudaDevice> device_;
  const std::unique_ptr<cuda::Products> products_;  // null: this project's
  const std::unique_ptr<CudaRunner> runner_;
  const std::unique_ptr<cuda::CudaPages> pages_;
  const int64_t rows_;                      // that the pages have memory for; 0: they are undivided
  std::unique_ptr<cuda::CudaSlabs> slabs_;  // once opened
};

using Devices = std::vector<std::unique_ptr<cuda::CudaDevice>>;

// Several GPUs that compute together. Wires and tiers see them as one.
class ManyGpus final : public GpuHost {
 public:
  ManyGpus(Devices devices, std::unique_ptr<cuda::Products> products,
           std::unique_ptr<NcclRanks> links, std::unique_ptr<cuda::ShardedPages> pages,
           std::unique_ptr<TensorParallelRunner> runner, int64_t rows, const GpuOptions& options)
      : arithmetic_(ArithmeticOf(*devices.front(), products.get(), options)),
        devices_(std::move(devices)),
        products_(std::move(products)),
        links_(std::move(links)),
        pages_(std::move(pages)),
        runner_(std::move(runner)),
        rows_(rows) {}

  ModelRunner& runner() override { return *runner_; }
  const PagedKv& pages() const override { return pages_->view(); }
  absl::StatusOr<std::unique_ptr<BlockPool>> MakePool() override { return PoolOf(*pages_, rows_); }
  std::shared_ptr<const TransferDevice> transfers() const override {
    return cuda::MakeTransferDevice(*devices_.front());
  }
  absl::StatusOr<DeviceSlabs*> OpenSlabs() override;
  SlabDetours slab_detours() const override {
    if (movers_ == nullptr) return {};
    return {.reason = Message(movers_->peer_access()), .slabs = movers_->detours()};
  }
  absl::StatusOr<std::unique_ptr<SlabCoder>> MakeSlabCoder(
      size_t raw_bytes_max, const KvCalibration* calibration) override {
    return MakeDeviceSlabCoder(*devices_.front(), raw_bytes_max, calibration);
  }
  // Without the number of GPUs: workers of different numbers share KV (docs/adr/0025).
  std::string arithmetic() const override { return arithmetic_; }

 private:
  const std::string arithmetic_;
  const Devices devices_;
  const std::unique_ptr<cuda::Products> products_;  // null: this project's
  const std::unique_ptr<NcclRanks> links_;
  const std::unique_ptr<cuda::ShardedPages> pages_;
  const std::unique_ptr<TensorParallelRunner> runner_;
  const int64_t rows_;  // as OneGpu's
  // Once opened.
  std::unique_ptr<cuda::ShardMovers> movers_;
  std::unique_ptr<cuda::CudaSlabs> slabs_;
};

absl::StatusOr<DeviceSlabs*> ManyGpus::OpenSlabs() {
  if (slabs_ != nullptr) return slabs_.get();
  cuda::ShardMovers::Devices devices;
  for (const auto& device : devices_) devices.push_back(device.get());
  ASSIGN_OR_RETURN(movers_, cuda::ShardMovers::Create(std::move(devices), *pages_));
  ASSIGN_OR_RETURN(slabs_,
                   cuda::CudaSlabs::Create(*devices_.front(), pages_->view(), {}, movers_.get()));
  return slabs_.get();
}

// The blocks that the options allow.
absl::StatusOr<int64_t> BlocksMax(const GpuOptions& options, const KvLayout& layout) {
  const int64_t most = options.blocks_max > 0 ? options.blocks_max : INT64_MAX;
  if (options.page_bytes_max == 0) return most;
  const auto blocks = static_cast<int64_t>(options.page_bytes_max / layout.BlockStride());
  if (blocks >= 1) return std::min(blocks, most);
  return InvalidArgument("kv_memory is {}; one block of this model takes {}",
                         FormatBytes(options.page_bytes_max), FormatBytes(layout.BlockStride()));
}

// `beside`: bytes that a block takes beside its page.
absl::StatusOr<int64_t> BlocksThatFit(const cuda::CudaDevice& device, const GpuOptions& options,
                                      const KvLayout& layout, size_t beside = 0) {
  const cuda::DeviceInfo info = device.Look();
  const auto share =
      static_cast<size_t>(static_cast<double>(info.memory_bytes) * options.memory_utilization);
  const size_t used = info.memory_bytes - info.free_bytes + kReserveBytes;
  const size_t left = share > used ? share - used : 0;
  const size_t each = layout.BlockStride() + beside;
  const auto blocks = static_cast<int64_t>(left / each);
  ASSIGN_OR_RETURN(const int64_t most, BlocksMax(options, layout));
  if (blocks >= 1) return std::min(blocks, most);
  return ResourceExhausted(
      "cuda:{} has {}, of which {} are in use with the weights and a reserve of {}: a "
      "gpu_memory_utilization of {:.2f} leaves no room for a block of {}; raise it, or use a "
      "larger GPU",
      device.index(), FormatBytes(info.memory_bytes), FormatBytes(used), FormatBytes(kReserveBytes),
      options.memory_utilization, FormatBytes(each));
}

KvLayout LayoutFor(const ModelRunner& runner, const GpuOptions& options) {
  KvLayout layout = runner.kv_layout();
  layout.block_tokens = options.block_tokens;
  return layout.In(options.format);
}

// Divides the memory of `blocks` blocks with all their layers.
cuda::CudaPages::Room DivideRoom(const GpuOptions& options, const KvLayout& layout, int64_t blocks,
                                 int64_t longest) {
  const size_t spare = layout.RowStride() * cuda::kSpareRows;
  const size_t bytes = static_cast<size_t>(blocks) * layout.BlockStride();
  if (!options.splits_pages || layout.group.empty() || bytes <= spare) return {.blocks = blocks};
  const KvRoom room = SplitKvMemory(layout, bytes - spare, longest, options.step_tokens);
  if (room.rows >= room.blocks && layout.span == 0) return {.blocks = blocks};
  return {.blocks = room.blocks, .rows = room.rows};
}

// Second copies must lie apart (PagedKv::FirstCopies).
absl::Status CheckRoom(const GpuOptions& options, const KvLayout& layout,
                       const cuda::CudaPages::Room& room) {
  const bool apart = options.splits_pages && layout.span > 0;
  if (!apart || (room.rows > 0 && room.blocks > 0)) return absl::OkStatus();
  return ResourceExhausted(
      "kv_format is {}, whose bf16 copies take {} for each block, and {} more of them: that leaves "
      "no room for a block of {}; raise kv_memory or gpu_memory_utilization",
      KvPageFormatName(options.format), FormatBytes(layout.RowStride()), cuda::kSpareRows,
      FormatBytes(layout.FullStride()));
}

absl::StatusOr<std::unique_ptr<GpuHost>> OpenOne(const Weights& weights,
                                                 const GpuOptions& options) {
  ASSIGN_OR_RETURN(auto device, cuda::CudaDevice::Open(options.index));
  ASSIGN_OR_RETURN(auto products, MakeProducts(*device, options.kernels));
  const TimePoint begin = SteadyClock().Now();
  ASSIGN_OR_RETURN(auto runner,
                   CudaRunner::Create(weights, *device, RunnerOptions(options, products.get())));
  const ModelStart start{.load_s = ElapsedSeconds(begin), .weight_bytes = runner->weight_bytes()};
  const KvLayout layout = LayoutFor(*runner, options);
  ASSIGN_OR_RETURN(const int64_t blocks,
                   BlocksThatFit(*device, options, layout, runner->BoundsBytes(layout)));
  const cuda::CudaPages::Room room = DivideRoom(options, layout, blocks, runner->max_position());
  RETURN_IF_ERROR(CheckRoom(options, layout, room));
  ASSIGN_OR_RETURN(auto pages, cuda::CudaPages::Create(*device, layout, room, {}));
  RETURN_IF_ERROR(runner->KeepBounds(pages->view()));
  auto host = std::make_unique<OneGpu>(std::move(device), std::move(products), std::move(runner),
                                       std::move(pages), room.rows, options);
  host->start = start;
  return host;
}

absl::StatusOr<Devices> OpenDevices(const GpuOptions& options) {
  Devices devices;
  for (int rank = 0; rank < options.tensor_parallel; ++rank) {
    auto device = cuda::CudaDevice::Open(options.index + rank);
    if (!device.ok()) {
      return Annotate(device.status(),
                      fmt::format("tensor_parallel is {}", options.tensor_parallel));
    }
    devices.push_back(*std::move(device));
    if (ComputeCapability(*devices.back()) == ComputeCapability(*devices.front())) continue;
    return FailedPrecondition(
        "tensor_parallel is {}: cuda:{} is {}, cuda:{} is {}; GPUs that compute together are of "
        "one compute capability",
        options.tensor_parallel, options.index, ComputeCapability(*devices.front()),
        devices.back()->index(), ComputeCapability(*devices.back()));
  }
  return devices;
}

// The pages of several GPUs, which have memory for `rows` rows.
struct ManyPages {
  std::unique_ptr<cuda::ShardedPages> pages;
  int64_t rows = 0;
};

// Every GPU gets as many blocks and rows as fit on the fullest one.
absl::StatusOr<ManyPages> OpenPages(const Devices& devices, const GpuOptions& options,
                                    const TensorParallelRunner& runner) {
  const KvLayout whole = LayoutFor(runner, options);
  const KvLayout layout = cuda::LayoutOfRank(whole, options.tensor_parallel);
  int64_t blocks = std::numeric_limits<int64_t>::max();
  for (const auto& device : devices) {
    ASSIGN_OR_RETURN(const int64_t fit,
                     BlocksThatFit(*device, options, layout, runner.BoundsBytes(layout)));
    blocks = std::min(blocks, fit);
  }
  const cuda::CudaPages::Room room = DivideRoom(options, layout, blocks, runner.max_position());
  RETURN_IF_ERROR(CheckRoom(options, layout, room));
  std::vector<std::unique_ptr<cuda::CudaPages>> ranks;
  for (const auto& device : devices) {
    ASSIGN_OR_RETURN(auto pages, cuda::CudaPages::Create(*device, layout, room, {}));
    ranks.push_back(std::move(pages));
  }
  return ManyPages{.pages = std::make_unique<cuda::ShardedPages>(std::move(ranks)),
                   .rows = room.rows};
}

absl::StatusOr<std::unique_ptr<GpuHost>> OpenMany(const Weights& weights,
                                                  const GpuOptions& options) {
  ASSIGN_OR_RETURN(Devices devices, OpenDevices(options));
  ASSIGN_OR_RETURN(auto library, NcclLibrary::Load(options.nccl_library));
  ASSIGN_OR_RETURN(auto links, NcclRanks::Create(std::move(library), options.tensor_parallel, {}));
  std::vector<cuda::CudaDevice*> ranks;
  for (const auto& device : devices) ranks.push_back(device.get());
  ASSIGN_OR_RETURN(auto products, MakeProducts(*devices.front(), options.kernels));
  const TimePoint begin = SteadyClock().Now();
  ASSIGN_OR_RETURN(
      auto runner,
      TensorParallelRunner::Create(weights, ranks, *links, RunnerOptions(options, products.get())));
  const ModelStart start{.load_s = ElapsedSeconds(begin), .weight_bytes = runner->weight_bytes()};
  ASSIGN_OR_RETURN(ManyPages many, OpenPages(devices, options, *runner));
  RETURN_IF_ERROR(runner->SetPages(*many.pages));
  auto host =
      std::make_unique<ManyGpus>(std::move(devices), std::move(products), std::move(links),
                                 std::move(many.pages), std::move(runner), many.rows, options);
  host->start = start;
  return host;
}

absl::StatusOr<std::unique_ptr<GpuHost>> Open(const Weights& weights, const GpuOptions& options) {
  return options.tensor_parallel == 1 ? OpenOne(weights, options) : OpenMany(weights, options);
}

absl::Status Untrusted(const absl::Status& check, int index) {
  return Annotate(check,
                  fmt::format("cuda:{} cannot be trusted (scripts/gpu-check says more)", index));
}

// Own, or library if the build, the GPU and the model's matrices allow it. The output matrix is the
// only one whose number of outputs may be odd.
std::string BestKernels(const ModelConfig& config, const cuda::CudaDevice& device) {
  const auto library = cuda::MakeLibraryProducts(device.info());
  const cuda::Weight output{.outputs = config.vocab, .inputs = config.hidden};
  return library.ok() && (*library)->Check(output).ok() ? "library" : "own";
}

// Replaces auto in options.kernels, and checks the kernels that are chosen.
absl::Status ChooseKernels(const ModelConfig& config, GpuOptions& options) {
  for (int rank = 0; rank < options.tensor_parallel; ++rank) {
    ASSIGN_OR_RETURN(const auto device, cuda::CudaDevice::Open(options.index + rank));
    if (options.kernels == "auto") options.kernels = BestKernels(config, *device);
    if (options.kernels == "own") return absl::OkStatus();
    RETURN_IF_ERROR(cuda::MakeLibraryProducts(device->info()).status());
    RETURN_IF_ERROR(Untrusted(cuda::CheckLibraryProducts(*device), device->index()));
  }
  return absl::OkStatus();
}

// If numerics is fast, checks that the library can compute the model's prompts on each GPU, and
// that it does so as the CPU.
absl::Status CheckNumerics(const ModelConfig& config, const GpuOptions& options) {
  if (!IsFast(options)) return absl::OkStatus();
  RETURN_IF_ERROR(CheckFastPages(options.format.dtype));
  for (int rank = 0; rank < options.tensor_parallel; ++rank) {
    ASSIGN_OR_RETURN(const auto device, cuda::CudaDevice::Open(options.index + rank));
    RETURN_IF_ERROR(CheckFastPrompts(config, device->info()));
    device->Select();
    RETURN_IF_ERROR(
        Untrusted(cuda::library::CheckPrefill(cuda::library::LaunchPrefill,
                                              PrefillModelOf(config, options.block_tokens),
                                              device->info().processors, device->stream()),
                  device->index()));
  }
  return absl::OkStatus();
}

// The form of `matrix`'s first outputs without zero points and offsets, to which random weights can
// be rounded; nullopt if it is not quantised.
std::optional<QuantisedFormat> RandomFormOf(const WeightMatrix& matrix) {
  if (matrix.quantised().empty()) return std::nullopt;
  QuantisedFormat format = matrix.quantised()[0].format();
  const bool integers = !format.e4m3() && format.table() == nullptr;
  if (integers || format.two_level()) format.scale = ScaleType::kF16;
  format.zeros = format.offsets = false;
  return format;
}

// A comparison of the GPUs with the CPU, both with the same small weights, and what it needs.
struct SmallCheck {
  int64_t step_tokens = 0;
  int64_t (*blocks)(const KvLayout& layout) = nullptr;
  absl::Status (*compare)(const CheckedRunner& gpus, const CheckedRunner& cpu) = nullptr;
};

absl::Status Compare(const Weights& weights, GpuOptions options, const SmallCheck& check) {
  options.step_tokens = static_cast<int32_t>(check.step_tokens);
  options.splits_pages = false;  // there is no pool that could say where rows are
  options.page_bytes_max = 0;    // the small model's pages may take more than the large one's
  ThreadPool threads(options.threads);
  TransformerRunner cpu(weights, {.threads = &threads}, options.step_tokens);
  const KvLayout layout = LayoutFor(cpu, options);
  const int64_t blocks = check.blocks(layout);
  options.blocks_max = blocks;
  ASSIGN_OR_RETURN(const auto host, Open(weights, options));
  if (host->pages().blocks < blocks) {
    return ResourceExhausted(
        "the check of cuda:{} at start takes {} blocks, and a gpu_memory_utilization of {:.2f} "
        "leaves room for {} on the fullest GPU; raise it, or use a larger GPU",
        options.index, blocks, options.memory_utilization, host->pages().blocks);
  }
  const Buffer memory(static_cast<size_t>(blocks) * layout.BlockStride());
  return Untrusted(check.compare({host->runner(), host->pages()},
                                 {cpu, {memory.as<std::byte>(), blocks, layout}}),
                   options.index);
}

// CheckMtp uses the pages that CheckRunner has left.
absl::Status CheckSteps(const CheckedRunner& gpus, const CheckedRunner& cpu) {
  RETURN_IF_ERROR(CheckRunner(gpus, cpu));
  return CheckMtp(gpus, cpu);
}

// Checks the GPUs with small models before the large one is uploaded.
absl::Status CheckArithmetic(const Weights& large, const GpuOptions& options) {
  const MatrixForms forms{.layers = RandomFormOf(*large.layers[0].Matrices().back()),
                          .lm_head = RandomFormOf(large.lm_head)};
  Weights weights = SmallWeightsLike(large.config, options.tensor_parallel, forms);
  if (options.format.centred) AddRandomMeans(weights);
  if (weights.mtp) MakeMtpClear(weights);
  RETURN_IF_ERROR(Compare(
      weights, options,
      {.step_tokens = RunnerCheckTokens(), .blocks = RunnerCheckBlocks, .compare = CheckSteps}));
  if (!options.blends || !CanBlend(large.config)) return absl::OkStatus();
  return Compare(
      SmallWeightsOf(SmallBlendedModelLike(large.config), forms), options,
      {.step_tokens = BlendCheckTokens(), .blocks = BlendCheckBlocks, .compare = CheckBlends});
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuHost>> OpenGpuHost(const Weights& weights,
                                                     const GpuOptions& wanted) {
  GpuOptions options = wanted;
  if (!(options.memory_utilization > 0 && options.memory_utilization <= 1)) {
    return InvalidArgument("gpu_memory_utilization is {}, it must be above 0 and at most 1",
                           options.memory_utilization);
  }
  RETURN_IF_ERROR(CheckCudaModel(weights.config, options.tensor_parallel));
  RETURN_IF_ERROR(CheckCudaSpans(options.format, weights.config));
  if (options.tensor_parallel > 1) {
    RETURN_IF_ERROR(CheckShards(weights.config, options.tensor_parallel));
  }
  RETURN_IF_ERROR(CheckNumerics(weights.config, options));
  RETURN_IF_ERROR(ChooseKernels(weights.config, options));
  const TimePoint begin = SteadyClock().Now();
  RETURN_IF_ERROR(CheckArithmetic(weights, options));
  const double check_s = ElapsedSeconds(begin);
  ASSIGN_OR_RETURN(std::unique_ptr<GpuHost> host, Open(weights, options));
  host->start.check_s = check_s;
  return host;
}

}  // namespace penstock
