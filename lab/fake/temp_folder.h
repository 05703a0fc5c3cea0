#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include "base/check.h"

namespace penstock {

// A new folder of a test or benchmark, which is removed with the object.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = std::filesystem::temp_directory_path() / "penstock-XXXXXX";
    PENSTOCK_CHECK(mkdtemp(pattern.data()) != nullptr, "(no folder for temporary files)");
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;  // A test may have taken away its rights.
    std::filesystem::permissions(path_, std::filesystem::perms::owner_all, ignored);
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }

  // Writes a file of the folder as editors and ConfigMaps do: a new file takes the name. Returns
  // its path.
  std::string Write(const std::string& name, std::string_view bytes) const {
    std::string path = path_ + "/" + name;
    std::ofstream(path + ".new", std::ios::binary) << bytes;
    std::filesystem::rename(path + ".new", path);
    return path;
  }

 private:
  std::string path_;
};

}  // namespace penstock
