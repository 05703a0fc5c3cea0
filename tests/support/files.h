#pragma once

#include <fstream>
#include <sstream>
#include <string>

namespace penstock {

// The bytes of a file; empty when there is no such file.
inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace penstock
