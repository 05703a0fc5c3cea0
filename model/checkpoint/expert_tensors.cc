#include "model/checkpoint/expert_tensors.h"

namespace penstock {
namespace {

constexpr std::string_view kExperts = ".experts.";

// The name of an expert's tensor in two parts, before and behind the number.
struct PartName {
  std::string before, behind;
};

PartName PartNameOf(const std::string& name) {
  const size_t end = name.find(kExperts) + kExperts.size();
  PartName part{.before = name.substr(0, end), .behind = "." + name.substr(end)};
  for (const std::string_view kind : {".weight", ".bias"}) {
    if (part.behind.ends_with(kind)) return part;
  }
  for (const std::string_view kind : {"_bias", "_blocks", "_scales"}) {
    if (!part.behind.ends_with(kind)) continue;
    part.behind[part.behind.size() - kind.size()] = '.';
    return part;
  }
  part.behind += ".weight";
  return part;
}

}  // namespace

bool HasAllExperts(std::string_view name) {
  const size_t at = name.find(kExperts);
  if (at == std::string_view::npos) return false;
  const std::string_view rest = name.substr(at + kExperts.size());
  return !rest.empty() && (rest[0] < '0' || rest[0] > '9');
}

absl::StatusOr<std::vector<SafetensorsTensor>> SplitByExpert(const SafetensorsTensor& tensor,
                                                             int32_t experts) {
  if (tensor.shape.empty() || tensor.shape[0] != experts) {
    return InvalidArgument("tensor {} has shape [{}], config.json implies {} experts",
                           PrintableName(tensor.name), fmt::join(tensor.shape, ", "), experts);
  }
  const PartName name = PartNameOf(tensor.name);
  const size_t bytes = (tensor.end - tensor.begin) / static_cast<size_t>(experts);
  std::vector<SafetensorsTensor> parts;
  for (int32_t e = 0; e < experts; ++e) {
    const size_t begin = tensor.begin + static_cast<size_t>(e) * bytes;
    parts.push_back({.name = fmt::format("{}{}{}", name.before, e, name.behind),
                     .dtype = tensor.dtype,
                     .shape = {tensor.shape.begin() + 1, tensor.shape.end()},
                     .begin = begin,
                     .end = begin + bytes});
  }
  return parts;
}

}  // namespace penstock
