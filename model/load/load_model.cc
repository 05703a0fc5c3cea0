#include "model/load/load_model.h"

#include <xxhash.h>

#include "base/mapped_file.h"
#include "model/load/checkpoint_source.h"

namespace penstock {

absl::StatusOr<LoadedModel> LoadModel(const std::string& directory, WeightPolicy policy) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(directory));
  std::span<const std::byte> current;  // the tensor that is being packed
  uint64_t hash = 0;
  // Hashing reads the pages from disk, so the packing that follows finds them in memory.
  const CheckpointSource source(checkpoint, [&](const NamedBytes& tensor, bool first) {
    ReleasePages(current);
    current = tensor.bytes;
    if (first) hash += HashOf(tensor);
  });
  auto weights = LoadWeights(checkpoint.config(), source, FormsOf(policy));
  if (!weights.ok()) return Annotate(weights.status(), directory);
  RETURN_IF_ERROR(source.CheckAllUsed());
  uint64_t fingerprint = ModelFingerprint(checkpoint, hash);
  if (weights->quantised()) {
    const std::string form = weights->FormName();
    fingerprint = XXH3_64bits_withSeed(form.data(), form.size(), fingerprint);
  }
  return LoadedModel{*std::move(weights), fingerprint};
}

uint64_t ModelFingerprint(const Checkpoint& checkpoint, uint64_t hashes) {
  const uint64_t parts[] = {checkpoint.layout_fingerprint(), hashes};
  return XXH3_64bits(parts, sizeof(parts));
}

}  // namespace penstock
