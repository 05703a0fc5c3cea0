#include "model/tokenizer/tokenizer_json.h"

namespace penstock {
namespace {

// Formats a value for an error message. Nested values are shortened, so that no message is a page
// long.
std::string Shown(const nlohmann::json* node) {
  if (node == nullptr) return "missing";
  if (node->is_structured()) return node->is_array() ? "an array" : "an object";
  std::string text = node->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 80) + "...";
  return text;
}

}  // namespace

JsonField JsonField::operator[](std::string_view key) const {
  std::string path = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  if (!is_object()) return JsonField(nullptr, std::move(path));
  const auto found = node_->find(std::string(key));
  return JsonField(found == node_->end() ? nullptr : &*found, std::move(path));
}

JsonField JsonField::operator[](size_t index) const {
  return JsonField(&(*node_)[index], fmt::format("{}[{}]", path_, index));
}

absl::StatusOr<std::string> JsonField::String() const {
  if (!is_string()) return Expected("a string");
  return node_->get<std::string>();
}

absl::StatusOr<std::string> JsonField::StringOr(std::string_view missing) const {
  if (!present()) return std::string(missing);
  return String();
}

absl::StatusOr<bool> JsonField::BoolOr(bool missing) const {
  if (!present()) return missing;
  if (!node_->is_boolean()) return Expected("true or false");
  return node_->get<bool>();
}

absl::StatusOr<uint32_t> JsonField::Index(uint32_t limit) const {
  if (!present() || !node_->is_number_unsigned() || node_->get<uint64_t>() > limit) {
    return Expected(fmt::format("a whole number of 0 to {}", limit));
  }
  return node_->get<uint32_t>();
}

absl::Status JsonField::ExpectObject() const {
  return is_object() ? absl::OkStatus() : Expected("an object");
}

absl::Status JsonField::ExpectArray() const {
  return is_array() ? absl::OkStatus() : Expected("an array");
}

absl::Status JsonField::Unsupported(std::string_view supported) const {
  return InvalidArgument("{} is {}, which is not supported; supported: {}", path_, Shown(node_),
                         supported);
}

absl::Status JsonField::Expected(std::string_view what) const {
  return InvalidArgument("{} is {}, expected {}", path_, Shown(node_), what);
}

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view name) {
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& error) {
    return InvalidArgument("{} is not JSON: {}", name, error.what());
  }
}

}  // namespace penstock
