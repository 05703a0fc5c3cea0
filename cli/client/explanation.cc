#include "cli/client/explanation.h"

#include <fmt/format.h>

#include <array>
#include <string_view>
#include <tuple>
#include <utility>

namespace penstock {
namespace {

struct Term {
  std::string_view reason;  // completes "mostly because of ..."
  double (v1::ScoredPair::*ms)() const;
};

constexpr std::array<Term, 9> kTerms = {{
    {"a shorter queue", &v1::ScoredPair::queue_ms},
    {"less to compute", &v1::ScoredPair::prefill_ms},
    {"less to restore from slower tiers", &v1::ScoredPair::restore_ms},
    {"less to read from another worker's store", &v1::ScoredPair::fetch_ms},
    {"a quicker KV handoff", &v1::ScoredPair::transfer_ms},
    {"quicker decode steps", &v1::ScoredPair::decode_ms},
    {"less delay for the prompts behind it", &v1::ScoredPair::behind_ms},
    {"a better balance between workers", &v1::ScoredPair::balance_ms},
    {"less harm to the answers that are decoded there", &v1::ScoredPair::harm_ms},
}};

std::string Workers(const v1::ScoredPair& pair) {
  if (pair.prefill_worker().empty()) return fmt::format("{} alone", pair.decode_worker());
  return fmt::format("{} with {}", pair.prefill_worker(), pair.decode_worker());
}

std::string Comparison(const v1::ScoredPair& chosen, const v1::ScoredPair& next) {
  const double saved_ms = next.cost_ms() - chosen.cost_ms();
  if (next.verdict() != "higher cost" && next.verdict() != "tied") {
    return fmt::format("the next pair, {}, is out: {}", Workers(next), next.verdict());
  }
  const Term* main = nullptr;
  double main_ms = 0;
  for (const Term& term : kTerms) {
    const double less_ms = (next.*term.ms)() - (chosen.*term.ms)();
    if (less_ms > main_ms) std::tie(main, main_ms) = std::pair(&term, less_ms);
  }
  if (main == nullptr || saved_ms <= 0) return fmt::format("{} costs the same", Workers(next));
  return fmt::format("{} costs {:.1f} ms more, mostly because of {} here ({:.1f} ms)",
                     Workers(next), saved_ms, main->reason, main_ms);
}

}  // namespace

std::string ReasonOf(const v1::Explanation& explanation) {
  if (explanation.candidates().empty()) return "";
  const v1::ScoredPair& chosen = explanation.candidates(0);
  std::string text =
      fmt::format("Placed on {}, where {} of {} prompt tokens are cached", Workers(chosen),
                  chosen.cached_tokens() + chosen.fetched_tokens(), explanation.prompt_tokens());
  if (explanation.candidates_size() == 1) return text + "; it is the only choice.";
  return fmt::format("{}; {}.", text, Comparison(chosen, explanation.candidates(1)));
}

}  // namespace penstock
