#include "model/cuda/prompts/prompt_rows.h"

namespace penstock {

void PromptRows::Plan(const cuda::library::PrefillShape& shape, int64_t table_stride) {
  if (sequences.empty()) return;
  cuda::library::PrefillShape whole = shape;
  whole.window = 0;
  whole.table_stride = table_stride;
  plan = cuda::library::PlanPrefill(sequences, whole);
}

}  // namespace penstock
