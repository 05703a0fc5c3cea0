#include "model/cuda/cuda_inputs.h"

namespace penstock {

AttentionInputs AddAttention(const CudaAttention& attention, StepInputs& inputs) {
  return {.sequences = inputs.Add(attention.sequences),
          .wide = inputs.Add(attention.plan.wide),
          .narrow = inputs.Add(attention.plan.narrow),
          .items = inputs.Add(attention.plan.items),
          .tables = inputs.Add(attention.tables),
          .row_tables = inputs.Add(attention.row_tables),
          .prompt_plan = inputs.Add(attention.prompts.plan.words),
          .prompt_tables = inputs.Add(attention.prompts.tables),
          .prompt_row_tables = inputs.Add(attention.prompts.row_tables)};
}

SelectedInputs AddSelected(const CudaSelected& selected, StepInputs& inputs) {
  return {.dense = AddAttention(selected.dense, inputs),
          .chosen = AddAttention(selected.chosen, inputs),
          .rows = inputs.Add(selected.rows)};
}

}  // namespace penstock
