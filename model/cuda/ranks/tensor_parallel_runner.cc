#include "model/cuda/ranks/tensor_parallel_runner.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "model/weights/page_layout.h"

namespace penstock {
namespace {

// The limit for the GPUs to find each other, and for a broken GPU to remain undetected.
constexpr Duration kProbe = std::chrono::seconds(60);
constexpr Duration kLook = std::chrono::milliseconds(100);

}  // namespace

// The ranks' progress in a step. Every rank makes the same reports in the same order, each when a
// layer's queries or the pages of a group of layers are complete on it.
class TensorParallelRunner::Progress {
 public:
  static constexpr int kAll = std::numeric_limits<int>::max();  // all reports

  explicit Progress(size_t ranks) : reports_(ranks) {}

  // Returns the number of the rank's reports so far.
  int Report(int rank) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    changed_.NotifyAll();
    return ++reports_[static_cast<size_t>(rank)];
  }
  void End(int rank, bool failed) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    ++ended_;
    failed_ |= failed;
    if (!failed) reports_[static_cast<size_t>(rank)] = kAll;
    changed_.NotifyAll();
  }
  enum class Seen { kPassed, kFailed, kNeither };
  // Waits until every rank has made `reports` reports or ended, or a rank has failed; returns early
  // after a while.
  Seen Await(int reports) EXCLUDES(mutex_) {
    const TimePoint deadline = std::chrono::steady_clock::now() + kLook;
    MutexLock lock(mutex_);
    while (true) {
      if (*std::ranges::min_element(reports_) >= reports) return Seen::kPassed;
      if (failed_ && ended_ == reports_.size()) return Seen::kFailed;
      const Duration left = deadline - std::chrono::steady_clock::now();
      if (left <= Duration::zero()) return Seen::kNeither;
      changed_.WaitFor(mutex_, left);
    }
  }
  // Lets the ranks go on that wait for the caller behind their first `reports` reports.
  void Release(int reports) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    released_ = reports;
    changed_.NotifyAll();
  }
  // Waits until the caller has released that report; false after a while.
  bool AwaitRelease(int report) EXCLUDES(mutex_) {
    const TimePoint deadline = std::chrono::steady_clock::now() + kLook;
    MutexLock lock(mutex_);
    while (released_ < report) {
      const Duration left = deadline - std::chrono::steady_clock::now();
      if (left <= Duration::zero()) return false;
      changed_.WaitFor(mutex_, left);
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<int> reports_ GUARDED_BY(mutex_);  // of each rank
  int released_ GUARDED_BY(mutex_) = 0;
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
  if (!opened.ok()) {
    links.Abort();  // before the ranks' memory is freed
    return opened;
  }
  if (runner->ranks_.front().runner->evictor() != nullptr) {
    const int64_t width = int64_t{weights.config.heads} * weights.config.head_dim;
    runner->queries_ = std::make_unique<JoinedQueries>(links.ranks(), options.max_step_tokens,
                                                       width / links.ranks());
  }
  return runner;
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

KvLayout TensorParallelRunner::kv_layout() const { return PageLayoutOf(config_); }

absl::Status TensorParallelRunner::SetPages(const cuda::ShardedPages& pages) {
  pages_ = &pages;
  std::vector<ShardedEvictor::Rank> evictors;
  for (int rank = 0; queries_ != nullptr && rank < links_.ranks(); ++rank) {
    evictors.push_back({.evictor = ranks_[static_cast<size_t>(rank)].runner->evictor(),
                        .kv = pages.view_of(rank)});
  }
  if (!evictors.empty()) evictor_ = std::make_unique<ShardedEvictor>(std::move(evictors));
  return threads_.Run([&](int rank) {
    return ranks_[static_cast<size_t>(rank)].runner->KeepBounds(pages.view_of(rank));
  });
}

std::optional<EvictionAttention> TensorParallelRunner::eviction_attention() const {
  if (evictor_ == nullptr) return std::nullopt;
  std::optional<EvictionAttention> attention = ranks_.front().runner->eviction_attention();
  attention->heads = config_.heads;
  attention->evictor = evictor_.get();
  return attention;
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
  threads_.Start([&](int rank) { return StepOf(rank, &CudaRunner::Step, args, progress); });
  if (args.meanwhile) args.meanwhile();
  if (!args.sequences.empty()) Report(args, progress);
  Await(Progress::kAll, progress);
  return threads_.Join();
}

absl::Status TensorParallelRunner::StepMtp(const StepArgs& args) {
  PENSTOCK_CHECK(pages_ != nullptr && args.kv.arena == pages_->view().arena);
  Progress progress(ranks_.size());
  threads_.Start([&](int rank) { return StepOf(rank, &CudaRunner::StepMtp, args, progress); });
  Await(Progress::kAll, progress);
  return threads_.Join();
}

// Waits until all ranks have made `reports` reports, and checks the links meanwhile. False: the
// step has failed.
bool TensorParallelRunner::Await(int reports, Progress& progress) const {
  Progress::Seen seen = Progress::Seen::kNeither;
  while ((seen = progress.Await(reports)) == Progress::Seen::kNeither) CheckLinks();
  return seen == Progress::Seen::kPassed;
}

// Tells the caller of Step what all ranks have reported. Every rank has enqueued the rest of a
// layer before it reports the layer's queries. So each exchange that a GPU waits for is enqueued on
// all GPUs, and work for an eviction, which may be queued behind the exchange, comes to its end.
void TensorParallelRunner::Report(const StepArgs& args, Progress& progress) {
  const int32_t layers = config_.KvLayers(), copies = args.kv.layout.Copies();
  const int32_t group = args.layers_per_group > 0 ? args.layers_per_group : layers;
  int64_t rows = 0;
  for (const SequenceStep& sequence : args.sequences) rows += std::ssize(sequence.tokens);
  int reports = 0;
  for (int32_t layer = 0; layer < layers; ++layer) {
    if (args.on_queries && layer < config_.layers) {
      if (!Await(++reports, progress)) return;
      args.on_queries(layer, queries_->first(rows));
      progress.Release(reports);
    }
    const int32_t end = layer + 1;
    if (!args.on_layers_done || (end % group != 0 && end != layers)) continue;
    if (!Await(++reports, progress)) return;
    args.on_layers_done(copies * (layer / group * group), copies * end);
  }
}

absl::Status TensorParallelRunner::StepOf(int rank, StepCall call, const StepArgs& args,
                                          Progress& progress) {
  Rank& own = ranks_[static_cast<size_t>(rank)];
  StepArgs part = args;
  part.kv = pages_->view_of(rank);
  part.kv.serials = args.kv.serials;
  part.meanwhile = nullptr;  // the caller's thread calls it
  if (args.on_layers_done) {
    part.on_layers_done = [&](int32_t, int32_t) { progress.Report(rank); };
  }
  if (args.on_queries) {
    part.on_queries = [&](int32_t, View<const float, 2> queries) {
      GiveQueries(rank, args, queries, progress);
    };
  }
  absl::Status status = (own.runner.get()->*call)(part);
  if (own.exchange->TakeAgreed()) PENSTOCK_CHECK_EQ(Message(status), "");
  progress.End(rank, !status.ok());
  return status;
}

// Returns when the caller of Step has worked with the layer's queries of all ranks. It may be
// waiting for a GPU then, so that this thread checks the rank's link.
void TensorParallelRunner::GiveQueries(int rank, const StepArgs& args, View<const float, 2> queries,
                                       Progress& progress) {
  const RowRange all{.first = 0, .count = queries.dim(0)};
  for (const RowRange& rows : args.observed.empty() ? std::span(&all, 1) : args.observed) {
    queries_->Put(rank, queries, rows.first, rows.count);
  }
  const int report = progress.Report(rank);
  while (!progress.AwaitRelease(report)) PENSTOCK_CHECK_EQ(Message(links_.Look(rank)), "");
}

}  // namespace penstock
