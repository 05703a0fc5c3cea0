#include "worker/grammar/grammar_host.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "model/tokenizer/tokenizer.h"

namespace penstock {
namespace {

// One core computes the masks of 64 sequences in 3 ms of a step.
int MaskThreads() {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()) / 8, 1, 4);
}

}  // namespace

GrammarHost::GrammarHost(Options options, MetricsRegistry& metrics)
    : options_(std::move(options)),
      compile_duration_(metrics.Histogram("penstock_grammar_compile_seconds",
                                          "Time to compile a grammar that was not in the cache.",
                                          StepBuckets())),
      mask_metrics_(metrics),
      mask_threads_({.threads = MaskThreads(), .name = "grammar-masks"}),
      compile_thread_({.threads = 1, .name = "grammar-compile", .nice = 10}) {}

GrammarHost::~GrammarHost() { Stop(); }

void GrammarHost::Stop() {
  {
    MutexLock lock(mutex_);
    stopped_ = true;
  }
  compile_thread_.Stop();
}

GrammarHost::Source GrammarHost::SourceOf(std::shared_ptr<const CompiledGrammar> grammar,
                                          std::vector<uint32_t> stop_ids) const {
  return std::make_shared<GrammarSource>(
      MaskParts{.threads = mask_threads_, .metrics = mask_metrics_}, std::move(grammar),
      std::move(stop_ids), options_.logits_width);
}

void GrammarHost::Prepare(const std::string& grammar, std::vector<uint32_t> stop_ids,
                          OnSource done) {
  absl::StatusOr<Source> result = nullptr;
  {
    MutexLock lock(mutex_);
    if (const auto found = compiled_.find(grammar); found != compiled_.end()) {
      found->second.used = ++uses_;
      result = SourceOf(found->second.grammar, std::move(stop_ids));
    } else if (stopped_) {
      result = Unavailable("the worker is shutting down");
    } else if (const auto same = waiting_.find(grammar); same != waiting_.end()) {
      return same->second.push_back({.stop_ids = std::move(stop_ids), .done = std::move(done)});
    } else if (waiting_.size() >= options_.waiting_max) {
      result = ResourceExhausted(
          "{} grammars wait to be compiled here, the limit; retry later or elsewhere",
          waiting_.size());
    } else {
      waiting_[grammar].push_back({.stop_ids = std::move(stop_ids), .done = std::move(done)});
      return compile_thread_.Add([this, grammar] { Compile(grammar); });
    }
  }
  done(std::move(result));
}

void GrammarHost::Compile(const std::string& grammar) {
  const auto compiled = CompileNow(grammar);
  std::vector<Waiting> all;
  {
    MutexLock lock(mutex_);
    all = std::move(waiting_.extract(grammar).mapped());
    if (compiled.ok()) Keep(grammar, *compiled);
  }
  for (Waiting& one : all) {
    if (compiled.ok()) {
      one.done(SourceOf(*compiled, std::move(one.stop_ids)));
    } else {
      one.done(compiled.status());
    }
  }
}

absl::StatusOr<std::shared_ptr<const CompiledGrammar>> GrammarHost::CompileNow(
    const std::string& grammar) {
  if (compiler_ == nullptr) {
    const auto tokenizer = Tokenizer::Load(options_.model);
    if (!tokenizer.ok()) {
      return FailedPrecondition("structured output needs the model's tokenizer: {}",
                                Message(tokenizer.status()));
    }
    ASSIGN_OR_RETURN(compiler_, GrammarCompiler::Create(**tokenizer, options_.logits_width));
  }
  const auto start = std::chrono::steady_clock::now();
  auto compiled = compiler_->Compile(grammar);
  const auto took = std::chrono::steady_clock::now() - start;
  compile_duration_.Observe(std::chrono::duration<double>(took).count());
  return compiled;
}

// Evicts the grammars that were not used for longest. Answers keep theirs.
void GrammarHost::Keep(const std::string& grammar,
                       std::shared_ptr<const CompiledGrammar> compiled) {
  compiled_bytes_ += grammar.size() + compiled->bytes();
  compiled_[grammar] = {.grammar = std::move(compiled), .used = ++uses_};
  while (compiled_bytes_ > options_.cache_bytes && compiled_.size() > 1) {
    const auto oldest = std::ranges::min_element(
        compiled_, {}, [](const auto& entry) { return entry.second.used; });
    compiled_bytes_ -= oldest->first.size() + oldest->second.grammar->bytes();
    compiled_.erase(oldest);
  }
}

}  // namespace penstock
