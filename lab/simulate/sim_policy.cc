#include "lab/simulate/sim_policy.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "lab/simulate/sim_ids.h"

namespace penstock {
namespace {

// The least of fn(worker); equals by chance.
class Chooser {
 public:
  Chooser(uint32_t workers, uint64_t seed) : random_(seed), costs_(workers) {}

  template <class Cost>
  uint32_t Least(const Cost& cost) {
    for (uint32_t i = 0; i < costs_.size(); ++i) costs_[i] = cost(i);
    const double min = *std::min_element(costs_.begin(), costs_.end());
    equals_.clear();
    for (uint32_t i = 0; i < costs_.size(); ++i) {
      if (costs_[i] <= min + 1e-12) equals_.push_back(i);
    }
    return equals_[random_() % equals_.size()];
  }
  uint32_t Any() { return static_cast<uint32_t>(random_() % costs_.size()); }
  uint32_t workers() const { return static_cast<uint32_t>(costs_.size()); }

 private:
  std::mt19937_64 random_;
  std::vector<double> costs_;
  std::vector<uint32_t> equals_;
};

class RulePolicy final : public SimPolicy {
 public:
  using Rule = std::function<SimChoice(const SimRequest&, const SimView&, Chooser&)>;
  RulePolicy(uint32_t workers, uint64_t seed, Rule rule)
      : chooser_(workers, seed), rule_(std::move(rule)) {}
  SimChoice Choose(const SimRequest& request, const SimView& view) override {
    return rule_(request, view, chooser_);
  }

 private:
  Chooser chooser_;
  const Rule rule_;
};

using Rule = RulePolicy::Rule;

double Matched(const SimView& view, uint32_t worker) { return view.matches->of(worker).blocks; }

double MostMatched(const SimView& view) {
  double max = 0;
  for (const uint16_t worker : view.matches->workers()) {
    max = std::max(max, Matched(view, worker));
  }
  return max;
}

SimChoice ByRandom(const SimRequest&, const SimView&, Chooser& chooser) { return {chooser.Any()}; }

Rule RoundRobin() {
  return [next = 0u](const SimRequest&, const SimView&, Chooser& chooser) mutable {
    return SimChoice{next = (next + 1) % chooser.workers()};
  };
}

SimChoice PowerOfTwo(const SimRequest&, const SimView& view, Chooser& chooser) {
  const uint32_t a = chooser.Any();
  const uint32_t b = chooser.Any();
  return {view.requests[a] <= view.requests[b] ? a : b};
}

SimChoice ShortestQueue(const SimRequest&, const SimView& view, Chooser& chooser) {
  return {chooser.Least([&](uint32_t i) { return view.queue_tokens[i]; })};
}

// `least`: the share of the prompt that must match for it to count.
Rule LongestMatch(double min) {
  return [min](const SimRequest& request, const SimView& view, Chooser& chooser) {
    const bool counts = MostMatched(view) >= min * static_cast<double>(request.blocks.size());
    const double weight = counts ? 1e9 : 0;
    return SimChoice{chooser.Least(
        [&](uint32_t i) { return view.queue_tokens[i] - weight * Matched(view, i); })};
  };
}

// Dynamo's: weight x blocks to prefill + blocks to decode.
Rule Dynamo(double weight, bool decode) {
  return [=](const SimRequest& request, const SimView& view, Chooser& chooser) {
    const double tokens = view.block_tokens;
    return SimChoice{chooser.Least([&](uint32_t i) {
      const double uncached = std::max(request.prompt_tokens - Matched(view, i) * tokens, 1.0);
      const double prefill = (view.queue_tokens[i] + uncached) / tokens;
      const double blocks = view.blocks[i] + static_cast<double>(request.blocks.size());
      return weight * prefill + (decode ? blocks : 0);
    })};
  };
}

// llm-d's: 3 x prefix + 2 x queue + 2 x KV utilisation, each from 0 to 1.
SimChoice LlmD(const SimRequest& request, const SimView& view, Chooser& chooser) {
  const auto bounds = std::minmax_element(view.requests.begin(), view.requests.end());
  const double min = *bounds.first;
  const double spread = *bounds.second - min;
  const double fullest = std::max(1.0, *std::max_element(view.blocks.begin(), view.blocks.end()));
  return {chooser.Least([&](uint32_t i) {
    const double queue = spread > 0 ? 1 - (view.requests[i] - min) / spread : 1;
    const double prefix = Matched(view, i) / static_cast<double>(request.blocks.size());
    return -(3 * prefix + 2 * queue + 2 * (1 - view.blocks[i] / fullest));
  })};
}

// Consistent hashing of the first two blocks, with bounded load.
SimChoice HashBounded(const SimRequest& request, const SimView& view, Chooser& chooser) {
  const uint32_t workers = chooser.workers();
  uint64_t hash = request.blocks[std::min<size_t>(request.blocks.size(), 2) - 1];
  hash = hash * 0x9E3779B97F4A7C15 + 0x7F4A7C15;
  hash ^= hash >> 31;
  double all = 1;
  for (const double requests : view.requests) all += requests;
  const double limit = std::max(1.0, std::ceil(1.25 * all / workers));
  auto worker = static_cast<uint32_t>(hash % workers);
  for (uint32_t i = 0; i < workers && view.requests[worker] + 1 > limit; ++i) {
    worker = (worker + 1) % workers;
  }
  return {worker};
}

// SGLang's gateway: its own tree of what it has sent where, and one gate for the whole fleet.
class SgLang final : public SimPolicy {
 public:
  struct Settings {
    double absolute = 64;
    double relative = 1.5;
    double match = 0.3;
  };
  SgLang(uint32_t workers, uint64_t seed, const Settings& settings)
      : chooser_(workers, seed), settings_(settings) {}

