#pragma once

#include "tests/cuda/cases/kv_pool_case.h"

namespace penstock::cuda {

struct SelectionCase {
  KvPoolCase::Options kv = {};  // of one layer's sequences; the query of each is its last token's
  int32_t group = 4;            // query heads of a KV head
  int32_t keep = 6;             // pages that the first query attends to; each other one more
  bool equal = false;           // all scores of a sequence are equal
};

struct SelectionResult {
  // The largest difference of a bound, and of a score, from those in double precision, relative to
  // the largest; NaN if one is.
  double bounds = 0, scores = 0;
  // Every query has the pages with the highest scores, in the order of positions.
  bool best = true;
  std::vector<uint32_t> chosen;
};
SelectionResult RunSelection(const SelectionCase& c);

}  // namespace penstock::cuda
