#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "kernels/attention.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kv_rows.h"

// Flash attention over pages. A task is one kv head of one sequence for a range of its positions;
// its rows are (position, query head of the group), cut into blocks of kTileRows. For each tile of
// keys and values, packed once into the panels of a product, every block computes scores, updates
// its running softmax and adds to its output. All arithmetic is SimdOps' products of tiles.

namespace penstock {
namespace {

constexpr int64_t kMaxBlocks = 16;
constexpr int64_t kScorePanels = kKvTile / kTileColumns;
constexpr int64_t kTileFloats = kTileRows * kTileColumns;

int64_t Panels(int64_t columns) { return (columns + kTileColumns - 1) / kTileColumns; }

// One thread's memory, carved into its pieces. Sizes are multiples of 64 bytes.
struct Workspace {
  Workspace(std::byte* memory, int64_t head_dim) {
    auto next = reinterpret_cast<uintptr_t>(memory);
    const auto take = [&next](int64_t size) {
      return reinterpret_cast<std::byte*>(std::exchange(next, next + static_cast<uintptr_t>(size)));
    };
    const int64_t padded = Panels(head_dim) * kTileColumns;
    keys = reinterpret_cast<Bf16*>(take(kKvTile * padded * 2));
    values = reinterpret_cast<Bf16*>(take(kKvTile * padded * 2));
    key_rows = reinterpret_cast<Bf16*>(take(kKvTile * padded * 2));
    value_rows = reinterpret_cast<Bf16*>(take(kKvTile * padded * 2));
    zeros = reinterpret_cast<const Bf16*>(take(padded * 2));
    queries = take(kMaxBlocks * kTileRows * padded * 4);
    output = reinterpret_cast<float*>(take(kMaxBlocks * kTileRows * padded * 4));
    scores = reinterpret_cast<float*>(take(kScorePanels * kTileFloats * 4));
    weights = take(kTileRows * kKvTile * 4);
    max = reinterpret_cast<float*>(take(kMaxBlocks * kTileRows * 4));
    sum = reinterpret_cast<float*>(take(kMaxBlocks * kTileRows * 4));
    positions = reinterpret_cast<int64_t*>(take(kMaxBlocks * kTileRows * 8));
    bytes = next - reinterpret_cast<uintptr_t>(memory);
  }

  Bf16* keys;      // panels [2][head_dim / 2][32][2]
  Bf16* values;    // panels [head_dim / 32][32][32][2]
  Bf16* key_rows;  // of quantised pages, decoded [64][head_dim]
  Bf16* value_rows;
  const Bf16* zeros;   // never written: a row for positions that do not exist
  std::byte* queries;  // activations, per block [head_dim / 2][rows][2]
  float* output;       // per block [head_dim / 32][rows][32], not yet divided by sum
  float* scores;       // of one block [2][rows][32]
  std::byte* weights;  // activations of one block [rows][64]
  float* max;          // per row
  float* sum;
  int64_t* positions;
  size_t bytes;
};

// Tokens of a tile that lie side by side in one page.
struct KvRun {
  uint32_t page;
  int64_t slot;
  int64_t token;  // of the tile
  int64_t count;
};

// Rows of a task: positions [position, position + positions) times the heads of one kv head.
class Task {
 public:
  Task(const AttentionArgs& args, const AttentionSequence& sequence, int32_t kv_head, int64_t first,
       int64_t last, const Workspace& work)
      : args_(args),
        sequence_(sequence),
        kv_head_(kv_head),
        first_(first),
        group_(args.heads / args.kv.layout.kv_heads),
        rows_((last - first) * group_),
        blocks_((rows_ + kTileRows - 1) / kTileRows),
        head_dim_(args.kv.layout.head_dim),
        work_(work),
        simd_(ActiveSimd()) {
    for (int64_t row = 0; row < rows_; ++row) {
      work_.positions[row] = sequence.position + first + row / group_;
    }
  }

