#include "model/weights/formats/weight_kinds.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <utility>

namespace penstock {
namespace {

std::string KindOf(const std::string& module) {
  std::string kind;
  std::ranges::copy_if(module, std::back_inserter(kind),
                       [](unsigned char c) { return std::isdigit(c) == 0; });
  return kind;
}

}  // namespace

absl::StatusOr<QuantisedTensor> WeightKinds::Describe(const std::string& module, int64_t rows,
                                                      int64_t inputs) {
  const std::string name = QuantisedNameOf(source_, module);
  if (source_.HasBlocks(name)) {
    ASSIGN_OR_RETURN(const TensorView blocks, source_.Get(name));
    return QuantisedTensor{.rows = rows, .inputs = inputs, .format = blocks.blocks->format};
  }
  const std::string kind = KindOf(module);
  const auto known = known_.find(kind);
  if (known != known_.end()) return known->second;
  ASSIGN_OR_RETURN(QuantisedTensor tensor, ReadQuantised(config_, source_, module, rows, inputs));
  QuantisedTensor described{.rows = tensor.rows,
                            .inputs = tensor.inputs,
                            .format = tensor.format,
                            .order = std::move(tensor.order)};
  return known_.emplace(kind, std::move(described)).first->second;
}

}  // namespace penstock
