#include "lab/simulate/sim_policy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <random>

#include "router/index/prefix_index.h"

namespace penstock {
namespace {

// The input of one placement, in the terms of the rules.
class SimView {
 public:
  SimView(const PlacementInput& input, std::span<const BlockId> prompt)
      : input_(input), prompt_(prompt) {}

  size_t workers() const { return input_.prefill.size(); }
  std::span<const BlockId> prompt() const { return prompt_; }
  double prompt_tokens() const { return input_.need.prompt_tokens; }
  double prompt_blocks() const { return std::max(1.0, prompt_tokens() / block_tokens()); }
  double block_tokens() const { return std::max(1u, input_.prefill[0].format.block_tokens); }
  // The state of one worker, as the router knows it. `matched`: the leading tokens of the prompt
  // that it has cached.
  double matched(size_t worker) const { return input_.prefill[worker].cached.tokens; }
  double requests(size_t worker) const { return input_.prefill[worker].requests; }
  double blocks(size_t worker) const {
    return static_cast<double>(input_.prefill[worker].blocks_taken);
  }
  double queue_ms(size_t worker) const { return input_.prefill[worker].queue_ms; }
  // Uncached tokens that wait, as far as the predicted time tells.
  double queue_tokens(size_t worker) const {
    return queue_ms(worker) / std::max(1e-6, input_.prefill[worker].prefill.ms_per_token);
  }
  double prefill_ms(size_t worker, double cached) const {
    return input_.prefill[worker].prefill.Ms(input_.need.prompt_tokens,
                                             static_cast<uint32_t>(cached));
  }
  double pull_ms(size_t worker, double tokens) const {
    const std::optional<MoveModel>& pull = input_.prefill[worker].pull;
    return pull ? pull->Ms(tokens) : 1e12;
  }
  double most_matched() const {
    double most = 0;
    for (size_t i = 0; i < workers(); ++i) most = std::max(most, matched(i));
    return most;
  }

 private:
  const PlacementInput& input_;
  const std::span<const BlockId> prompt_;
};

// The least of fn(worker); equals by chance.
class Chooser {
 public:
  explicit Chooser(uint64_t seed) : random_(seed) {}

  void Begin(size_t workers) { costs_.resize(workers); }
  template <class Cost>
  size_t Least(const Cost& cost) {
    for (size_t i = 0; i < costs_.size(); ++i) costs_[i] = cost(i);
    const double min = *std::min_element(costs_.begin(), costs_.end());
    equals_.clear();
    for (size_t i = 0; i < costs_.size(); ++i) {
      if (costs_[i] <= min + 1e-12) equals_.push_back(i);
    }
    return equals_[random_() % equals_.size()];
  }
  size_t Any() { return random_() % costs_.size(); }

 private:
  std::mt19937_64 random_;
  std::vector<double> costs_;
  std::vector<size_t> equals_;
};

class RulePolicy final : public SimPolicy {
 public:
  using Rule = std::function<size_t(const SimView&, Chooser&)>;
  RulePolicy(uint64_t seed, Rule rule, bool pulls)
      : chooser_(seed), rule_(std::move(rule)), pulls_(pulls) {}
  size_t Choose(const PlacementInput& input, std::span<const BlockId> prompt) override {
    const SimView view(input, prompt);
    chooser_.Begin(view.workers());
    return rule_(view, chooser_);
  }
  bool pulls() const override { return pulls_; }

 private:
  Chooser chooser_;
  const Rule rule_;
  const bool pulls_;
};

using Rule = RulePolicy::Rule;

size_t ByRandom(const SimView&, Chooser& chooser) { return chooser.Any(); }

Rule RoundRobin() {
  return [next = size_t{0}](const SimView& view, Chooser&) mutable {
    return next = (next + 1) % view.workers();
  };
}

size_t PowerOfTwo(const SimView& view, Chooser& chooser) {
  const size_t a = chooser.Any();
  const size_t b = chooser.Any();
  return view.requests(a) <= view.requests(b) ? a : b;
}

size_t ShortestQueue(const SimView& view, Chooser& chooser) {
  return chooser.Least([&](size_t i) { return view.queue_ms(i); });
}

// `min`: the share of the prompt that must match for it to count.
Rule LongestMatch(double min) {
  return [min](const SimView& view, Chooser& chooser) {
    const double weight = view.most_matched() >= min * view.prompt_tokens() ? 1e9 : 0;
    return chooser.Least([&](size_t i) { return view.queue_ms(i) - weight * view.matched(i); });
  };
}

// Dynamo's: weight x blocks to prefill + blocks to decode.
Rule Dynamo(double weight, bool decode) {
  return [=](const SimView& view, Chooser& chooser) {
    return chooser.Least([&](size_t i) {
      const double uncached = std::max(view.prompt_tokens() - view.matched(i), 1.0);
      const double prefill = (view.queue_tokens(i) + uncached) / view.block_tokens();
      const double blocks = view.blocks(i) + view.prompt_blocks();
      return weight * prefill + (decode ? blocks : 0);
    });
  };
}

// llm-d's: 3 x prefix + 2 x queue + 2 x KV utilisation, each from 0 to 1.
size_t LlmD(const SimView& view, Chooser& chooser) {
  double min = view.requests(0), max = view.requests(0), fullest = 1;
  for (size_t i = 0; i < view.workers(); ++i) {
    min = std::min(min, view.requests(i));
    max = std::max(max, view.requests(i));
    fullest = std::max(fullest, view.blocks(i));
  }
  return chooser.Least([&](size_t i) {
    const double queue = max > min ? 1 - (view.requests(i) - min) / (max - min) : 1;
    const double prefix = view.matched(i) / view.prompt_tokens();
    return -(3 * prefix + 2 * queue + 2 * (1 - view.blocks(i) / fullest));
  });
}

// Consistent hashing of the first two blocks, with bounded load.
size_t HashBounded(const SimView& view, Chooser& chooser) {
  const size_t workers = view.workers();
  if (view.prompt().empty()) return chooser.Any();
  uint64_t hash = 0;
  const BlockId& id = view.prompt()[std::min<size_t>(view.prompt().size(), 2) - 1];
  std::memcpy(&hash, id.bytes.data(), sizeof(hash));
  double all = 1;
  for (size_t i = 0; i < workers; ++i) all += view.requests(i);
  const double limit = std::max(1.0, std::ceil(1.25 * all / static_cast<double>(workers)));
  size_t worker = hash % workers;
  for (size_t i = 0; i < workers && view.requests(worker) + 1 > limit; ++i) {
    worker = (worker + 1) % workers;
  }
  return worker;
}

// SGLang's gateway: its own tree of what it has sent where, and one gate for the whole fleet.
class SgLang final : public SimPolicy {
 public:
  struct Settings {
    double absolute = 64;
    double relative = 1.5;
    double match = 0.3;
  };
  SgLang(uint64_t seed, const Settings& settings) : chooser_(seed), settings_(settings) {}