  void Run() {
    LoadQueries();
    const int64_t last_tile = Position(rows_ - 1) / kKvTile;
    Find(Least(Position(0)) / kKvTile);
    for (int64_t tile = Least(Position(0)) / kKvTile; tile <= last_tile; ++tile) {
      Decode();
      simd_.pack_keys(next_.keys, head_dim_, work_.keys);
      simd_.pack_values(next_.values, head_dim_, work_.values);
      Find(tile + 1);
      for (int64_t block = 0; block < blocks_; ++block) AddTile(tile, block);
    }
    StoreOutput();
  }

 private:
  int64_t FirstRow(int64_t block) const { return rows_ * block / blocks_; }
  int Rows(int64_t block) const { return static_cast<int>(FirstRow(block + 1) - FirstRow(block)); }
  int64_t Position(int64_t row) const { return work_.positions[row]; }
  // The first position that a query at `position` attends to.
  int64_t Least(int64_t position) const {
    return args_.window == 0 ? 0 : std::max<int64_t>(0, position - args_.window + 1);
  }
  std::byte* Queries(int64_t block) const {
    return work_.queries + FirstRow(block) * head_dim_ * simd_.activation_bytes;
  }
  float* Output(int64_t block) const {
    return work_.output + FirstRow(block) * Panels(head_dim_) * kTileColumns;
  }
  // Where a row's queries are, in elements from the batch's first.
  int64_t Row(int64_t row) const { return sequence_.first_row + first_ + row / group_; }
  int64_t Column(int64_t row) const { return (kv_head_ * group_ + row % group_) * head_dim_; }

  void LoadQueries();
  void Find(int64_t tile);
  void AddRun(const KvRun& run);
  void Decode();
  void Prefetch(int64_t points);
  void AddTile(int64_t tile, int64_t block);
  void Scores(int64_t block, int rows);
  void Softmax(int64_t tile, int64_t block, int rows);
  void StoreOutput();

