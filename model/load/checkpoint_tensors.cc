#include "model/load/checkpoint_tensors.h"

#include <algorithm>
#include <iterator>

namespace penstock {
namespace {

constexpr TensorDtype kDtypes[] = {TensorDtype::kBf16, TensorDtype::kF16,  TensorDtype::kF32,
                                   TensorDtype::kI8,   TensorDtype::kE4m3, TensorDtype::kI32,
                                   TensorDtype::kI64,  TensorDtype::kU8};

}  // namespace

absl::StatusOr<TensorView> CheckpointTensors::Get(const std::string& full_name) const {
  const std::string name = StoredName(full_name);
  ASSIGN_OR_RETURN(const Checkpoint::Tensor tensor, checkpoint_.Find(name));
  TensorView view{.shape = tensor.info->shape,
                  .bytes = tensor.bytes,
                  .interleaved_head = tensor.interleaved_head};
  const std::string& dtype = tensor.info->dtype;
  const auto known = std::ranges::find(kDtypes, dtype, TensorDtypeName);
  view.blocks = BlockTypeNamed(dtype);
  if (known == std::end(kDtypes) && view.blocks == nullptr) {
    return InvalidArgument(
        "{}/{}: tensor {}: dtype is {}, allowed are BF16, F16 and F32, and I8, U8, F8_E4M3, I32 "
        "and I64 for codes",
        checkpoint_.directory(), tensor.file, PrintableName(name), dtype);
  }
  view.dtype = view.blocks == nullptr ? *known : TensorDtype::kBlocks;
  return view;
}

bool CheckpointTensors::Has(const std::string& name) const {
  return checkpoint_.Find(StoredName(name)).ok();
}

bool CheckpointTensors::HasBlocks(const std::string& name) const {
  const auto tensor = checkpoint_.Find(name);
  return tensor.ok() && BlockTypeNamed(tensor->info->dtype) != nullptr;
}

std::string CheckpointTensors::StoredName(const std::string& name) const {
  for (const std::string_view prefix : {"transformer.", "model."}) {
    if (!name.starts_with(prefix) || checkpoint_.Find(name).ok()) continue;
    std::string short_name = name.substr(prefix.size());
    if (checkpoint_.Find(short_name).ok()) return short_name;
  }
  return name;
}

}  // namespace penstock
