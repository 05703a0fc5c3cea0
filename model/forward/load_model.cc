#include "model/forward/load_model.h"

#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <set>

#include "model/forward/checkpoint_tensors.h"

namespace penstock {
namespace {

// A checkpoint as the TensorSource of LoadWeights. Get is const for its callers; it records for
// LoadModel which tensors were used and the hash of their bytes.
class CheckpointSource final : public TensorSource {
 public:
  explicit CheckpointSource(const Checkpoint& checkpoint) : tensors_(checkpoint) {}

  absl::StatusOr<TensorView> Get(const std::string& name) const override {
    ReleasePages();
    ASSIGN_OR_RETURN(TensorView view, tensors_.Get(name));
    Note(tensors_.StoredName(name), view.bytes);
    return view;
  }
  bool Has(const std::string& name) const override { return tensors_.Has(name); }
  bool HasBlocks(const std::string& name) const override { return tensors_.HasBlocks(name); }

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

  const CheckpointTensors tensors_;
  mutable std::span<const std::byte> current_;
  mutable std::set<std::string, std::less<>> used_;
  mutable uint64_t hash_ = 0;
};

// Tables that old exporters wrote and that follow from config.json: of RoPE, and masks.
bool IsDerived(std::string_view name) {
  constexpr std::string_view kTables[] = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                                          ".attention.bias", ".attention.masked_bias"};
  return std::ranges::any_of(kTables,
                             [&](std::string_view table) { return name.ends_with(table); });
}

// Tensors of quantised checkpoints without an effect: biases of zeros, which GPTQ's tools give to
// models without biases; scales to round activations to FP8 with, which are not rounded here; and
// scales for a cache of keys and values (QuantisationConfig).
bool IsWithoutEffect(const ModelConfig& config, std::string_view name,
                     std::span<const std::byte> bytes) {
  const QuantisationConfig& quantisation = config.quantisation;
  if (quantisation.method == QuantisationConfig::Method::kGptq && name.ends_with(".bias")) {
    return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
  }
  if (quantisation.floats && name.ends_with(".input_scale")) return true;
  return quantisation.has_kv_scales &&
         (name.ends_with(".self_attn.k_scale") || name.ends_with(".self_attn.v_scale"));
}

absl::Status CheckAllUsed(const Checkpoint& checkpoint, const CheckpointSource& source) {
  for (const std::string_view name : checkpoint.tensor_names()) {
    if (source.used(name) || IsDerived(name)) continue;
    // A tied model whose file also contains the head: the same matrix, as transformers loads it.
    const ModelConfig& config = checkpoint.config();
    if (config.tied_embeddings && name == fmt::format("{}.weight", config.names.head)) continue;
    ASSIGN_OR_RETURN(const Checkpoint::Tensor tensor, checkpoint.Find(std::string(name)));
    if (IsWithoutEffect(checkpoint.config(), name, tensor.bytes)) continue;
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

absl::StatusOr<LoadedModel> LoadModel(const std::string& directory, WeightPolicy policy) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(directory));
  const CheckpointSource source(checkpoint);
  auto weights = LoadWeights(checkpoint.config(), source, FormsOf(policy));
  if (!weights.ok()) return Annotate(weights.status(), directory);
  RETURN_IF_ERROR(CheckAllUsed(checkpoint, source));
  const uint64_t parts[] = {checkpoint.layout_fingerprint(), source.hash()};
  uint64_t fingerprint = XXH3_64bits(parts, sizeof(parts));
  if (weights->quantised()) {
    const std::string form = weights->FormName();
    fingerprint = XXH3_64bits_withSeed(form.data(), form.size(), fingerprint);
  }
  return LoadedModel{*std::move(weights), fingerprint};
}

}  // namespace penstock
