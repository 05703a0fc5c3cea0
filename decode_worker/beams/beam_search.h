#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/sampler/sampler.h"

namespace penstock {

// Room decode_worker/beams: beam search as transformers' generate(num_beams=k) does it. It knows
// tokens and scores; it may not know KV, blocks or batches. Pure.

// When a search has ended; the names of inference.proto.
enum class EarlyStopping : uint8_t { kUnlikely, kAtOnce, kImpossible };

struct BeamRules {
  int32_t width = 1;    // beams
  int32_t answers = 1;  // at most `width`
  double length_penalty = 1;
  EarlyStopping early_stopping = EarlyStopping::kUnlikely;
  int32_t tokens_max = 1;  // of an answer
  std::vector<uint32_t> stop_token_ids;

  // The best candidates that are needed of each beam: `width` of them go on even if every beam
  // could end with each of the stop tokens.
  int32_t candidates() const;
};

// A token of an answer.
struct BeamToken {
  uint32_t id = 0;
  float logprob = 0;  // under the model's own distribution
  std::vector<TokenLogprob> top = {};
};

// An answer that has ended.
struct BeamAnswer {
  std::vector<BeamToken> tokens;
  double score = 0;
  bool stopped = false;  // by a stop token, which is its last one
};

// A beam of the next step: it continues the beam `parent` with `token`.
struct BeamChild {
  int32_t parent = 0;
  uint32_t token = 0;
};

// One beam search. It begins with one beam that has no tokens. Each step takes the ranked next
// tokens of every beam, and gives the beams of the next step.
class BeamSearch {
 public:
  explicit BeamSearch(BeamRules rules);

  const BeamRules& rules() const { return rules_; }
  // Records the best next tokens of a beam, rules().candidates() of them where there are as many.
  void Offer(int32_t beam, RankedTokens ranked);
  // Forgets what was offered since the last step.
  void DropOffers();
  // True when every beam has offered.
  bool complete() const;
  // Takes a step. Returns the next beams, by score; none if the search has ended. INTERNAL if too
  // few tokens have a finite score.
  absl::StatusOr<std::vector<BeamChild>> Advance();

  bool ended() const { return ended_; }
  // The best answers, at most rules().answers, best first; once it has ended.
  std::vector<BeamAnswer> TakeAnswers();

 private:
  struct Beam {
    std::vector<BeamToken> tokens;
    double score = 0;  // the sum of its tokens' scores
    std::optional<RankedTokens> offer = {};
  };
  struct Candidate {
    int32_t beam = 0;
    size_t rank = 0;  // in the beam's offer
    double score = 0;
  };

  std::vector<Candidate> BestCandidates() const;
  const RankedToken& TokenOf(const Candidate& candidate) const;
  bool Stops(const Candidate& candidate) const;
  double Normalize(double score, int32_t length) const;
  void AddAnswer(const Candidate& candidate);
  void AddAnswer(std::vector<BeamToken> tokens, double score, bool stopped);
  std::vector<BeamToken> TokensWith(const Candidate& candidate) const;
  bool IsDone() const;

  const BeamRules rules_;
  std::vector<Beam> beams_;
  std::vector<BeamAnswer> done_;  // by score, at most `width`
  int32_t length_ = 0;            // tokens of each beam
  bool ended_ = false;
};

}  // namespace penstock
