// The library's prefill attention (kernels/library/prefill.h) on the host, for the emulated GPU: no
// product has it. It walks a plan's words, page ids and strides as the kernel does, and a row's
// arithmetic is, like the kernel's, an online softmax over tiles of 96 keys from the last one to
// the first. It is not the kernel's to the bit.

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "base/check.h"
#include "kernels/library/prefill.h"
#include "tests/cuda/emulator/emulated_stream.h"

namespace penstock::cuda::library {
namespace {

constexpr float kLog2E = 1.44269504f;

// An item of a plan.
struct Item {
  int32_t tile, first_row, rows, table_at, length, head;
};

Item ItemOf(const PrefillCall& call, int32_t index) {
  const auto word = [&](PrefillField field) {
    return call.plan[PrefillFieldAt(field, call.items, call.shape.processors) + index];
  };
  return {.tile = word(PrefillField::kTile),
          .first_row = word(PrefillField::kFirstRow),
          .rows = word(PrefillField::kRows),
          .table_at = word(PrefillField::kTableAt),
          .length = word(PrefillField::kLength),
          .head = word(PrefillField::kHead)};
}

// One head of one token.
class Row {
 public:
  Row(const PrefillCall& call, const Item& item, int32_t row)
      : call_(call),
        strides_(StridesOf(call.kv)),
        item_(item),
        position_(item.length - item.rows + row),
        first_(call.shape.window > 0 ? std::max(0, position_ + 1 - call.shape.window) : 0),
        query_(call.queries + (item.first_row + row) * call.query_stride + Offset()),
        output_(call.output + (item.first_row + row) * call.output_stride + Offset()),
        sums_(static_cast<size_t>(call.shape.head_dim)) {}

  void Compute() {
    for (int32_t tile = position_ / kPrefillTileKeys; tile >= first_ / kPrefillTileKeys; --tile) {
      AddTile(tile * kPrefillTileKeys);
    }
    for (size_t i = 0; i < sums_.size(); ++i) output_[i] = ToBf16(sums_[i] / total_);
  }

 private:
  int64_t Offset() const { return int64_t{item_.head} * call_.shape.head_dim; }
  // The row of a token in the plane that begins at `plane`.
  const Bf16* TokenOf(const Bf16* plane, int32_t token) const {
    const int32_t page = 1 << call_.kv.page_log2;
    const int64_t block = call_.tables[item_.table_at + token / page];
    const int32_t kv_head = item_.head / (call_.shape.heads / call_.kv.kv_heads);
    return plane + block * strides_.page + kv_head * strides_.head + token % page * strides_.token;
  }
  float ScoreOf(int32_t token) const {
    if (token < first_ || token > position_) return -std::numeric_limits<float>::infinity();
    const Bf16* key = TokenOf(strides_.keys, token);
    float score = 0;
    for (int32_t i = 0; i < call_.shape.head_dim; ++i)
      score += ToFloat(query_[i]) * ToFloat(key[i]);
    return score * call_.scale * kLog2E;
  }
  void AddTile(int32_t begin) {
    float scores[kPrefillTileKeys];
    float most = most_;
    for (int32_t i = 0; i < kPrefillTileKeys; ++i) {
      scores[i] = ScoreOf(begin + i);
      most = std::max(most, scores[i]);
    }
    const float factor = std::exp2(most_ - most);
    most_ = most;
    total_ *= factor;
    for (float& sum : sums_) sum *= factor;
    // Also of tokens that the row does not see, as the kernel does. Behind the sequence are zeros.
    for (int32_t token = begin; token < std::min(begin + kPrefillTileKeys, item_.length); ++token) {
      const float weight = std::exp2(scores[token - begin] - most);
      total_ += weight;
      const Bf16* values = TokenOf(strides_.values, token);
      const float rounded = ToFloat(ToBf16(weight));
      for (size_t i = 0; i < sums_.size(); ++i) sums_[i] += rounded * ToFloat(values[i]);
    }
  }

  const PrefillCall& call_;
  const PrefillStrides strides_;
  const Item item_;
  const int32_t position_;
  const int32_t first_;  // token that the row sees
  const Bf16* const query_;
  Bf16* const output_;
  float most_ = -std::numeric_limits<float>::infinity();
  float total_ = 0;
  std::vector<float> sums_;
};

void Run(const PrefillCall& call) {
  const int32_t tile_rows = PrefillTileRows(call.shape.head_dim);
  for (int32_t processor = 0; processor < call.shape.processors; ++processor) {
    for (int32_t i = call.plan[processor]; i < call.plan[processor + 1]; ++i) {
      const Item item = ItemOf(call, i);
      const int32_t end = std::min((item.tile + 1) * tile_rows, item.rows);
      PENSTOCK_CHECK_LE(item.first_row + end, call.rows);
      for (int32_t row = item.tile * tile_rows; row < end; ++row) Row(call, item, row).Compute();
    }
  }
}

// Emulates a broken kernel.
bool IsPrefillFaulty() { return std::getenv("PENSTOCK_EMULATED_PREFILL_FAULT") != nullptr; }

}  // namespace

bool HasPrefill() { return true; }

void LaunchPrefill(const PrefillCall& call, void* stream) {
  PENSTOCK_CHECK(SupportsPrefill(call.kv));
  if (call.items == 0) return;
  PrefillCall run = call;
  if (IsPrefillFaulty()) run.scale *= 2;
  emulator::Enqueue(stream, [run] { Run(run); });
}

}  // namespace penstock::cuda::library
