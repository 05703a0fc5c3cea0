#pragma once

#include <algorithm>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace penstock {

// The layers of a model that have a sliding window while its other layers see all tokens: Gemma 2
// and 3, gpt-oss, Qwen2 with a window in its upper layers. Or the second copies of layers that are
// stored twice (KvPageFormat::span).
struct WindowGroup {
  static constexpr size_t kLayersMax = 1024;

  // The tokens that a query of these layers sees at most, its own included. 0: there are none.
  int32_t window = 0;
  std::bitset<kLayersMax> layers = {};

  bool empty() const { return window == 0; }
  bool Has(int32_t layer) const { return layers.test(static_cast<size_t>(layer)); }
  int32_t size() const { return static_cast<int32_t>(layers.count()); }
  bool operator==(const WindowGroup&) const = default;
};

// The group of a model whose layers have these windows; 0: a layer sees all tokens. Empty unless
// some layers have one and the others have none.
inline WindowGroup WindowGroupOf(std::span<const int32_t> windows) {
  const auto none = std::count(windows.begin(), windows.end(), 0);
  if (none == 0 || none == std::ssize(windows)) return {};
  WindowGroup group{.window = *std::max_element(windows.begin(), windows.end())};
  for (size_t layer = 0; layer < windows.size(); ++layer) {
    group.layers.set(layer, windows[layer] > 0);
  }
  return group;
}

// The memory of a window group's layers, apart from that of the other layers. A block id names a
// place in the others' memory; here a block has a row only while some sequence's window needs it.
struct WindowRowsView {
  std::byte* arena = nullptr;     // of rows
  size_t row_stride = 0;          // bytes
  size_t block_stride = 0;        // bytes, in the memory of the other layers
  const uint32_t* row = nullptr;  // by block; `no_row`: it has none
  uint32_t no_row = 0;
  std::vector<size_t> place = {};  // of each layer in its block or row, in bytes
};

}  // namespace penstock
