#include "model/forward/load_model.h"

#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <set>

namespace penstock {
namespace {

// A checkpoint as the TensorSource of LoadWeights. Get is const for its callers; it records for
// LoadModel which tensors were used and the hash of their bytes.
class CheckpointSource final : public TensorSource {
 public:
  explicit CheckpointSource(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  absl::StatusOr<TensorView> Get(const std::string& name) const override {
    ReleasePages();
    ASSIGN_OR_RETURN(const Checkpoint::Tensor tensor, checkpoint_.Find(name));
    TensorView view{.shape = tensor.info->shape, .bytes = tensor.bytes};
    const std::string& dtype = tensor.info->dtype;
    if (dtype == "BF16") {
      view.dtype = TensorDtype::kBf16;
    } else if (dtype == "F16") {
      view.dtype = TensorDtype::kF16;
    } else if (dtype == "F32") {
      view.dtype = TensorDtype::kF32;
    } else {
      return InvalidArgument("{}/{}: tensor {}: dtype is {}, allowed are BF16, F16 and F32",
                             checkpoint_.directory(), tensor.file, PrintableName(name), dtype);
    }
    Note(name, tensor.bytes);
    return view;
  }

  bool used(std::string_view name) const { return used_.contains(name); }
  uint64_t hash() const { return hash_; }

 private:
  // Hashing reads the pages from disk, so the packing that follows finds them in memory. Hashes are
  // added up, so that the order of Get does not matter.
  void Note(const std::string& name, std::span<const std::byte> bytes) const {
    current_ = bytes;
    if (!used_.insert(name).second) return;
    const uint64_t seed = XXH3_64bits(name.data(), name.size());
    hash_ += XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
  }

  // Unmaps the pages of the last tensor from this process. They stay in the page cache until the
  // memory is needed.
  void ReleasePages() const {
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = (reinterpret_cast<uintptr_t>(current_.data()) + page - 1) / page * page;
    const auto end = reinterpret_cast<uintptr_t>(current_.data() + current_.size()) / page * page;
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
    current_ = {};
  }

  const Checkpoint& checkpoint_;
  mutable std::span<const std::byte> current_;
  mutable std::set<std::string, std::less<>> used_;
  mutable uint64_t hash_ = 0;
};

// Tables that old exporters wrote and that follow from config.json.
bool IsDerived(std::string_view name) { return name.ends_with(".rotary_emb.inv_freq"); }

absl::Status CheckAllUsed(const Checkpoint& checkpoint, const CheckpointSource& source) {
  for (const std::string_view name : checkpoint.tensor_names()) {
    if (source.used(name) || IsDerived(name)) continue;
    // A tied model whose file also contains the head: the same matrix, as transformers loads it.
    if (name == "lm_head.weight" && checkpoint.config().tied_embeddings) continue;
    ASSIGN_OR_RETURN(const Checkpoint::Tensor tensor, checkpoint.Find(std::string(name)));
    return InvalidArgument(
        "{}/{}: tensor {} of shape [{}] has no place in a {} of {} layers as config.json describes "
        "it",
        checkpoint.directory(), tensor.file, PrintableName(name),
        fmt::join(tensor.info->shape, ", "), checkpoint.config().architecture,
        checkpoint.config().layers);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(const std::string& directory) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(directory));
  const CheckpointSource source(checkpoint);
  auto weights = LoadWeights(checkpoint.config(), source);
  if (!weights.ok()) return Annotate(weights.status(), directory);
  RETURN_IF_ERROR(CheckAllUsed(checkpoint, source));
  const uint64_t parts[] = {checkpoint.layout_fingerprint(), source.hash()};
  return LoadedModel{*std::move(weights), XXH3_64bits(parts, sizeof(parts))};
}

}  // namespace penstock
