#include "model/tokenizer/bpe.h"

#include <algorithm>
#include <functional>
#include <queue>

#include "base/utf8.h"
#include "model/tokenizer/tokenizer_json.h"

namespace penstock {
namespace {

// The longest piece, in symbols, for which a scan for the lowest rank is faster than a heap.
constexpr size_t kShortPiece = 48;

uint64_t PairKey(uint32_t left, uint32_t right) {
  return (static_cast<uint64_t>(left) << 32) | right;
}

}  // namespace

const Bpe::Merge* Bpe::FindMerge(uint32_t left, uint32_t right) const {
  const auto found = merges_.find(PairKey(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

bool Bpe::CanCut(std::string_view left, std::string_view right) const {
  if (joints_.contains(PairKey(DecodeUtf8(left).code_point, DecodeUtf8(right).code_point))) {
    return false;
  }
  return all_known_ || (keys().Find(left) && keys().Find(right));
}

void Bpe::Encode(std::string_view piece, std::vector<uint32_t>& ids) const {
  if (ignore_merges_) {
    if (const std::optional<uint32_t> id = keys().Find(piece)) {
      ids.push_back(*id);
      return;
    }
  }
  if (!can_cut_) {
    EncodeUncut(piece, ids);
    return;
  }
  size_t begin = 0;
  std::string_view previous;
  for (size_t at = 0; at < piece.size();) {
    const std::string_view symbol = piece.substr(at, Utf8Length(piece[at]));
    if (at != begin && CanCut(previous, symbol)) {
      EncodeUncut(piece.substr(begin, at - begin), ids);
      begin = at;
    }
    previous = symbol;
    at += symbol.size();
  }
  if (begin != piece.size()) EncodeUncut(piece.substr(begin), ids);
}

void Bpe::EncodeUncut(std::string_view piece, std::vector<uint32_t>& ids) const {
  const std::optional<uint32_t> id = keys().Find(piece);
  if (!id) {
    MergePiece(piece, ids);
    return;
  }
  std::atomic<Whole>& whole = whole_[*id];
  if (whole.load(std::memory_order_relaxed) == Whole::kItself) {
    ids.push_back(*id);
    return;
  }
  const size_t before = ids.size();
  MergePiece(piece, ids);
  const bool itself = ids.size() == before + 1 && ids.back() == *id;
  whole.store(itself ? Whole::kItself : Whole::kOther, std::memory_order_relaxed);
}

void Bpe::MergePiece(std::string_view piece, std::vector<uint32_t>& ids) const {
  std::vector<uint32_t> symbols;
  symbols.reserve(piece.size());
  AppendSymbols(piece, symbols);
  if (symbols.size() <= kShortPiece) {
    MergeShort(symbols);
  } else {
    MergeLong(symbols);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

void Bpe::AppendSymbols(std::string_view piece, std::vector<uint32_t>& symbols) const {
  bool pending_unk = false;  // <unk> is emitted at the next known symbol, as in Hugging Face's code
  for (size_t at = 0; at < piece.size();) {
    const size_t length = byte_level_ ? 1 : Utf8Length(piece[at]);
    const std::string_view symbol = piece.substr(at, length);
    at += length;
    if (const std::optional<uint32_t> id = keys().Find(symbol)) {
      if (pending_unk) symbols.push_back(*unk_id_);
      pending_unk = false;
      symbols.push_back(*id);
      continue;
    }
    if (AppendFallback(symbol, symbols) || !unk_id_) continue;
    if (pending_unk && !fuse_unk_) symbols.push_back(*unk_id_);
    pending_unk = true;
  }
  if (pending_unk) symbols.push_back(*unk_id_);
}

bool Bpe::AppendFallback(std::string_view symbol, std::vector<uint32_t>& symbols) const {
  if (!byte_fallback_) return false;
  const auto id_of = [&](char byte) { return fallback_[static_cast<uint8_t>(byte)]; };
  if (std::any_of(symbol.begin(), symbol.end(), [&](char byte) { return id_of(byte) < 0; })) {
    return false;
  }
  for (char byte : symbol) symbols.push_back(static_cast<uint32_t>(id_of(byte)));
  return true;
}

// BPE merges by repeated scans for the lowest rank: O(n^2), but without allocations.
void Bpe::MergeShort(std::vector<uint32_t>& symbols) const {
  if (symbols.size() < 2) return;
  std::array<const Merge*, kShortPiece> merges;  // the merge of symbol i with its right neighbour
  size_t pairs = symbols.size() - 1;
  for (size_t i = 0; i < pairs; ++i) merges[i] = FindMerge(symbols[i], symbols[i + 1]);
  while (true) {
    size_t best = pairs;
    for (size_t i = 0; i < pairs; ++i) {
      if (merges[i] == nullptr) continue;
      if (best == pairs || merges[i]->rank < merges[best]->rank) best = i;
    }
    if (best == pairs) return;
    symbols[best] = merges[best]->id;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    std::copy(merges.begin() + static_cast<ptrdiff_t>(best) + 1,
              merges.begin() + static_cast<ptrdiff_t>(pairs),
              merges.begin() + static_cast<ptrdiff_t>(best));
    --pairs;
    if (best < pairs) merges[best] = FindMerge(symbols[best], symbols[best + 1]);
    if (best > 0) merges[best - 1] = FindMerge(symbols[best - 1], symbols[best]);
  }
}

// BPE merges with a priority queue of candidates over a linked list of symbols, as SentencePiece
// does (Kudo and Richardson, arXiv 1808.06226): O(n log n). A merge leaves outdated candidates in
// the queue; they are skipped when they are popped.
void Bpe::MergeLong(std::vector<uint32_t>& ids) const {
  std::vector<Symbol> symbols(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto index = static_cast<int32_t>(i);
    symbols[i] = {ids[i], index - 1, i + 1 == ids.size() ? -1 : index + 1};
  }
  struct Candidate {
    uint32_t rank;
    int32_t left;
    uint32_t id;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](int32_t left) {
    if (left < 0 || symbols[left].next < 0) return;
    const Merge* merge = FindMerge(symbols[left].id, symbols[symbols[left].next].id);
    if (merge != nullptr) queue.push({merge->rank, left, merge->id});
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) offer(static_cast<int32_t>(i));
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[top.left];
    if (left.gone || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    const Merge* merge = FindMerge(left.id, right.id);
    // Outdated: a neighbour was merged after the offer.
    if (merge == nullptr || merge->id != top.id) continue;
    left.id = top.id;
    right.gone = true;
    left.next = right.next;
    if (left.next >= 0) symbols[left.next].previous = top.left;
    offer(left.previous);
    offer(top.left);
  }
  ids.clear();
  for (int32_t i = 0; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace penstock
