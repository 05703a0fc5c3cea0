#include "cli/operate/screen.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace penstock {
namespace {

// xterm's control sequences.
constexpr std::string_view kEnter = "\x1b[?1049h\x1b[?25l";  // alternate screen, no cursor
constexpr std::string_view kLeave = "\x1b[?25h\x1b[?1049l";
constexpr std::string_view kHome = "\x1b[H\x1b[J";  // to the first cell, and erase all

void Write(std::string_view text) {
  fwrite(text.data(), 1, text.size(), stdout);
  fflush(stdout);
}

bool StartsCharacter(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }

// The first `columns` characters of a line of UTF-8.
std::string_view Cut(std::string_view line, size_t columns) {
  size_t characters = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (StartsCharacter(line[i]) && ++characters > columns) return line.substr(0, i);
  }
  return line;
}

}  // namespace

std::optional<ScreenSize> TerminalSize(int descriptor) {
  winsize size{};
  if (isatty(descriptor) == 0) return std::nullopt;
  if (ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) {
    return ScreenSize{};
  }
  return ScreenSize{size.ws_col, size.ws_row};
}

std::string FitToScreen(std::string_view text, const ScreenSize& size) {
  if (text.ends_with('\n')) text.remove_suffix(1);
  const size_t lines = 1 + static_cast<size_t>(std::ranges::count(text, '\n'));
  const size_t shown = lines <= size.rows ? lines : size.rows - 1;
  std::string fitted;
  for (size_t i = 0; i < shown; ++i) {
    const size_t end = std::min(text.find('\n'), text.size());
    if (i > 0) fitted += '\n';
    fitted += Cut(text.substr(0, end), size.columns);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  if (shown < lines) {
    fitted += Cut(fmt::format("\n({} more lines)", lines - shown), size.columns + 1);
  }
  return fitted;
}

AlternateScreen::AlternateScreen() { Write(kEnter); }
AlternateScreen::~AlternateScreen() { Write(kLeave); }

void AlternateScreen::Draw(std::string_view text) const { Write(std::string(kHome).append(text)); }

}  // namespace penstock
