#include "model/cuda/code_sections.h"

#include <algorithm>
#include <array>

#include "model/cuda/cuda_model_check.h"

namespace penstock {
namespace {

// The values of the groups from `first` on, each `times` times.
template <class T>
void TakeGroups(std::vector<T>& values, int64_t first, int64_t times) {
  values.erase(values.begin(), values.begin() + std::min<int64_t>(first, std::ssize(values)));
  std::vector<T> repeated;
  repeated.reserve(values.size() * static_cast<size_t>(times));
  for (const T& value : values) repeated.insert(repeated.end(), static_cast<size_t>(times), value);
  values = std::move(repeated);
}

// Cuts a host row to the inputs of the part, and its groups to those of a device's form.
void CutRow(const QuantisedFormat& format, const DevicePart& part, int64_t host_inputs,
            QuantisedRowCopy& row) {
  const int64_t times = std::max(1, format.group / cuda::kCodeInputs);
  const int64_t first_group = part.first_input / format.group;
  TakeGroups(row.scales, first_group, times);
  TakeGroups(row.zeros, first_group, times);
  TakeGroups(row.offsets, first_group, times);
  const int64_t present = std::clamp<int64_t>(host_inputs - part.first_input, 0, part.inputs);
  row.codes.erase(row.codes.begin(),
                  row.codes.begin() + std::min<int64_t>(part.first_input, std::ssize(row.codes)));
  row.codes.resize(static_cast<size_t>(present));
}

}  // namespace

CodeSections::CodeSections(const WeightMatrix& matrix, const DevicePart& part,
                           cuda::InputOrder order)
    : matrix_(matrix), part_(part) {
  if (matrix.quantised().empty() ||
      !std::ranges::all_of(matrix.quantised(), [&](const auto& m) { return Takes(m); })) {
    return;
  }
  for (int64_t i = 0; i < part.outputs; ++i) {
    const int64_t row = part.row_of(i);
    // Rows that the host lacks continue a section.
    if (row < 0 && !sections_.empty()) {
      ++sections_.back().outputs;
      continue;
    }
    const QuantisedMatrix& source = *SourceOf(std::max<int64_t>(row, 0)).matrix;
    const cuda::CodeForm form = *CodeFormOf(source.format(), order);
    if (sections_.empty() || !(sections_.back().form == form)) {
      sections_.push_back({.form = form, .first_output = i});
    }
    ++sections_.back().outputs;
  }
}

bool CodeSections::Takes(const QuantisedMatrix& matrix) const {
  const QuantisedFormat& format = matrix.format();
  return CodeFormOf(format, cuda::InputOrder::kOwn).has_value() && matrix.order().empty() &&
         part_.first_input % format.group == 0;
}

CodeSections::Source CodeSections::SourceOf(int64_t host_row) const {
  for (const QuantisedMatrix& matrix : matrix_.quantised()) {
    if (host_row < matrix.outputs()) return {.matrix = &matrix, .row = host_row};
    host_row -= matrix.outputs();
  }
  return {};
}

void CodeSections::Fill(const Section& section, int64_t first, int64_t count, std::byte* to) const {
  for (int64_t panel = first; panel < first + count; ++panel, to += panel_bytes(section)) {
    std::array<QuantisedRowCopy, cuda::kCodePanel> rows;
    std::array<cuda::CodeRow, cuda::kCodePanel> views;
    const int64_t begin = panel * cuda::kCodePanel;
    const int64_t present = std::min<int64_t>(section.outputs - begin, cuda::kCodePanel);
    for (int64_t i = 0; i < present; ++i) {
      const int64_t host_row = part_.row_of(section.first_output + begin + i);
      if (host_row < 0) continue;
      const Source source = SourceOf(host_row);
      rows[i] = source.matrix->CopyRow(source.row);
      CutRow(source.matrix->format(), part_, matrix_.inputs(), rows[i]);
      views[i] = {.codes = rows[i].codes,
                  .scales = rows[i].scales,
                  .zeros = rows[i].zeros,
                  .offsets = rows[i].offsets};
    }
    cuda::PackPanel(section.form, part_.inputs, views, to);
  }
}

}  // namespace penstock
