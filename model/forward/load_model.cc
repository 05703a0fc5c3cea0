#include "model/forward/load_model.h"

#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <iterator>
#include <set>

namespace penstock {
namespace {

constexpr TensorDtype kDtypes[] = {TensorDtype::kBf16, TensorDtype::kF16,  TensorDtype::kF32,
                                   TensorDtype::kI8,   TensorDtype::kE4m3, TensorDtype::kI32,
                                   TensorDtype::kI64};

// A checkpoint as the TensorSource of LoadWeights. Get is const for its callers; it records for
// LoadModel which tensors were used and the hash of their bytes.
class CheckpointSource final : public TensorSource {
 public:
  explicit CheckpointSource(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  absl::StatusOr<TensorView> Get(const std::string& full_name) const override {
    const std::string name = StoredName(full_name);
    ReleasePages();
    ASSIGN_OR_RETURN(const Checkpoint::Tensor tensor, checkpoint_.Find(name));
    TensorView view{.shape = tensor.info->shape,
                    .bytes = tensor.bytes,
                    .interleaved_head = tensor.interleaved_head};
    const std::string& dtype = tensor.info->dtype;
    const auto known = std::ranges::find(kDtypes, dtype, TensorDtypeName);
    view.blocks = BlockTypeNamed(dtype);
    if (known == std::end(kDtypes) && view.blocks == nullptr) {
      return InvalidArgument(
          "{}/{}: tensor {}: dtype is {}, allowed are BF16, F16 and F32, and I8, F8_E4M3, I32 and "
          "I64 for codes",
          checkpoint_.directory(), tensor.file, PrintableName(name), dtype);
    }
    view.dtype = view.blocks == nullptr ? *known : TensorDtype::kBlocks;
    Note(name, tensor.bytes);
    return view;
  }

  bool Has(const std::string& name) const override {
    return checkpoint_.Find(StoredName(name)).ok();
  }
  bool HasBlocks(const std::string& name) const override {
    const auto tensor = checkpoint_.Find(name);
    return tensor.ok() && BlockTypeNamed(tensor->info->dtype) != nullptr;
  }

  bool used(std::string_view name) const { return used_.contains(name); }
  uint64_t hash() const { return hash_; }

 private:
  // GPT-2's own files have names without the first word.
  std::string StoredName(const std::string& name) const {
    constexpr std::string_view kPrefix = "transformer.";
    if (!name.starts_with(kPrefix) || checkpoint_.Find(name).ok()) return name;
    std::string short_name = name.substr(kPrefix.size());
    return checkpoint_.Find(short_name).ok() ? short_name : name;
  }

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
