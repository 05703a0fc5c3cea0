#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/status.h"

namespace penstock {

// A node of a parsed file together with its path, so that every error names the field. Absent
// fields and JSON null both count as not present. The JSON must outlive it.
class JsonField {
 public:
  JsonField(const nlohmann::json& node, std::string path) : node_(&node), path_(std::move(path)) {}

  bool present() const { return node_ != nullptr && !node_->is_null(); }
  bool is_string() const { return present() && node_->is_string(); }
  bool is_object() const { return present() && node_->is_object(); }
  bool is_array() const { return present() && node_->is_array(); }
  size_t size() const { return present() ? node_->size() : 0; }
  const nlohmann::json& json() const { return *node_; }
  const std::string& path() const { return path_; }

  JsonField operator[](std::string_view key) const;  // of an object; not present if missing
  JsonField operator[](size_t index) const;          // of an array; index below size()

  absl::StatusOr<std::string> String() const;
  absl::StatusOr<std::string> StringOr(std::string_view missing) const;
  absl::StatusOr<bool> BoolOr(bool missing) const;
  // A whole number in 0..limit.
  absl::StatusOr<uint32_t> Index(uint32_t limit) const;
  absl::Status ExpectObject() const;
  absl::Status ExpectArray() const;

  // Returns e.g. "pre_tokenizer.type is "Foo", which is not supported; supported: ...".
  absl::Status Unsupported(std::string_view supported) const;

 private:
  JsonField(const nlohmann::json* node, std::string path) : node_(node), path_(std::move(path)) {}
  absl::Status Expected(std::string_view what) const;

  const nlohmann::json* node_;
  std::string path_;
};

// Parses JSON. Returns INVALID_ARGUMENT with the parser's position; `name` is the file's name.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view name);

}  // namespace penstock
