#include "model/cuda/code_sections.h"

#include <algorithm>
#include <array>

#include "model/cuda/cuda_model_check.h"

namespace penstock {
namespace {

// Of values of host groups, each of which is `times` groups of a device: those of the device's
// groups from `first` on.
template <class T>
void TakeGroups(std::vector<T>& values, int64_t first, int64_t times) {
  std::vector<T> taken;
  for (int64_t group = first; group < std::ssize(values) * times; ++group) {
    taken.push_back(values[static_cast<size_t>(group / times)]);
  }
  values = std::move(taken);
}

// Cuts a host row to the inputs of the part, and its groups to those of a device, of `group`
// inputs.
void CutRow(const QuantisedFormat& format, int64_t group, const DevicePart& part,
            int64_t host_inputs, QuantisedRowCopy& row) {
  const int64_t first_group = part.first_input / group, times = format.group / group;
  TakeGroups(row.scales, first_group, times);
  TakeGroups(row.zeros, first_group, times);
  TakeGroups(row.offsets, first_group, times);
  const int64_t present = std::clamp<int64_t>(host_inputs - part.first_input, 0, part.inputs);
  row.codes.erase(row.codes.begin(),
                  row.codes.begin() + std::min<int64_t>(part.first_input, std::ssize(row.codes)));
  row.codes.resize(static_cast<size_t>(present));
}

// Replaces codes of a table by the integers that they stand for.
void TakeIntegers(const QuantisedFormat& format, QuantisedRowCopy& row) {
  const CodeTable* const table = format.table();
  if (table == nullptr) return;
  for (uint8_t& code : row.codes) code = (*table)[code];
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
    const cuda::CodeForm form = FormOf(source.format(), order);
    if (sections_.empty() || !(sections_.back().form == form)) {
      sections_.push_back({.form = form, .first_output = i});
    }
    ++sections_.back().outputs;
  }
}

bool CodeSections::Takes(const QuantisedMatrix& matrix) const {
  return CodeFormOf(matrix.format(), cuda::InputOrder::kOwn).has_value() &&
         matrix.order().empty() && part_.first_input % kGroupMin == 0;
}

// With the largest group that begins where the part begins.
cuda::CodeForm CodeSections::FormOf(const QuantisedFormat& format, cuda::InputOrder order) const {
  cuda::CodeForm form = *CodeFormOf(format, order);
  while (part_.first_input % form.group != 0) form.group /= 2;
  return form;
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
      if (section.form.code == cuda::WeightCode::kInt8)
        TakeIntegers(source.matrix->format(), rows[i]);
      CutRow(source.matrix->format(), section.form.group, part_, matrix_.inputs(), rows[i]);
      views[i] = {.codes = rows[i].codes,
                  .scales = rows[i].scales,
                  .zeros = rows[i].zeros,
                  .offsets = rows[i].offsets};
    }
    cuda::PackPanel(section.form, part_.inputs, views, to);
  }
}

}  // namespace penstock
