#pragma once

#include <memory>
#include <vector>

#include "base/metrics/metrics.h"
#include "model/grammar/grammar.h"
#include "model/sampler/token_constraint.h"
#include "worker/grammar/grammar_threads.h"

namespace penstock {

// Metrics of the masks of a worker's answers.
struct MaskMetrics {
  explicit MaskMetrics(MetricsRegistry& registry);

  prometheus::Histogram& fill;  // seconds
  prometheus::Counter& late;    // masks that were not ready when the sampler asked
};

// The parts that the answers of a worker share. All outlive them.
struct MaskParts {
  GrammarThreads& threads;
  MaskMetrics& metrics;
};

// Constrains answers to a compiled grammar. The mask of the next token is computed on another
// thread as soon as the token before it is known, so that it is ready when the forward pass ends. A
// part of an answer that was sampled elsewhere is observed in the same way.
class GrammarSource final : public ConstraintSource {
 public:
  GrammarSource(const MaskParts& parts, std::shared_ptr<const CompiledGrammar> grammar,
                std::vector<uint32_t> stop_ids, uint32_t logits_width)
      : parts_(parts),
        grammar_(std::move(grammar)),
        stop_ids_(std::move(stop_ids)),
        logits_width_(logits_width) {}

  std::unique_ptr<TokenConstraint> Open() const override;

 private:
  const MaskParts parts_;
  const std::shared_ptr<const CompiledGrammar> grammar_;
  const std::vector<uint32_t> stop_ids_;
  const uint32_t logits_width_;
};

}  // namespace penstock
