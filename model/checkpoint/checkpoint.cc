#include "model/checkpoint/checkpoint.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "model/checkpoint/expert_tensors.h"
#include "model/checkpoint/json_fields.h"

namespace penstock {
namespace {

constexpr size_t kMaxIndexBytes = size_t{64} << 20;
constexpr size_t kMaxShards = 4096;
constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

bool IsPlainShardName(std::string_view name) {
  return name.size() <= 255 && name.ends_with(".safetensors") && !name.starts_with('.') &&
         name.find_first_of(std::string_view("/\\\0", 3)) == std::string_view::npos;
}

std::string_view Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

absl::Status NoWeights(const std::string& directory) {
  for (const char* other : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    if (!Exists(directory + "/" + other)) continue;
    return NotFound("{} has {} only: convert it to safetensors (save_pretrained does)", directory,
                    other);
  }
  return NotFound("{} has neither {} nor {}", directory, kSingleFile, kIndexFile);
}

uint64_t HashHeader(const MappedFile& file, const SafetensorsHeader& header, uint64_t seed) {
  const uint64_t size = file.bytes().size();
  seed = XXH3_64bits_withSeed(&size, sizeof(size), seed);
  // The padding before the data of a GGUF file without tensors may be absent.
  const size_t header_bytes = std::min(header.data_begin, file.bytes().size());
  return XXH3_64bits_withSeed(file.bytes().data(), header_bytes, seed);
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(std::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json index, ParseJsonObject(text, kIndexFile, kMaxIndexBytes));
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object() || weight_map->empty()) {
    return InvalidArgument("{}: weight_map must be an object of tensor names and files",
                           kIndexFile);
  }
  std::map<std::string, std::string> shard_of;
  for (const auto& [tensor, shard] : weight_map->items()) {
    if (!shard.is_string() || !IsPlainShardName(shard.get_ref<const std::string&>())) {
      return InvalidArgument(
          "{}: weight_map: tensor {}: the file is {}, allowed is a name ending in .safetensors "
          "without directories",
          kIndexFile, PrintableName(tensor),
          shard.is_string() ? PrintableName(shard.get_ref<const std::string&>()) : "no string");
    }
    shard_of.emplace(tensor, shard.get<std::string>());
  }
  return shard_of;
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& model) {
  Checkpoint checkpoint;
  ASSIGN_OR_RETURN(checkpoint.config_, LoadModelConfig(model));
  std::error_code error;
  if (std::filesystem::is_directory(model, error)) {
    checkpoint.directory_ = model;
    RETURN_IF_ERROR(checkpoint.OpenDirectory());
    RETURN_IF_ERROR(checkpoint.FingerprintDirectory());
  } else {
    const std::string folder = std::filesystem::path(model).parent_path().string();
    checkpoint.directory_ = folder.empty() ? "." : folder;
    RETURN_IF_ERROR(checkpoint.OpenGguf(model));
    checkpoint.FingerprintGguf();
  }
  RETURN_IF_ERROR(checkpoint.SplitExperts());
  return checkpoint;
}

absl::Status Checkpoint::OpenDirectory() {
  if (Exists(directory_ + "/" + kSingleFile)) return OpenShards({kSingleFile});
  const std::string index_path = directory_ + "/" + kIndexFile;
  if (!Exists(index_path)) return NoWeights(directory_);
  ASSIGN_OR_RETURN(const MappedFile index, MappedFile::Open(index_path));
  const auto weight_map = ParseSafetensorsIndex(Text(index.bytes()));
  if (!weight_map.ok()) return Annotate(weight_map.status(), directory_);
  std::set<std::string> names;
  for (const auto& [tensor, shard] : *weight_map) names.insert(shard);
  if (names.size() > kMaxShards) {
    return InvalidArgument("{}: weight_map names {} files, the limit is {}", index_path,
                           names.size(), kMaxShards);
  }
  RETURN_IF_ERROR(OpenShards({names.begin(), names.end()}));
  return CheckIndex(*weight_map);
}

absl::Status Checkpoint::OpenShards(const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const std::string path = directory_ + "/" + name;
    ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
    ASSIGN_OR_RETURN(SafetensorsHeader header, ParseSafetensors(file.bytes(), path));
    for (size_t i = 0; i < header.tensors.size(); i++) {
      const std::string& tensor = header.tensors[i].name;
      const auto [place, added] = places_.try_emplace(tensor, Place{shards_.size(), i});
      if (!added) {
        return InvalidArgument("{}: tensor {} is in {} too", path, PrintableName(tensor),
                               shards_[place->second.shard].name);
      }
    }
    shards_.push_back({name, std::move(file), std::move(header)});
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::CheckIndex(const std::map<std::string, std::string>& weight_map) const {
  for (const auto& [tensor, shard] : weight_map) {
    const auto place = places_.find(tensor);
    if (place == places_.end() || shards_[place->second.shard].name != shard) {
      return InvalidArgument("{}/{}: weight_map: tensor {} is not in {}", directory_, kIndexFile,
                             PrintableName(tensor), shard);
    }
  }
  for (const auto& [tensor, place] : places_) {
    if (!weight_map.contains(tensor)) {
      return InvalidArgument("{}/{}: weight_map: tensor {} of {} is not listed", directory_,
                             kIndexFile, PrintableName(tensor), shards_[place.shard].name);
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::SplitExperts() {
  if (!config_.names.experts_together) return absl::OkStatus();
  const std::map<std::string, Place, std::less<>> whole = std::exchange(places_, {});
  for (const auto& [name, place] : whole) {
    Shard& shard = shards_[place.shard];
    std::vector<SafetensorsTensor>& tensors = shard.header.tensors;
    if (!HasAllExperts(name)) {
      places_[name] = place;
      continue;
    }
    const auto path = [&] { return fmt::format("{}/{}", directory_, shard.name); };
    auto parts = SplitByExpert(tensors[place.tensor], config_.experts.count);
    if (!parts.ok()) return Annotate(parts.status(), path());
    for (SafetensorsTensor& part : *parts) {
      const bool added = places_.try_emplace(part.name, Place{place.shard, tensors.size()}).second;
      if (!added || whole.contains(part.name)) {
        return InvalidArgument("{}: tensor {} has an expert that is in {} too", path(),
                               PrintableName(name), PrintableName(part.name));
      }
      tensors.push_back(std::move(part));
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::FingerprintDirectory() {
  ASSIGN_OR_RETURN(const MappedFile config, MappedFile::Open(directory_ + "/config.json"));
  uint64_t hash = XXH3_64bits(config.bytes().data(), config.bytes().size());
  for (const Shard& shard : shards_) {
    hash = XXH3_64bits_withSeed(shard.name.data(), shard.name.size(), hash);
    hash = HashHeader(shard.file, shard.header, hash);
  }
  layout_fingerprint_ = hash;
  return absl::OkStatus();
}

void Checkpoint::FingerprintGguf() {
  uint64_t hash = 0;
  for (const Shard& shard : shards_) hash = HashHeader(shard.file, shard.header, hash);
  layout_fingerprint_ = hash;
}

absl::StatusOr<Checkpoint::Tensor> Checkpoint::Find(const std::string& name) const {
  const auto place = places_.find(name);
  if (place == places_.end()) {
    return NotFound("{} has no tensor {}", directory_, PrintableName(name));
  }
  const Shard& shard = shards_[place->second.shard];
  const SafetensorsTensor& info = shard.header.tensors[place->second.tensor];
  return Tensor{.info = &info,
                .bytes = shard.file.bytes().subspan(info.begin, info.end - info.begin),
                .file = shard.name,
                .interleaved_head = place->second.interleaved_head};
}

std::vector<std::string_view> Checkpoint::tensor_names() const {
  std::vector<std::string_view> names;
  names.reserve(places_.size());
  for (const auto& [name, place] : places_) names.push_back(name);
  return names;
}

std::vector<std::string> Checkpoint::weight_files() const {
  std::vector<std::string> paths;
  for (const Shard& shard : shards_) paths.push_back(directory_ + "/" + shard.name);
  return paths;
}

}  // namespace penstock
