#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/selection/page_guesses.h"
#include "kernels/selection/select_pages.h"
#include "model/forward/selecting_rows.h"

namespace penstock {

// The rows of a step that attend to some of their pages, and the bounds of keys by which they
// choose (Quest). Bounds of full pages are kept from step to step; they are computed, layer by
// layer, by the first step that needs them.
class StepSelection {
 public:
  explicit StepSelection(const Exec& exec) : exec_(exec) {}

  void Begin();
  // As SelectingRows::Add.
  int64_t Add(const SequenceStep& sequence, const PagedKv& kv, int64_t first_row);
  // Behind the last Add.
  void FinishAdding(const PagedKv& kv);
  bool any() const { return selecting_.any(); }

  // For Attention: the `index`-th row that was added, with the pages that Choose has chosen.
  AttentionSequence RowAt(size_t index) const;
  size_t size() const { return rows_.size(); }  // rows

  // Tells the pager of the pages whose keys Choose will read. `reads`: as in WantPages.
  void WantMissing(const PagedKv& kv, int32_t layer, std::span<int64_t> reads) const;
  // Chooses the pages of all rows. The pages hold the layer's keys.
  void Choose(const PagedKv& kv, int32_t layer, int32_t heads, View<const float, 2> queries);
  // Tells the pager of the pages that `sequences` have chosen, which RowAt gave.
  void WantChosen(const PagedKv& kv, int32_t layer, std::span<const AttentionSequence> sequences,
                  std::span<int64_t> reads);

  // True if the layer's pages should be guessed (PageGuesses).
  bool GuessPays(int32_t layer) const { return guesses_.Pays(layer); }
  // Tells the pager of the pages that the rows would choose by `queries`, as far as their bounds
  // are known. Choose chooses again.
  void WantGuessed(const PagedKv& kv, int32_t layer, int32_t heads, View<const float, 2> queries,
                   std::span<int64_t> reads);

  // Remembers the bounds of pages whose tokens were no guesses. Behind the last layer.
  void End(const PagedKv& kv);

  size_t bytes() const { return bounds_.bytes(); }

  // At most so many bytes of pages are read for a token of a sequence with `tokens` tokens, in all
  // layers together.
  static uint64_t BytesWanted(const KvLayout& layout, int64_t tokens,
                              const PageSelection& selection);

 private:
  void SelectFor(std::span<const SelectingRow> rows, const PagedKv& kv, int32_t layer,
                 int32_t heads, View<const float, 2> queries);

  const Exec exec_;
  PageBounds bounds_;
  PageGuesses guesses_;
  SelectingRows selecting_;
  std::vector<SelectingRow> rows_;  // of selecting_, with their tables
  std::vector<uint32_t> tables_;    // of all rows
};

}  // namespace penstock
