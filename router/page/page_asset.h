#pragma once

#include <span>
#include <string_view>

namespace penstock {

// A file of the page. cmake/EmbedPage.cmake builds it into the binary.
struct PageAsset {
  std::string_view path;  // of the request
  std::string_view type;  // Content-Type
  std::string_view body;
};

std::span<const PageAsset> PageAssets();

}  // namespace penstock
