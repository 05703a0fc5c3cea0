#include "model/cuda/eviction/observed_queries.h"

#include <algorithm>

namespace penstock {

absl::StatusOr<std::unique_ptr<ObservedQueries>> ObservedQueries::Create(int64_t rows,
                                                                         int64_t width) {
  std::unique_ptr<ObservedQueries> queries(new ObservedQueries(width));
  const auto elements = static_cast<size_t>(rows * width);
  ASSIGN_OR_RETURN(queries->here_,
                   cuda::PinnedBuffer::Create(elements * sizeof(Bf16), "queries for evictions"));
  queries->rows_.resize(elements);
  queries->copied_ = cuda::CreateEvent();
  RETURN_IF_ERROR(cuda::TakeStatus("queries for evictions"));
  return queries;
}

ObservedQueries::~ObservedQueries() { cuda::DestroyEvent(copied_); }

void ObservedQueries::Copy(const Bf16* queries, int64_t first, int64_t count, void* stream) {
  cuda::CopyToHost(here_.as<Bf16>() + first * width_, queries + first * width_,
                   static_cast<size_t>(count * width_) * sizeof(Bf16), stream);
  ranges_.push_back({first, count});
}

void ObservedQueries::Mark(void* stream) { cuda::RecordEvent(copied_, stream); }

View<const float, 2> ObservedQueries::Await(int64_t rows) {
  cuda::SynchronizeEvent(copied_);
  for (const Range& range : ranges_) {
    const Bf16* from = here_.as<Bf16>() + range.first * width_;
    std::transform(from, from + range.count * width_, rows_.begin() + range.first * width_,
                   [](Bf16 x) { return ToFloat(x); });
  }
  ranges_.clear();
  return {rows_.data(), {rows, width_}};
}

}  // namespace penstock
