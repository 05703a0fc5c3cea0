#include "model/gguf/model_text.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <system_error>

#include "base/mapped_file.h"
#include "model/gguf/file/gguf_model.h"
#include "model/gguf/gguf_config.h"
#include "model/gguf/gguf_embedding.h"
#include "model/gguf/gguf_tokenizer.h"

namespace penstock {
namespace {

constexpr std::string_view kExtension = ".gguf";

absl::StatusOr<std::string> ReadGgufText(const std::string& path, std::string_view name) {
  ASSIGN_OR_RETURN(const GgufModel model, GgufModel::Open(path));
  if (name == "config.json") return GgufConfigJson(model.contents());
  if (name == "tokenizer.json") return GgufTokenizerJson(model.contents());
  if (name == "tokenizer_config.json") return GgufTokenizerConfigJson(model.contents());
  if (name == "modules.json") return GgufModulesJson(model.contents());
  if (name == "1_Pooling/config.json") return GgufPoolingJson(model.contents());
  return NotFound("{} has nothing in place of {}", path, name);
}

// "x-00001-of-00003" without what follows "x".
std::string_view WithoutPartNumber(std::string_view stem) {
  constexpr std::string_view kPattern = "-00000-of-00000";
  if (stem.size() <= kPattern.size()) return stem;
  const std::string_view end = stem.substr(stem.size() - kPattern.size());
  const bool numbered = std::ranges::equal(end, kPattern, [](char c, char expected) {
    return expected == '0' ? std::isdigit(static_cast<unsigned char>(c)) != 0 : c == expected;
  });
  return numbered ? stem.substr(0, stem.size() - kPattern.size()) : stem;
}

}  // namespace

bool IsGgufPath(std::string_view model) { return model.ends_with(kExtension); }

std::string DefaultModelName(const std::string& model) {
  const std::filesystem::path path = std::filesystem::path(model).lexically_normal();
  std::string name =
      path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  if (!IsGgufPath(name)) return name;
  const auto stem = std::string_view(name).substr(0, name.size() - kExtension.size());
  return std::string(WithoutPartNumber(stem));
}

absl::Status CheckModelExists(const std::string& model) {
  std::error_code error;
  if (std::filesystem::is_directory(model, error)) return absl::OkStatus();
  if (IsGgufPath(model) && std::filesystem::exists(model, error)) return absl::OkStatus();
  if (std::filesystem::exists(model, error)) {
    return NotFound("model={}: it is neither a checkpoint's directory nor a file named *.gguf",
                    model);
  }
  return NotFound(
      "model={}: there is no such directory and no such GGUF file; models are not downloaded: get "
      "the checkpoint first",
      model);
}

absl::StatusOr<std::string> ReadModelText(const std::string& model, std::string_view name) {
  RETURN_IF_ERROR(CheckModelExists(model));
  std::error_code error;
  if (!std::filesystem::is_directory(model, error)) return ReadGgufText(model, name);
  ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(fmt::format("{}/{}", model, name)));
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

}  // namespace penstock
