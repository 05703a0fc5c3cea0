#pragma once

#include <string>
#include <vector>

#include "base/mapped_file.h"
#include "base/status.h"
#include "model/gguf/file/gguf_file.h"

namespace penstock {

// A GGUF model: one file, or the files that one was split into ("x-00001-of-00003.gguf" names the
// first, which has the metadata). The files stay mapped during the object's lifetime. Immutable.
class GgufModel {
 public:
  // `path` is the file, or the first one. NOT_FOUND names a missing file; other errors are those of
  // ParseGguf, or name the keys "split.*" where the files do not fit together.
  static absl::StatusOr<GgufModel> Open(const std::string& path);

  struct Part {
    std::string name;  // without directories
    MappedFile file;
    size_t data_begin = 0;  // GgufFile::data_begin
  };
  const std::vector<Part>& parts() const { return parts_; }
  // Moves the parts out; contents() stay valid as long as these.
  std::vector<Part> TakeParts() { return std::move(parts_); }

  // The metadata of the first part and the tensors of all; GgufTensor::part says which.
  const GgufFile& contents() const { return contents_; }

 private:
  GgufModel() = default;
  absl::Status AddPart(const std::string& path, size_t index, size_t count);
  absl::Status CheckTensors();

  std::vector<Part> parts_;
  GgufFile contents_;
};

}  // namespace penstock
