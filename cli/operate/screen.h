#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace penstock {

struct ScreenSize {
  size_t columns = 80;
  size_t rows = 24;
};

// The size of the terminal that `descriptor` is; nullopt when it is none.
std::optional<ScreenSize> TerminalSize(int descriptor);

// `text` for a screen of that size: lines are cut at its width, a character to a column, and the
// last row says how many lines have no room. Pure.
std::string FitToScreen(std::string_view text, const ScreenSize& size);

// Draws on the terminal's alternate screen, so that the former content is back at the end. Main
// thread.
class AlternateScreen {
 public:
  AlternateScreen();
  ~AlternateScreen();
  AlternateScreen(const AlternateScreen&) = delete;
  AlternateScreen& operator=(const AlternateScreen&) = delete;

  void Draw(std::string_view text) const;
};

}  // namespace penstock
