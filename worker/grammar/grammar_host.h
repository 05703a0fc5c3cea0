#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/metrics/metrics.h"
#include "base/mutex.h"
#include "worker/grammar/grammar_answer.h"

namespace penstock {

// This room (worker/grammar) keeps the grammars of one worker: it compiles them once, on a thread
// of low priority, and computes the masks of answers beside the forward pass. It knows grammars as
// text and answers as token ids. It does not know requests, engines or roles.
//
// Any thread. Engines stop before it ends.
class GrammarHost {
 public:
  struct Options {
    std::string model;          // directory or file of the checkpoint, for its tokenizer
    uint32_t logits_width = 0;  // of the model
    size_t cache_bytes = size_t{128} << 20;  // of compiled grammars
    size_t waiting_max = 64;                 // grammars that wait to be compiled
  };
  using Source = std::shared_ptr<const ConstraintSource>;
  using OnSource = std::function<void(absl::StatusOr<Source>)>;

  GrammarHost(Options options, MetricsRegistry& metrics);
  ~GrammarHost();

  // Calls `done` with the source of constraints for answers of `grammar` (model/grammar) that end
  // with one of `stop_ids`: at once when it is compiled already, else on the thread that compiles
  // it. INVALID_ARGUMENT: no answer satisfies it; RESOURCE_EXHAUSTED: too many wait;
  // FAILED_PRECONDITION: the model has no tokenizer.
  void Prepare(const std::string& grammar, std::vector<uint32_t> stop_ids, OnSource done);
  // Compiles what waits, and then nothing more: `done` of later calls gets UNAVAILABLE.
  void Stop();

 private:
  struct Waiting {
    std::vector<uint32_t> stop_ids;
    OnSource done;
  };
  struct Compiled {
    std::shared_ptr<const CompiledGrammar> grammar;
    uint64_t used = 0;  // larger: later
  };

  void Compile(const std::string& grammar);
  absl::StatusOr<std::shared_ptr<const CompiledGrammar>> CompileNow(const std::string& grammar);
  void Keep(const std::string& grammar, std::shared_ptr<const CompiledGrammar> compiled)
      REQUIRES(mutex_);
  Source SourceOf(std::shared_ptr<const CompiledGrammar> grammar,
                  std::vector<uint32_t> stop_ids) const;

  const Options options_;
  prometheus::Histogram& compile_duration_;
  mutable MaskMetrics mask_metrics_;
  std::unique_ptr<GrammarCompiler> compiler_;  // used by the thread that compiles
  Mutex mutex_;
  std::map<std::string, std::vector<Waiting>> waiting_ GUARDED_BY(mutex_);  // by grammar
  std::map<std::string, Compiled> compiled_ GUARDED_BY(mutex_);             // by grammar
  size_t compiled_bytes_ GUARDED_BY(mutex_) = 0;
  uint64_t uses_ GUARDED_BY(mutex_) = 0;
  bool stopped_ GUARDED_BY(mutex_) = false;
  mutable GrammarThreads mask_threads_;
  GrammarThreads compile_thread_;  // last: it uses the rest
};

}  // namespace penstock