  const AttentionArgs& args_;
  const AttentionSequence& sequence_;
  const int64_t kv_head_;
  const int64_t first_;  // position of the first row, from sequence_.position
  const int64_t group_;  // query heads of a kv head
  const int64_t rows_;
  const int64_t blocks_;
  const int64_t head_dim_;
  const Workspace& work_;
  const SimdOps& simd_;
  struct {
    const Bf16* keys[kKvTile];  // of each token; of a quantised page where Decode will put it
    const Bf16* values[kKvTile];
    const std::byte* codes[kKvTile][2];  // in the page, null where there is none
    KvRun runs[kKvTile];
    int64_t run_count;
    int64_t prefetched;  // tokens that are in cache or on their way
  } next_;
};

void Task::LoadQueries() {
  // Queries lie one row of the batch apart, heads of a group beside each other: gathered into the
  // output's memory, which is free until the first tile.
  for (int64_t block = 0; block < blocks_; ++block) {
    float* gathered = Output(block);
    for (int r = 0; r < Rows(block); ++r) {
      const int64_t row = FirstRow(block) + r;
      std::copy_n(args_.queries.row(Row(row)) + Column(row), head_dim_, gathered + r * head_dim_);
    }
    if (KeysAreRotated(args_.kv.layout)) {
      cpu::RotateRows(gathered, Rows(block), static_cast<int32_t>(head_dim_));
    }
    simd_.pack_rows(gathered, head_dim_, Rows(block), 0, head_dim_, Queries(block));
  }
  std::fill_n(work_.output, rows_ * Panels(head_dim_) * kTileColumns, 0.0f);
  std::fill_n(work_.max, rows_, -std::numeric_limits<float>::infinity());
  std::fill_n(work_.sum, rows_, 0.0f);
}

// Where the keys and values of a tile are, as far as this task attends to them. Other positions may
// have no page, or one with anything in it: they are zeros.
void Task::Find(int64_t tile) {
  std::fill_n(next_.keys, kKvTile, work_.zeros);
  std::fill_n(next_.values, kKvTile, work_.zeros);
  std::fill_n(&next_.codes[0][0], 2 * kKvTile, nullptr);
  next_.run_count = 0;
  next_.prefetched = 0;
  const int64_t begin = std::max(Least(Position(0)), tile * kKvTile);
  const int64_t end = std::min(Position(rows_ - 1) + 1, (tile + 1) * kKvTile);
  const int64_t page_tokens = args_.kv.layout.block_tokens;
  for (int64_t position = begin; position < end;) {
    const int64_t slot = position % page_tokens;
    const int64_t count = std::min(end - position, page_tokens - slot);
    AddRun({.page = sequence_.blocks[position / page_tokens],
            .slot = slot,
            .token = position - tile * kKvTile,
            .count = count});
    position += count;
  }
}

void Task::AddRun(const KvRun& run) {
  next_.runs[next_.run_count++] = run;
  const KvLayout& layout = args_.kv.layout;
  const auto head = static_cast<int32_t>(kv_head_);
  const std::byte* page = args_.kv.Layer(run.page, args_.layer);
  for (int64_t i = 0; i < run.count; ++i) {
    const int64_t token = run.token + i;
    const std::byte* key = page + layout.CodesAt(head, KvPlane::kKeys, run.slot + i);
    const std::byte* value = page + layout.CodesAt(head, KvPlane::kValues, run.slot + i);
    next_.codes[token][0] = key;
    next_.codes[token][1] = value;
    const bool plain = layout.dtype == KvDtype::kBf16;
    next_.keys[token] =
        plain ? reinterpret_cast<const Bf16*>(key) : work_.key_rows + token * head_dim_;
    next_.values[token] =
        plain ? reinterpret_cast<const Bf16*>(value) : work_.value_rows + token * head_dim_;
  }
  if (layout.ScaleBytes() > 0) {
    __builtin_prefetch(page + layout.ScalesAt(head, KvPlane::kKeys, run.slot), 0, 2);
    __builtin_prefetch(page + layout.ScalesAt(head, KvPlane::kValues, run.slot), 0, 2);
  }
}

// The tile's rows of quantised pages, in the first-level cache.
void Task::Decode() {
  if (args_.kv.layout.dtype == KvDtype::kBf16) return;
  for (int64_t i = 0; i < next_.run_count; ++i) {
    const KvRun& run = next_.runs[i];
    KvRowsAt at{.block = run.page,
                .layer = args_.layer,
                .kv_head = static_cast<int32_t>(kv_head_),
                .slot = run.slot};
    cpu::LoadKvRows(args_.kv, at, run.count, work_.key_rows + run.token * head_dim_);
    at.plane = KvPlane::kValues;
    cpu::LoadKvRows(args_.kv, at, run.count, work_.value_rows + run.token * head_dim_);
  }
}

// Asks for a share of the next tile, `points` of which make the whole. In decoding every key and
// value is read once, from memory, a page here and a page there: too little in a row for the
// hardware to see it coming. A few at a time, because a core waits for more than some dozen.
void Task::Prefetch(int64_t points) {
  const int64_t stop =
      std::min<int64_t>(kKvTile, next_.prefetched + (kKvTile + points - 1) / points);
  constexpr size_t kLine = 64;
  const size_t bytes[2] = {args_.kv.layout.RowBytes(KvPlane::kKeys),
                           args_.kv.layout.RowBytes(KvPlane::kValues)};
  for (; next_.prefetched < stop; ++next_.prefetched) {
    for (int plane = 0; plane < 2; ++plane) {
      const std::byte* codes = next_.codes[next_.prefetched][plane];
      if (codes == nullptr) continue;
      for (size_t i = 0; i < bytes[plane]; i += kLine) __builtin_prefetch(codes + i, 0, 2);
    }
  }
}

void Task::AddTile(int64_t tile, int64_t block) {
  const int rows = Rows(block);
  const int64_t begin = tile * kKvTile, end = begin + kKvTile;
  if (Position(FirstRow(block) + rows - 1) < begin || Least(Position(FirstRow(block))) >= end) {
    return;
  }
  Scores(block, rows);
  Softmax(tile, block, rows);
  for (int64_t panel = 0; panel < Panels(head_dim_); ++panel) {
    simd_.multiply_weights(rows, work_.weights, work_.values + panel * kKvTile * kTileColumns,
                           Output(block) + panel * rows * kTileColumns);
  }
}

void Task::Scores(int64_t block, int rows) {
  for (int64_t panel = 0; panel < kScorePanels; ++panel) {
    float* scores = work_.scores + panel * kTileFloats;
    std::fill_n(scores, rows * kTileColumns, 0.0f);
    simd_.multiply_tile(rows, head_dim_ / 2, Queries(block),
                        work_.keys + panel * head_dim_ * kTileColumns, scores);
  }
}

void Task::Softmax(int64_t tile, int64_t block, int rows) {
  const int64_t begin = tile * kKvTile, end = begin + kKvTile;
  float* output = Output(block);
  for (int r = 0; r < rows; ++r) {
    Prefetch(rows);
    const int64_t row = FirstRow(block) + r;
    const int64_t first = std::max(Least(Position(row)), begin) - begin;
    const int64_t last = std::min(Position(row) + 1, end) - begin;
    std::byte* weights = work_.weights + r * kKvTile * simd_.activation_bytes;
    if (first >= last) {  // The row attends to nothing here: adding zeros changes no bit of it.
      std::fill_n(weights, kKvTile * simd_.activation_bytes, std::byte{0});
      continue;
    }
    const float correction = simd_.softmax_row(
        {.scores = {work_.scores + r * kTileColumns, work_.scores + kTileFloats + r * kTileColumns},
         .first = static_cast<int>(first),
         .last = static_cast<int>(last),
         .scale = args_.scale,
         .max = work_.max + row,
         .sum = work_.sum + row,
         .weights = weights});
    if (correction == 1.0f) continue;
    for (int64_t panel = 0; panel < Panels(head_dim_); ++panel) {
      simd_.scale(output + (panel * rows + r) * kTileColumns, kTileColumns, correction);
    }
  }
}

void Task::StoreOutput() {
  for (int64_t block = 0; block < blocks_; ++block) {
    const int rows = Rows(block);
    for (int r = 0; r < rows; ++r) {
      const int64_t row = FirstRow(block) + r;
      const float inverse = 1.0f / work_.sum[row];
      float* target = args_.output.row(Row(row)) + Column(row);
      for (int64_t d = 0; d < head_dim_; ++d) {
        const int64_t panel = d / kTileColumns;
        target[d] = Output(block)[(panel * rows + r) * kTileColumns + d % kTileColumns] * inverse;
      }
    }
  }
}

}  // namespace

AttentionScratch::AttentionScratch(int32_t head_dim, int threads)
    : head_dim_(head_dim), stride_((Workspace(nullptr, head_dim).bytes + 4095) / 4096 * 4096) {
  memory_ = Buffer(stride_ * static_cast<size_t>(threads));
}

void cpu::Attention(const Exec& exec, const AttentionArgs& args) {
  const KvLayout& layout = args.kv.layout;
  PENSTOCK_CHECK_EQ(layout.head_dim % 8, 0);
  PENSTOCK_CHECK(HoldsHeads(layout.dtype, layout.head_dim));
  PENSTOCK_CHECK_EQ(args.heads % layout.kv_heads, 0);
  PENSTOCK_CHECK_EQ(args.scratch->head_dim(), layout.head_dim);
  const int64_t group = args.heads / layout.kv_heads;
  PENSTOCK_CHECK_LE(group, kMaxBlocks * kTileRows);
  const int64_t positions = kMaxBlocks * kTileRows / group;  // of a task
  int64_t tasks = 0;
  for (const AttentionSequence& s : args.sequences) {
    tasks += (s.rows + positions - 1) / positions * layout.kv_heads;
  }
  ParallelFor(exec, tasks, [&](int64_t task, int thread) {
    const Workspace work(args.scratch->thread(thread), layout.head_dim);
    for (const AttentionSequence& s : args.sequences) {
      const int64_t ranges = (s.rows + positions - 1) / positions;
      if (task >= ranges * layout.kv_heads) {
        task -= ranges * layout.kv_heads;
        continue;
      }
      // The last range has the most to attend to: it goes first.
      const int64_t range = ranges - 1 - task / layout.kv_heads;
      const auto kv_head = static_cast<int32_t>(task % layout.kv_heads);
      const int64_t first = range * positions;
      Task(args, s, kv_head, first, std::min(s.rows, first + positions), work).Run();
      return;
    }
  });
}

}  // namespace penstock