  size_t Choose(const PlacementInput& input, std::span<const BlockId> prompt) override {
    const SimView view(input, prompt);
    chooser_.Begin(view.workers());
    const size_t worker = ChooseBy(view);
    tree_.Store(static_cast<uint32_t>(worker), BlockTier::kDevice, nullptr, prompt);
    return worker;
  }

 private:
  size_t ChooseBy(const SimView& view) {
    double min = view.requests(0), max = view.requests(0);
    for (size_t i = 0; i < view.workers(); ++i) {
      min = std::min(min, view.requests(i));
      max = std::max(max, view.requests(i));
    }
    if (max - min > settings_.absolute && max > settings_.relative * min) {
      return chooser_.Least([&](size_t i) { return view.requests(i); });
    }
    tree_.Find(view.prompt(), matches_);
    const auto matched = [&](size_t i) {
      return double{1} * matches_.of(static_cast<uint32_t>(i)).blocks;
    };
    double longest = 0;
    for (const uint16_t worker : matches_.workers()) longest = std::max(longest, matched(worker));
    if (longest > settings_.match * view.prompt_blocks()) {
      return chooser_.Least([&](size_t i) { return -matched(i); });
    }
    return chooser_.Least(
        [&](size_t i) { return static_cast<double>(tree_.blocks_of(static_cast<uint32_t>(i))); });
  }

  Chooser chooser_;
  const Settings settings_;
  PrefixIndex tree_;
  PrefixMatches matches_;
};

Rule LeastTtft(double weight) {
  return [weight](const SimView& view, Chooser& chooser) {
    return chooser.Least(
        [&](size_t i) { return view.queue_ms(i) + weight * view.prefill_ms(i, view.matched(i)); });
  };
}

// Mooncake's: as above, or with the best match that anybody has pulled over.
size_t LeastTtftOrPull(const SimView& view, Chooser& chooser) {
  const double best = view.most_matched();
  return chooser.Least([&](size_t i) {
    const double here = view.prefill_ms(i, view.matched(i));
    const double pulled = view.pull_ms(i, best - view.matched(i)) + view.prefill_ms(i, best);
    return view.queue_ms(i) + std::min(here, pulled);
  });
}

using Factory = std::function<std::unique_ptr<SimPolicy>(uint64_t seed)>;

Factory ByRule(const std::function<Rule()>& make, bool pulls = false) {
  return [make, pulls](uint64_t seed) { return std::make_unique<RulePolicy>(seed, make(), pulls); };
}

Factory SgLangWith(const SgLang::Settings& settings) {
  return [settings](uint64_t seed) { return std::make_unique<SgLang>(seed, settings); };
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
      {"least-ttft-pull", ByRule([] { return Rule(LeastTtftOrPull); }, /*pulls=*/true)},
  };
  return *kFactories;
}

// The one with the fewest tokens of context.
size_t IdlestDecode(const PlacementInput& input) {
  const auto idlest = std::min_element(
      input.decode.begin(), input.decode.end(), [](const Candidate& a, const Candidate& b) {
        return std::pair(a.context_tokens, a.requests) < std::pair(b.context_tokens, b.requests);
      });
  return static_cast<size_t>(idlest - input.decode.begin());
}

}  // namespace

std::unique_ptr<SimPolicy> MakeSimPolicy(const std::string& name, uint64_t seed) {
  const auto found = Factories().find(name);
  return found == Factories().end() ? nullptr : found->second(seed);
}

std::vector<std::string> SimPolicyNames() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : Factories()) names.push_back(name);
  return names;
}

// Place decides between the one pair that is left, and adds what else it says about it.
absl::StatusOr<Placement> PlaceBy(SimPolicy& policy, const PlacementInput& input,
                                  std::span<const BlockId> prompt) {
  if (input.prefill.empty() || input.decode.empty()) return Place(input);
  const WorkerPair chosen{.prefill = policy.Choose(input, prompt), .decode = IdlestDecode(input)};
  PlacementInput only{.prefill = {input.prefill[chosen.prefill]},
                      .decode = {input.decode[chosen.decode]},
                      .prefill_known = input.prefill_known,
                      .decode_known = input.decode_known,
                      .need = input.need,
                      .policy = input.policy,
                      .random = input.random};
  if (policy.pulls()) only.sources = input.sources;
  only.need.may_prefill_locally = false;
  ASSIGN_OR_RETURN(Placement placement, Place(only));
  placement.workers = chosen;
  return placement;
}

}  // namespace penstock
