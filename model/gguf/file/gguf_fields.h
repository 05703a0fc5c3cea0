#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/gguf/file/gguf_file.h"

namespace penstock {

// Typed, range-checked reads of a GGUF file's metadata. The first error is kept; later reads then
// return the minimum of the allowed range, and the caller checks status() once at the end. Absence
// is an error unless a default is given. One thread.
class GgufFields {
 public:
  explicit GgufFields(const GgufFile& file) : file_(file) {}  // which outlives this object

  bool Has(std::string_view key) const { return file_.Find(key) != nullptr; }
  int64_t Int(std::string_view key, int64_t min, int64_t max,
              std::optional<int64_t> absent = std::nullopt);
  // Int, or an array of equal integers: values of the layers.
  int64_t EqualInts(std::string_view key, int64_t min, int64_t max,
                    std::optional<int64_t> absent = std::nullopt);
  double Float(std::string_view key, double min, double max,
               std::optional<double> absent = std::nullopt);
  bool Bool(std::string_view key, bool absent);
  // Valid UTF-8 of at most `max_bytes`; any bytes otherwise.
  std::string String(std::string_view key, size_t max_bytes,
                     std::optional<std::string> absent = std::nullopt);
  // Arrays; an error if absent. Strings are valid UTF-8.
  std::vector<std::string_view> Strings(std::string_view key, size_t max_count, size_t max_bytes);
  std::vector<int64_t> Ints(std::string_view key, size_t count, int64_t min, int64_t max);
  std::vector<bool> Bools(std::string_view key, size_t count);
  std::vector<double> Floats(std::string_view key, size_t count, double min, double max);

  void Fail(std::string_view key, std::string_view allowed);  // "key <key> is <value>, allowed ..."
  void Refuse(std::string_view key, std::string_view reason);  // "key <key> <reason>"
  const absl::Status& status() const { return status_; }

 private:
  const GgufValue* Need(std::string_view key, bool has_default);
  const GgufValue* NeedArray(std::string_view key, size_t max_count);

  const GgufFile& file_;
  absl::Status status_;
};

}  // namespace penstock
