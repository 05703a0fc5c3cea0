#include "tests/world/model.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>

#include "base/check.h"
#include "lab/world/machine/network.h"
#include "model/forward/model_runner.h"

namespace penstock::world {
namespace {

constexpr Duration kStepTime = std::chrono::microseconds(1500);
constexpr Duration kSlowWriteMax = std::chrono::milliseconds(60);
constexpr Duration kTokenTime = std::chrono::microseconds(20);
// Logits that stand out, so that greedy and random sampling both have something to choose from.
constexpr int kLikely = 8;

uint64_t Mix(uint64_t x) {  // the finisher of SplitMix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Four bf16 numbers that are smaller than 2, as lossy codecs take them: exponents are below 128.
uint64_t Small(uint64_t x) { return x & 0xbfffbfffbfffbfffu; }

// Reads and writes the pages of one sequence.
class Pages {
 public:
  Pages(const PagedKv& kv, std::span<const uint32_t> blocks) : kv_(kv), blocks_(blocks) {}

  TokenKv Read(int32_t position) const {
    TokenKv kv;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      kv.keys[layer] = Fold(Row(position, layer, KvPlane::kKeys));
      kv.values[layer] = Fold(Row(position, layer, KvPlane::kValues));
    }
    return kv;
  }
  void Write(int32_t position, int32_t layer, const TokenKv& kv) const {
    Fill(Row(position, layer, KvPlane::kKeys), kv.keys[layer]);
    Fill(Row(position, layer, KvPlane::kValues), kv.values[layer]);
  }

 private:
  // A row of one token, layer and plane is its number and then zeros.
  static constexpr size_t kRowBytes = sizeof(uint16_t) * kHeadDim;
  static void Fill(std::byte* row, uint64_t number) {
    std::memset(row, 0, kRowBytes);
    std::memcpy(row, &number, sizeof number);
  }
  // The number of a row. Any other byte that is not zero changes it.
  static uint64_t Fold(const std::byte* row) {
    uint64_t words[kRowBytes / sizeof(uint64_t)];
    std::memcpy(words, row, kRowBytes);
    uint64_t number = words[0];
    for (size_t i = 1; i < std::size(words); ++i) number ^= words[i] * (2 * i + 1);
    return number;
  }

  std::byte* Row(int32_t position, int32_t layer, KvPlane plane) const {
    const uint32_t block = blocks_[static_cast<size_t>(position / kBlockTokens)];
    return kv_.Layer(block, layer) + kv_.layout.CodesAt(0, plane, position % kBlockTokens);
  }

  const PagedKv kv_;
  const std::span<const uint32_t> blocks_;
};

class HashRunner final : public ModelRunner {
 public:
  explicit HashRunner(uint64_t model) : model_(model) {}

  int32_t vocab() const override { return kVocab; }
  KvLayout kv_layout() const override {
    return {.layers = kLayers, .kv_heads = 1, .head_dim = kHeadDim, .block_tokens = kBlockTokens};
  }
  int32_t max_position() const override { return kMaxPosition; }

  absl::Status Step(const StepArgs& args) override {
    const std::vector<std::vector<TokenKv>> computed = Compute(args);
    const int32_t group = args.layers_per_group > 0 ? args.layers_per_group : kLayers;
    for (int32_t first = 0; first < kLayers; first += group) {
      const int32_t last = std::min(first + group, kLayers);
      TakeTime(args, last - first);
      Store(args, computed, first, last);
      if (args.on_layers_done) args.on_layers_done(first, last);
    }
    int64_t row = 0;
    for (const SequenceStep& step : args.sequences) {
      if (!step.wants_logits) continue;
      FillLogits(DigestOf(step, args.kv), {args.logits.row(row++), kVocab});
    }
    return absl::OkStatus();
  }

 private:
  std::vector<std::vector<TokenKv>> Compute(const StepArgs& args) const {
    std::vector<std::vector<TokenKv>> computed;
    const SequenceStep* last = nullptr;
    for (const SequenceStep& step : args.sequences) {
      TokenKv before;
      if (last != nullptr && Continues(step, *last)) {
        before = computed.back().back();
      } else if (step.position > 0) {
        before = Pages(args.kv, step.blocks).Read(step.position - 1);
      }
      last = &step;
      std::vector<TokenKv>& tokens = computed.emplace_back();
      for (size_t i = 0; i < step.tokens.size(); ++i) {
        const int32_t position = step.position + static_cast<int32_t>(i);
        tokens.push_back(before = KvOf(model_, step.tokens[i], position, before));
      }
    }
    return computed;
  }

