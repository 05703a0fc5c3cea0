#include "model/cuda/tensor_parallel_runner.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace penstock {
namespace {

// The limit for the GPUs to find each other, and for a broken GPU to remain undetected.
constexpr Duration kProbe = std::chrono::seconds(60);
constexpr Duration kLook = std::chrono::milliseconds(100);

}  // namespace

// The ranks' progress in a step.
class TensorParallelRunner::Progress {
 public:
  static constexpr int kAll = std::numeric_limits<int>::max();  // all groups

  explicit Progress(size_t ranks) : groups_(ranks) {}

  void PassGroup(int rank) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++groups_[static_cast<size_t>(rank)];
    changed_.NotifyAll();
  }
  void End(int rank, bool failed) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++ended_;
    failed_ |= failed;
    if (!failed) groups_[static_cast<size_t>(rank)] = kAll;
    changed_.NotifyAll();
  }
  enum class Seen { kPassed, kFailed, kNeither };
  // Waits until every rank has completed `groups` groups of layers or ended, or a rank has failed;
  // returns early after a while.
  Seen Await(int groups) EXCLUDES(mutex_) {
    const TimePoint deadline = std::chrono::steady_clock::now() + kLook;
    MutexLock lock(mutex_);
    while (true) {
      if (*std::ranges::min_element(groups_) >= groups) return Seen::kPassed;
      if (failed_ && ended_ == groups_.size()) return Seen::kFailed;
      const Duration left = deadline - std::chrono::steady_clock::now();
      if (left <= Duration::zero()) return Seen::kNeither;
      changed_.WaitFor(mutex_, left);
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<int> groups_ GUARDED_BY(mutex_);  // completed groups of each rank
  size_t ended_ GUARDED_BY(mutex_) = 0;
  bool failed_ GUARDED_BY(mutex_) = false;
};

TensorParallelRunner::TensorParallelRunner(const ModelConfig& config, RankLinks& links)
    : config_(config),
      links_(links),
      barrier_(links.ranks()),
      ranks_(static_cast<size_t>(links.ranks())),
      threads_(links.ranks()) {}

absl::StatusOr<std::unique_ptr<TensorParallelRunner>> TensorParallelRunner::Create(
    const Weights& weights, const std::vector<cuda::CudaDevice*>& devices, RankLinks& links,
    const CudaRunner::Options& options) {
  PENSTOCK_CHECK_EQ(devices.size(), static_cast<size_t>(links.ranks()));
  RETURN_IF_ERROR(CheckShards(weights.config, links.ranks()));
  std::unique_ptr<TensorParallelRunner> runner(new TensorParallelRunner(weights.config, links));
  const absl::Status opened = runner->threads_.Run([&](int rank) {
    return runner->Open(rank, weights, *devices[static_cast<size_t>(rank)], options);
  });
  if (opened.ok()) return runner;
  links.Abort();  // before the ranks' memory is freed
  return opened;
}

absl::Status TensorParallelRunner::Open(int rank, const Weights& weights, cuda::CudaDevice& device,
                                        const CudaRunner::Options& options) {
  device.Select();
  RETURN_IF_ERROR(links_.Open(rank));
  Rank& opened = ranks_[static_cast<size_t>(rank)];
  ASSIGN_OR_RETURN(opened.exchange,
                   RankExchange::Create({.rank = rank, .links = links_, .barrier = barrier_},
                                        static_cast<size_t>(options.max_step_tokens),
                                        static_cast<size_t>(config_.hidden)));
  RETURN_IF_ERROR(opened.exchange->Probe(device, kProbe));
  CudaRunner::Options own = options;
  own.shard = {.rank = rank, .ranks = links_.ranks()};
  own.exchange = opened.exchange.get();
  own.load_threads = std::max(1, options.load_threads / links_.ranks());
  ASSIGN_OR_RETURN(opened.runner, CudaRunner::Create(weights, device, own));
  return absl::OkStatus();
}

KvLayout TensorParallelRunner::kv_layout() const {
  return {.layers = config_.layers,
          .kv_heads = config_.kv_heads,
          .head_dim = config_.head_dim,
          .window = config_.WindowOfAllLayers(),
          .group = WindowGroupOf(config_.sliding_window)};
}

absl::Status TensorParallelRunner::SetPages(const cuda::ShardedPages& pages) {
  pages_ = &pages;
  return threads_.Run([&](int rank) {
    return ranks_[static_cast<size_t>(rank)].runner->KeepBounds(pages.view_of(rank));
  });
}

size_t TensorParallelRunner::weight_bytes() const {
  size_t bytes = 0;
  for (const Rank& rank : ranks_) bytes += rank.runner->weight_bytes();
  return bytes;
}

void TensorParallelRunner::CheckLinks() const {
  for (int rank = 0; rank < links_.ranks(); ++rank) {
    PENSTOCK_CHECK_EQ(Message(links_.Look(rank)), "");
  }
}

absl::Status TensorParallelRunner::Step(const StepArgs& args) {
  PENSTOCK_CHECK(pages_ != nullptr && args.kv.arena == pages_->view().arena);
  Progress progress(ranks_.size());
  threads_.Start([&](int rank) { return StepOf(rank, args, progress); });
  if (args.meanwhile) args.meanwhile();
  // Waits until all ranks have completed `groups` groups, and checks the links meanwhile.
  const auto await = [&](int groups) {
    Progress::Seen seen = Progress::Seen::kNeither;
    while ((seen = progress.Await(groups)) == Progress::Seen::kNeither) CheckLinks();
    return seen == Progress::Seen::kPassed;
  };
  if (args.on_layers_done && !args.sequences.empty()) {
    const int32_t group = args.layers_per_group > 0 ? args.layers_per_group : config_.layers;
    int passed = 0;
    for (int32_t first = 0; first < config_.layers; first += group) {
      if (!await(++passed)) break;
      args.on_layers_done(first, std::min(first + group, config_.layers));
    }
  }
  await(Progress::kAll);
  return threads_.Join();
}

absl::Status TensorParallelRunner::StepOf(int rank, const StepArgs& args, Progress& progress) {
  Rank& own = ranks_[static_cast<size_t>(rank)];
  StepArgs part = args;
  part.kv = pages_->view_of(rank);
  part.kv.serials = args.kv.serials;
  part.meanwhile = nullptr;  // the caller's thread calls it
  if (args.on_layers_done) {
    part.on_layers_done = [&](int32_t, int32_t) { progress.PassGroup(rank); };
  }
  absl::Status status = own.runner->Step(part);
  if (own.exchange->TakeAgreed()) PENSTOCK_CHECK_EQ(Message(status), "");
  progress.End(rank, !status.ok());
  return status;
}

}  // namespace penstock
