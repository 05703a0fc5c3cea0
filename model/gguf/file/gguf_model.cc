#include "model/gguf/file/gguf_model.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "base/printable_name.h"
#include "model/gguf/file/gguf_fields.h"

namespace penstock {
namespace {

constexpr int64_t kMaxParts = 1024;
constexpr char kSplitCount[] = "split.count";
constexpr char kSplitNumber[] = "split.no";
constexpr char kSplitTensors[] = "split.tensors.count";

std::string PartSuffix(size_t index, size_t count) {
  return fmt::format("-{:05}-of-{:05}.gguf", index + 1, count);
}

// The name of part `index` of the model whose first part is `first`.
absl::StatusOr<std::string> PartPath(const std::string& first, size_t index, size_t count) {
  const std::string suffix = PartSuffix(0, count);
  if (!first.ends_with(suffix)) {
    return InvalidArgument("{}: key \"{}\" is {}, so the first file's name must end in {}", first,
                           kSplitCount, count, suffix);
  }
  return first.substr(0, first.size() - suffix.size()) + PartSuffix(index, count);
}

absl::Status CheckNumber(const GgufFile& file, size_t index, size_t count) {
  GgufFields fields(file);
  const auto number = static_cast<int64_t>(index);
  if (fields.Int(kSplitNumber, 0, kMaxParts, 0) != number) {
    fields.Fail(kSplitNumber,
                index == 0 ? "0: name the first file of a split model" : fmt::format("{}", index));
  }
  const auto parts = static_cast<int64_t>(count);
  if (fields.Int(kSplitCount, 0, kMaxParts, parts) != parts) {
    fields.Fail(kSplitCount, fmt::format("{}, as in the first file", count));
  }
  return fields.status();
}

// 1 for a file that is not split.
absl::StatusOr<size_t> CountParts(const GgufFile& file) {
  GgufFields fields(file);
  const int64_t count = fields.Int(kSplitCount, 0, kMaxParts, 1);
  RETURN_IF_ERROR(fields.status());
  return static_cast<size_t>(std::max<int64_t>(count, 1));
}

}  // namespace

absl::Status GgufModel::AddPart(const std::string& path, size_t index, size_t count) {
  ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
  ASSIGN_OR_RETURN(GgufFile parsed, ParseGguf(file.bytes(), path));
  if (index > 0) RETURN_IF_ERROR(CheckNumber(parsed, index, count));
  for (GgufTensor& tensor : parsed.tensors) tensor.part = index;
  parts_.push_back(
      {std::filesystem::path(path).filename().string(), std::move(file), parsed.data_begin});
  if (index == 0) {
    contents_ = std::move(parsed);
  } else {
    std::ranges::move(parsed.tensors, std::back_inserter(contents_.tensors));
  }
  return absl::OkStatus();
}

absl::Status GgufModel::CheckTensors() {
  std::ranges::sort(contents_.tensors, {}, &GgufTensor::name);
  const auto twice = std::ranges::adjacent_find(contents_.tensors, {}, &GgufTensor::name);
  if (twice != contents_.tensors.end()) {
    return InvalidArgument("{}: tensor {} is in {} too", contents_.name, PrintableName(twice->name),
                           parts_[std::next(twice)->part].name);
  }
  GgufFields fields(contents_);
  const auto found = static_cast<int64_t>(contents_.tensors.size());
  if (fields.Int(kSplitTensors, 0, INT64_MAX, found) != found) {
    fields.Fail(kSplitTensors, fmt::format("{}, the tensors of all files", found));
  }
  return fields.status();
}

absl::StatusOr<GgufModel> GgufModel::Open(const std::string& path) {
  GgufModel model;
  RETURN_IF_ERROR(model.AddPart(path, 0, 1));
  ASSIGN_OR_RETURN(const size_t count, CountParts(model.contents_));
  if (count == 1) return model;
  RETURN_IF_ERROR(CheckNumber(model.contents_, 0, count));
  for (size_t index = 1; index < count; index++) {
    ASSIGN_OR_RETURN(const std::string part, PartPath(path, index, count));
    RETURN_IF_ERROR(model.AddPart(part, index, count));
  }
  RETURN_IF_ERROR(model.CheckTensors());
  return model;
}

}  // namespace penstock
