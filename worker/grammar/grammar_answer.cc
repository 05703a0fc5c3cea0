#include "worker/grammar/grammar_answer.h"

#include <chrono>
#include <utility>

#include "base/mutex.h"

namespace penstock {
namespace {

// One answer's grammar. Shared by the sampler that asks and by the job that computes.
class Answer : public std::enable_shared_from_this<Answer> {
 public:
  Answer(const MaskParts& parts, std::shared_ptr<const CompiledGrammar> grammar,
         std::vector<uint32_t> stop_ids, uint32_t logits_width)
      : parts_(parts),
        grammar_(std::move(grammar)),
        stop_ids_(std::move(stop_ids)),
        bits_(TokenMask::WordsFor(logits_width)) {}

  void Begin() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    Schedule();
  }

  void Observe(uint32_t token) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    observed_.push_back(token);
    Schedule();
  }

  absl::StatusOr<std::span<const uint32_t>> Allowed() EXCLUDES(mutex_) {
    bool waits = false;
    {
      MutexLock lock(mutex_);
      if (job_ != Job::kNone) parts_.metrics.late.Increment();
      waits = job_ == Job::kQueued;
      if (waits) job_ = Job::kRunning;
    }
    if (waits) Work();  // Computing it here takes less time than waiting for the other thread.
    MutexLock lock(mutex_);
    while (job_ != Job::kNone) done_.Wait(mutex_);
    if (!status_.ok()) return status_;
    return std::span<const uint32_t>(bits_);
  }

 private:
  enum class Job { kNone, kQueued, kRunning };

  void Schedule() REQUIRES(mutex_) {
    if (job_ != Job::kNone) return;
    job_ = Job::kQueued;
    // An entry of a job that the sampler has taken does for the next.
    if (std::exchange(in_queue_, true)) return;
    parts_.threads.Add([self = shared_from_this()] {
      if (self->Take()) self->Work();
    });
  }

  // False when the sampler was first.
  bool Take() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    in_queue_ = false;
    if (job_ != Job::kQueued) return false;
    job_ = Job::kRunning;
    return true;
  }

  // Only one job of an answer runs at a time, and `bits_` is not read meanwhile.
  void Work() EXCLUDES(mutex_) {
    while (true) {
      std::vector<uint32_t> tokens;
      {
        MutexLock lock(mutex_);
        tokens = std::exchange(observed_, {});
      }
      absl::Status status = Advance(tokens);
      MutexLock lock(mutex_);
      if (status_.ok()) status_ = std::move(status);
      if (!observed_.empty() && status_.ok()) continue;
      job_ = Job::kNone;
      done_.NotifyAll();
      return;
    }
  }

  absl::Status Advance(std::span<const uint32_t> tokens) {
    if (mask_ == nullptr) {
      ASSIGN_OR_RETURN(mask_, TokenMask::Open(grammar_, stop_ids_));
    }
    const auto start = std::chrono::steady_clock::now();
    for (const uint32_t token : tokens) RETURN_IF_ERROR(mask_->Accept(token));
    if (mask_->ended()) return absl::OkStatus();
    RETURN_IF_ERROR(mask_->Fill(bits_));
    const auto took = std::chrono::steady_clock::now() - start;
    parts_.metrics.fill.Observe(std::chrono::duration<double>(took).count());
    return absl::OkStatus();
  }

  const MaskParts parts_;
  const std::shared_ptr<const CompiledGrammar> grammar_;
  const std::vector<uint32_t> stop_ids_;
  std::unique_ptr<TokenMask> mask_;  // used by the job
  std::vector<uint32_t> bits_;       // written by the job, read while there is none
  Mutex mutex_;
  CondVar done_;
  std::vector<uint32_t> observed_ GUARDED_BY(mutex_);  // since the job took them
  Job job_ GUARDED_BY(mutex_) = Job::kNone;
  bool in_queue_ GUARDED_BY(mutex_) = false;  // of the mask threads
  absl::Status status_ GUARDED_BY(mutex_);    // the first error
};

class GrammarConstraint final : public TokenConstraint {
 public:
  explicit GrammarConstraint(std::shared_ptr<Answer> answer) : answer_(std::move(answer)) {
    answer_->Begin();
  }
  void Observe(uint32_t token) override { answer_->Observe(token); }
  absl::StatusOr<std::span<const uint32_t>> Allowed() override { return answer_->Allowed(); }

 private:
  const std::shared_ptr<Answer> answer_;
};

}  // namespace

MaskMetrics::MaskMetrics(MetricsRegistry& registry)
    : fill(registry.Histogram("penstock_grammar_mask_seconds",
                              "Time to compute the tokens that a grammar allows next.",
                              StepBuckets())),
      late(registry.Counter("penstock_grammar_masks_late_total",
                            "Masks that were not ready when the logits were.")) {}

std::unique_ptr<TokenConstraint> GrammarSource::Open() const {
  return std::make_unique<GrammarConstraint>(
      std::make_shared<Answer>(parts_, grammar_, stop_ids_, logits_width_));
}

}  // namespace penstock
