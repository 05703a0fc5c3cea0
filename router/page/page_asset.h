#pragma once

#include <span>
#include <string_view>

namespace penstock {

// A file of the page, built into the binary (cmake/EmbedPage.cmake).
struct PageAsset {
  std::string_view path;  // that it is asked by
  std::string_view type;  // its Content-Type
  std::string_view body;
};

std::span<const PageAsset> PageAssets();

}  // namespace penstock