  // Returns true if `step` is the part of the same sequence directly behind `before`.
  static bool Continues(const SequenceStep& step, const SequenceStep& before) {
    return step.blocks.data() == before.blocks.data() &&
           step.position == before.position + static_cast<int32_t>(before.tokens.size());
  }

  static void Store(const StepArgs& args, const std::vector<std::vector<TokenKv>>& computed,
                    int32_t first, int32_t last) {
    for (size_t s = 0; s < computed.size(); ++s) {
      const SequenceStep& step = args.sequences[s];
      const Pages pages(args.kv, step.blocks);
      for (size_t i = 0; i < computed[s].size(); ++i) {
        for (int32_t layer = first; layer < last; ++layer) {
          pages.Write(step.position + static_cast<int32_t>(i), layer, computed[s][i]);
        }
      }
    }
  }

  static uint64_t DigestOf(const SequenceStep& step, const PagedKv& kv) {
    const Pages pages(kv, step.blocks);
    const int32_t end = step.position + static_cast<int32_t>(step.tokens.size());
    uint64_t digest = 0;
    for (int32_t position = 0; position < end; ++position) {
      digest = Digest(digest, pages.Read(position));
    }
    return digest;
  }

  // The engine's thread computes for this time, and others run.
  static void TakeTime(const StepArgs& args, int32_t layers) {
    Scheduler& scheduler = *Scheduler::current();
    int64_t tokens = 0;
    for (const SequenceStep& step : args.sequences) {
      tokens += static_cast<int64_t>(step.tokens.size());
    }
    const double share = static_cast<double>(layers) / kLayers * scheduler.process()->slowness;
    const Duration whole = kStepTime + tokens * kTokenTime;
    scheduler.Sleep(std::chrono::duration_cast<Duration>(whole * share));
  }

  const uint64_t model_;
};

class SlowPages final : public PageCopier {
 public:
  SlowPages(std::byte* arena, const KvLayout& layout) : kv_{.arena = arena, .layout = layout} {}

  void Read(std::span<const uint32_t> pages, size_t offset, size_t bytes,
            std::byte* host) override {
    ReadPages(kv_, pages, offset, bytes, host);
  }
  // Half of them at once.
  void Write(std::span<const uint32_t> pages, size_t offset, size_t bytes,
             const std::byte* host) override {
    Network& network = Network::current();
    if (network.random().Chance(500)) {
      network.scheduler().Sleep(network.random().Between(Duration::zero(), kSlowWriteMax));
    }
    WritePages(kv_, pages, offset, bytes, host);
  }

 private:
  const PagedKv kv_;  // without a copier
};

}  // namespace

TokenKv KvOf(uint64_t model, uint32_t token, int32_t position, const TokenKv& before) {
  TokenKv kv;
  uint64_t below = Mix(model + token + 1);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    kv.keys[layer] = Small(Mix(below ^ Mix(before.keys[layer] + static_cast<uint64_t>(position))));
    kv.values[layer] =
        Small(Mix(kv.keys[layer] + before.values[layer] + static_cast<uint64_t>(layer)));
    below = kv.values[layer];
  }
  return kv;
}

uint64_t Digest(uint64_t digest, const TokenKv& kv) {
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    digest = (digest ^ kv.keys[layer]) * 0x9e3779b97f4a7c15u;
    digest = (digest ^ (digest >> 29) ^ kv.values[layer]) * 0xbf58476d1ce4e5b9u;
  }
  return digest;
}

void FillLogits(uint64_t digest, std::span<float> logits) {
  std::fill(logits.begin(), logits.end(), -200.0f);
  uint64_t random = digest;
  for (int i = 0; i < kLikely; ++i) {
    random = Mix(random + 0x9e3779b97f4a7c15u);
    const uint64_t letter = 'a' + (random >> 8) % 26;
    const uint64_t token = random % 128 == 0 ? kEndToken : letter;
    logits[token] = static_cast<float>(random >> 40) * 0x1p-24f * 4.0f;
  }
}

uint64_t ModelNumber(const std::string& name) { return Mix(std::hash<std::string>()(name)); }

SimModel OpenHashModel(const std::string& name) {
  const uint64_t number = ModelNumber(name);
  return {.runner = new HashRunner(number), .fingerprint = number};
}

SimModel OpenSlowModel(const std::string& name) {
  SimModel model = OpenHashModel(name);
  model.make_copier = [](std::byte* arena, const KvLayout& layout) -> PageCopier* {
    return new SlowPages(arena, layout);
  };
  return model;
}

}  // namespace penstock::world
