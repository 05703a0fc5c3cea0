#include "model/cuda/cuda_inputs.h"

namespace penstock {

AttentionInputs AddAttention(const CudaAttention& attention, StepInputs& inputs) {
  return {.sequences = inputs.Add(attention.sequences),
          .positions = inputs.Add(attention.positions),
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

StepAngles AddAngles(AngleTable& table, const std::vector<int32_t>& positions, StepInputs& inputs) {
  const size_t pairs = table.pairs();
  if (pairs == 0) return {};
  std::vector<float> cosines, sines;
  cosines.reserve(positions.size() * pairs);
  sines.reserve(positions.size() * pairs);
  for (const int32_t position : positions) {
    const AngleTable::Angles angles = table.At(position);
    cosines.insert(cosines.end(), angles.cosines.begin(), angles.cosines.end());
    sines.insert(sines.end(), angles.sines.begin(), angles.sines.end());
  }
  return {.cosines = inputs.Add(cosines),
          .sines = inputs.Add(sines),
          .dims = static_cast<int32_t>(2 * pairs)};
}

}  // namespace penstock
