#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "kernels/eviction/kv_evictor.h"
#include "kvstore/names/kv_policy.h"
#include "model/forward/model_runner.h"
#include "model/sampler/token_mass.h"

// A model whose KV says which token it is of: whatever page is lost, torn or swapped with another
// changes the answer.

namespace penstock {

constexpr KvLayout kHashLayout{.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};
constexpr int32_t kHashVocab = 251;

// A slot of a page holds a hash of the tokens up to it, in the place of its key.
inline uint64_t& HashSlot(const PagedKv& kv, uint32_t block, int32_t slot) {
  return *reinterpret_cast<uint64_t*>(kv.Block(block) +
                                      kHashLayout.CodesAt(0, KvPlane::kKeys, slot));
}

inline uint64_t MixHash(uint64_t hash, uint32_t token) {
  hash = (hash ^ token) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

// Logits of a model that is sure of nothing, so that the beams of a search differ.
inline void FillHashLogits(uint64_t hash, float* logits) {
  for (uint32_t token = 0; token < kHashVocab; ++token) {
    logits[token] = static_cast<float>(MixHash(hash, token) >> 40) / (1 << 22);
  }
}

inline uint32_t HashToken(uint64_t hash) { return static_cast<uint32_t>(hash % kHashVocab); }
// The token behind `last`: any, or, of a model that `repeats`, mostly the next of a cycle of 20.
inline uint32_t NextHashToken(uint64_t hash, uint32_t last, bool repeats) {
  return repeats && hash % 8 != 0 ? (last + 1) % 20 : HashToken(hash);
}

inline int32_t FirstSeenSlot(int32_t position, int32_t window) {
  return window == 0 ? 0 : std::max(0, position - window + 1);
}

// Hidden states are hashes of 64 bits, in numbers of 16.
constexpr int32_t kHashHidden = 4;

inline void PutHash(uint64_t hash, std::span<float> hidden) {
  for (float& part : hidden) {
    part = static_cast<float>(hash & 0xffff);
    hash >>= 16;
  }
}
inline uint64_t TakeHash(std::span<const float> hidden) {
  uint64_t hash = 0;
  for (size_t i = hidden.size(); i-- > 0;) hash = hash << 16 | static_cast<uint64_t>(hidden[i]);
  return hash;
}

class HashRunner final : public ModelRunner, public MtpLayer {
 public:
  std::function<void()> before_step;  // on the engine thread; may be empty
  std::atomic<bool> waits = false;    // a step does not begin meanwhile
  std::function<bool()> fails;        // called before each step; may be empty
  bool draws = false;
  bool beside_caller = false;  // calls StepArgs::meanwhile
  bool repeats = false;
  bool unsure = false;  // FillHashLogits
  int32_t window = 0;   // slots that a token reads, its own included; 0: all before it
  bool evicts = false;  // takes SequenceStep::evicted; without a window
  // Has a layer for multi-token prediction, whose slots and guesses are the model's own if it gets
  // the right hidden states.
  bool has_mtp = false;
  int mtp_errs_at = 0;                 // as errs_at, of the layer's guesses
  std::function<bool()> mtp_fails;     // called before each of its steps; may be empty
  std::atomic<int32_t> most_wrong{0};  // most slots of a sequence that differed from the model's
  int errs_at = 0;          // wrong tokens behind positions that are multiples of this; 0: none
  int32_t most_tokens = 0;  // of a step so far
  const std::unique_ptr<KvEvictor> evictor = std::make_unique<CpuEvictor>(Exec());
  std::atomic<int64_t> drawn = 0, given = 0;  // tokens, and rows of logits
  std::atomic<int64_t> mtp_drawn = 0;         // tokens that the layer has drawn

  int32_t vocab() const override { return kHashVocab; }
  KvLayout kv_layout() const override {
    KvLayout layout = kHashLayout;
    layout.window = window;
    layout.layers = has_mtp ? 2 : 1;
    return layout;
  }
  int32_t max_position() const override { return 4096; }
  bool draws_tokens() const override { return draws; }
  bool runs_beside_caller() const override { return beside_caller; }
  std::optional<EvictionAttention> eviction_attention() const override {
    if (!evicts) return std::nullopt;
    return EvictionAttention{.heads = 1, .scale = 1, .cap = 0, .evictor = evictor.get()};
  }
  int32_t hidden_size() const override { return has_mtp ? kHashHidden : 0; }
  MtpLayer* mtp() override { return has_mtp ? this : nullptr; }

  absl::Status StepMtp(const StepArgs& args) override {
    if (mtp_fails && mtp_fails()) return Internal("the layer fails, as the test wants");
    int64_t row = 0;
    auto draw = args.drawn.begin();
    for (const SequenceStep& step : args.sequences) {
      uint64_t before = 0, hash = 0;
      for (size_t i = 0; i < step.tokens.size(); ++i) {
        before = TakeHash(step.before.subspan(i * kHashHidden, kHashHidden));
        hash = MixHash(before, step.tokens[i]);
        MtpSlot(args.kv, step, step.position + static_cast<int32_t>(i)) = hash;
      }
      if (!step.wants_last()) continue;
      PutHash(MixHash(before, static_cast<uint32_t>(hash)), step.hidden);
      const uint32_t next = NextHashToken(hash, step.tokens.back(), repeats);
      const int32_t last = step.position + static_cast<int32_t>(step.tokens.size()) - 1;
      const bool errs = mtp_errs_at > 0 && last % mtp_errs_at == 0;
      for (size_t i = 0; i < step.draws.size(); ++i) {
        draw++->id = errs ? (next + 1) % kHashVocab : next;
        ++mtp_drawn;
      }
      if (!step.wants_logits) continue;
      float* logits = args.logits.row(row++);
      std::fill_n(logits, kHashVocab, 0.0f);
      logits[errs ? (next + 1) % kHashVocab : next] = 10;
    }
    return absl::OkStatus();
  }

  absl::Status Step(const StepArgs& args) override {
    while (waits) std::this_thread::yield();
    if (before_step) before_step();
    if (beside_caller && args.meanwhile) args.meanwhile();
    if (fails && fails()) return Internal("the step fails, as the test wants");
    for (const SequenceStep& step : args.sequences) {
      const auto bad = [](uint32_t token) { return token >= kHashVocab; };
      if (std::any_of(step.tokens.begin(), step.tokens.end(), bad)) {
        return InvalidArgument("a token is not below {}", kHashVocab);
      }
    }
    int64_t row = 0;
    int32_t tokens = 0;
    auto draw = args.drawn.begin();
    const uint32_t* table = nullptr;
    for (const SequenceStep& step : args.sequences) {
      tokens += static_cast<int32_t>(step.tokens.size());
      uint64_t hash = 0;
      for (size_t i = 0; i < step.tokens.size(); ++i) {
        const int32_t position = step.position - step.evicted + static_cast<int32_t>(i);
        hash = MixHash(Before(args.kv, step, position), step.tokens[i]);
        HashSlot(args.kv, step.blocks[position / 16], position % 16) = hash;
        if (step.fills_mtp) FillMtpSlot(args.kv, step, position);
      }
      if (!step.hidden.empty()) {
        const auto end = step.position + static_cast<int32_t>(step.tokens.size());
        PutHash(Before(args.kv, step, end), step.hidden);
      }
      if (!step.hidden.empty() && !step.fills_mtp && step.blocks.data() != table) {
        CountWrong(args.kv, step);
      }
      table = step.blocks.data();  // the parts behind a sequence's first one are guesses
      const uint32_t next = Next(step, hash);
      for (size_t i = 0; i < step.draws.size(); ++i) {
        *draw++ = {.id = next, .max = 0, .total_mass = uint64_t{1} << kMassBits};
      }
      drawn += static_cast<int64_t>(step.draws.size());
      if (!step.wants_logits) continue;
      float* logits = args.logits.row(row++);
      if (unsure) {
        FillHashLogits(hash, logits);
        continue;
      }
      std::fill_n(logits, kHashVocab, 0.0f);
      logits[next] = 10;
    }
    given += row;
    most_tokens = std::max(most_tokens, tokens);
    return absl::OkStatus();
  }

 private:
  static uint64_t& MtpSlot(const PagedKv& kv, const SequenceStep& step, int32_t position) {
    std::byte* const layer = kv.Layer(step.blocks[position / 16], 1);
    return reinterpret_cast<uint64_t*>(layer)[position % 16];
  }

  // The first token of a part takes SequenceStep::before, of which the caller must take care.
  void FillMtpSlot(const PagedKv& kv, const SequenceStep& step, int32_t position) const {
    const size_t i = static_cast<size_t>(position - step.position);
    const uint64_t before = i == 0 ? TakeHash(step.before) : Before(kv, step, position);
    MtpSlot(kv, step, position) = MixHash(before, step.tokens[i]);
  }

  void CountWrong(const PagedKv& kv, const SequenceStep& step) {
    int32_t wrong = 0;
    for (int32_t i = 0; i < step.position; ++i) {
      const uint64_t right = HashSlot(kv, step.blocks[i / 16], i % 16);
      wrong += MtpSlot(kv, step, i) == right ? 0 : 1;
    }
    most_wrong = std::max<int32_t>(most_wrong, wrong);
  }

  uint32_t Next(const SequenceStep& step, uint64_t hash) const {
    const uint32_t next = NextHashToken(hash, step.tokens.back(), repeats);
    const int32_t last = step.position + static_cast<int32_t>(step.tokens.size()) - 1;
    return errs_at > 0 && last % errs_at == 0 ? (next + 1) % kHashVocab : next;
  }

  // The hash of every slot before the one at `position` that it sees, so that each of them must be
  // right.
  uint64_t Before(const PagedKv& kv, const SequenceStep& step, int32_t position) const {
    uint64_t all = 0;
    for (int32_t i = FirstSeenSlot(position, window); i < position; ++i) {
      all = MixHash(all, static_cast<uint32_t>(HashSlot(kv, step.blocks[i / 16], i % 16)));
    }
    return all;
  }
};

// The slots of a sequence by the same arithmetic, without pages.
class HashSlots {
 public:
  explicit HashSlots(int32_t window) : window_(window) {}
  uint64_t Add(uint32_t token) {
    uint64_t all = 0;
    const auto position = static_cast<int32_t>(slots_.size());
    for (int32_t i = FirstSeenSlot(position, window_); i < position; ++i) {
      all = MixHash(all, static_cast<uint32_t>(slots_[static_cast<size_t>(i)]));
    }
    slots_.push_back(MixHash(all, token));
    return slots_.back();
  }
  // As streaming evicts while decoding.
  void Compact(const KvEviction& eviction) {
    if (slots_.size() < eviction.limit()) return;
    slots_.erase(slots_.begin() + 4, slots_.begin() + 4 + eviction.slack_tokens);
  }

 private:
  const int32_t window_;
  std::vector<uint64_t> slots_;
};

// The logits behind `tokens`, of a runner that is unsure.
inline std::vector<float> HashLogits(const std::vector<uint32_t>& tokens, int32_t window = 0) {
  HashSlots slots(window);
  uint64_t last = 0;
  for (const uint32_t token : tokens) last = slots.Add(token);
  std::vector<float> logits(kHashVocab);
  FillHashLogits(last, logits.data());
  return logits;
}

// The first token of the answer to a prompt.
inline uint32_t FirstHashToken(const std::vector<uint32_t>& prompt, bool repeats = false,
                               int32_t window = 0) {
  HashSlots slots(window);
  uint64_t last = 0;
  for (const uint32_t token : prompt) last = slots.Add(token);
  return NextHashToken(last, prompt.back(), repeats);
}

// The answer.
inline std::vector<uint32_t> HashAnswer(const std::vector<uint32_t>& prompt, uint32_t first,
                                        int answers, bool repeats = false, int32_t window = 0,
                                        const std::optional<KvEviction>& eviction = {}) {
  HashSlots slots(window);
  for (const uint32_t token : prompt) slots.Add(token);
  std::vector<uint32_t> tokens = {first};
  while (static_cast<int>(tokens.size()) < answers) {
    if (eviction) slots.Compact(*eviction);
    tokens.push_back(NextHashToken(slots.Add(tokens.back()), tokens.back(), repeats));
  }
  return tokens;
}

}  // namespace penstock