  SimChoice Choose(const SimRequest& request, const SimView& view) override {
    const std::vector<BlockId> ids = SimBlockIds(request.blocks);
    const uint32_t worker = ChooseBy(ids, view);
    tree_.Store(worker, BlockTier::kDevice, nullptr, ids);
    return {worker};
  }

 private:
  uint32_t ChooseBy(std::span<const BlockId> ids, const SimView& view) {
    const auto [min, max] = std::minmax_element(view.requests.begin(), view.requests.end());
    if (*max - *min > settings_.absolute && *max > settings_.relative * *min) {
      return chooser_.Least([&](uint32_t i) { return view.requests[i]; });
    }
    tree_.Find(ids, matches_);
    double longest = 0;
    for (const uint16_t worker : matches_.workers()) {
      longest = std::max<double>(longest, matches_.of(worker).blocks);
    }
    if (longest > settings_.match * static_cast<double>(ids.size())) {
      return chooser_.Least([&](uint32_t i) { return -double{1} * matches_.of(i).blocks; });
    }
    return chooser_.Least([&](uint32_t i) { return static_cast<double>(tree_.blocks_of(i)); });
  }

  Chooser chooser_;
  const Settings settings_;
  PrefixIndex tree_;
  PrefixMatches matches_;
};

double OwnSeconds(const SimRequest& request, const SimView& view, double matched) {
  return view.prefill.Ms(request.prompt_tokens,
                         static_cast<uint32_t>(matched * view.block_tokens)) /
         1000;
}

Rule LeastTtft(double weight) {
  return [weight](const SimRequest& request, const SimView& view, Chooser& chooser) {
    return SimChoice{chooser.Least([&](uint32_t i) {
      return view.queue_s[i] + weight * OwnSeconds(request, view, Matched(view, i));
    })};
  };
}

// Mooncake's: as above, or with the best match that anybody has pulled over.
SimChoice LeastTtftOrPull(const SimRequest& request, const SimView& view, Chooser& chooser) {
  const double best = MostMatched(view);
  const double pulled = OwnSeconds(request, view, best);
  const auto with_pull = [&](uint32_t i) {
    return view.pull.Ms((best - Matched(view, i)) * view.block_tokens) / 1000 + pulled;
  };
  const auto here = [&](uint32_t i) { return OwnSeconds(request, view, Matched(view, i)); };
  const auto pulls = [&](uint32_t i) { return best > Matched(view, i) && with_pull(i) < here(i); };
  const uint32_t worker = chooser.Least(
      [&](uint32_t i) { return view.queue_s[i] + (pulls(i) ? with_pull(i) : here(i)); });
  return {worker, pulls(worker) ? static_cast<uint32_t>(best) : 0};
}

using Factory = std::function<std::unique_ptr<SimPolicy>(uint32_t workers, uint64_t seed)>;

Factory ByRule(const std::function<Rule()>& make) {
  return [make](uint32_t workers, uint64_t seed) {
    return std::make_unique<RulePolicy>(workers, seed, make());
  };
}

Factory SgLangWith(const SgLang::Settings& settings) {
  return [settings](uint32_t workers, uint64_t seed) {
    return std::make_unique<SgLang>(workers, seed, settings);
  };
}

const std::map<std::string, Factory>& Factories() {
  static const auto* const kFactories = new std::map<std::string, Factory>{
      {"random", ByRule([] { return Rule(ByRandom); })},
      {"round-robin", ByRule(RoundRobin)},
      {"power-of-two", ByRule([] { return Rule(PowerOfTwo); })},
      {"shortest-queue", ByRule([] { return Rule(ShortestQueue); })},
      {"longest-match", ByRule([] { return LongestMatch(0); })},
      {"longest-match-30", ByRule([] { return LongestMatch(0.3); })},
      {"hash-bounded", ByRule([] { return Rule(HashBounded); })},
      {"dynamo", ByRule([] { return Dynamo(1, true); })},
      {"dynamo-2", ByRule([] { return Dynamo(2, true); })},
      {"dynamo-8", ByRule([] { return Dynamo(8, true); })},
      {"dynamo-prefill", ByRule([] { return Dynamo(1, false); })},
      {"llm-d", ByRule([] { return Rule(LlmD); })},
      {"sglang", SgLangWith({})},
      {"sglang-tight", SgLangWith({.absolute = 4, .relative = 1.2})},
      {"least-ttft", ByRule([] { return LeastTtft(1); })},
      {"least-ttft-4", ByRule([] { return LeastTtft(4); })},
      {"least-ttft-pull", ByRule([] { return Rule(LeastTtftOrPull); })},
  };
  return *kFactories;
}

}  // namespace

std::unique_ptr<SimPolicy> MakeSimPolicy(const std::string& name, uint32_t workers, uint64_t seed) {
  const auto found = Factories().find(name);
  return found == Factories().end() ? nullptr : found->second(workers, seed);
}

std::vector<std::string> SimPolicyNames() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : Factories()) names.push_back(name);
  return names;
}

}  // namespace penstock
