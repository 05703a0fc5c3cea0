#pragma once

#include <vector>

#include "kernels/cuda/weight_codes.h"
#include "kernels/weight_matrix.h"
#include "model/cuda/device_part.h"

namespace penstock {

// The fewest inputs that share a scale on a device. A part of a matrix may begin in the middle of a
// group: then the group's scale is stored several times, for smaller groups.
inline constexpr int64_t kGroupMin = 32;

// How the codes of a quantised host matrix lie on a device. Refers to the matrix and the part.
class CodeSections {
 public:
  // Of `part` of `matrix`, for products that add up inputs in `order`.
  CodeSections(const WeightMatrix& matrix, const DevicePart& part, cuda::InputOrder order);

  // True if the kernels take the codes as they are. They do not take those without a CodeFormOf,
  // inputs in another order (GPTQ's act order), and parts that do not begin at a multiple of
  // kGroupMin; then the part is held in bf16.
  bool kept() const { return !sections_.empty(); }

  struct Section {
    cuda::CodeForm form;
    int64_t first_output = 0;  // of the part
    int64_t outputs = 0;

    bool operator==(const Section&) const = default;
  };
  const std::vector<Section>& all() const { return sections_; }
  int64_t panel_bytes(const Section& section) const {
    return cuda::ChunksOf(part_.inputs) * section.form.chunk_bytes();
  }
  size_t bytes() const {
    size_t sum = 0;
    for (const Section& section : sections_) {
      sum += cuda::PanelsOf(section.outputs) * panel_bytes(section);
    }
    return sum;
  }
  // Writes panels [first, first + count) of a section to `to`. Any thread may call it.
  void Fill(const Section& section, int64_t first, int64_t count, std::byte* to) const;

 private:
  // The quantised matrix that has a row of the host's, and the row's place in it.
  struct Source {
    const QuantisedMatrix* matrix = nullptr;
    int64_t row = 0;
  };
  Source SourceOf(int64_t host_row) const;
  bool Takes(const QuantisedMatrix& matrix) const;
  cuda::CodeForm FormOf(const QuantisedFormat& format, cuda::InputOrder order) const;

  const WeightMatrix& matrix_;
  const DevicePart& part_;
  std::vector<Section> sections_;
};

}  // namespace penstock
