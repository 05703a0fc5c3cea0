#include "cli/client/line_reader.h"

#include <histedit.h>
#include <poll.h>
#include <unistd.h>
#include <utf8proc.h>

#include <array>
#include <clocale>
#include <cstdio>
#include <cwchar>

#include "cli/shell/interrupts.h"

namespace penstock {
namespace {

constexpr size_t kLineMax = size_t{1} << 20;

// Bytes of standard input that does not miss a signal while it waits.
class Input {
 public:
  explicit Input(Interrupts& interrupts) : interrupts_(interrupts) {}

  // 1: there is a byte; 0: the end; -1: a signal, see signal().
  int Get(char* byte) {
    if (at_ == size_) {
      const int filled = Fill();
      if (filled <= 0) return filled;
    }
    *byte = buffer_[at_++];
    return 1;
  }
  int signal() const { return signal_; }

 private:
  int Fill() {
    for (;;) {
      pollfd waiting[2] = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                           {.fd = interrupts_.fd(), .events = POLLIN, .revents = 0}};
      if (poll(waiting, 2, -1) < 0) continue;
      if (waiting[1].revents != 0) {
        signal_ = interrupts_.Take();
        if (signal_ != 0) return -1;
      }
      if (waiting[0].revents == 0) continue;
      const ssize_t got = read(STDIN_FILENO, buffer_.data(), buffer_.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return 0;
      at_ = 0;
      size_ = static_cast<size_t>(got);
      return 1;
    }
  }

  Interrupts& interrupts_;
  std::array<char, 4096> buffer_;
  size_t at_ = 0;
  size_t size_ = 0;
  int signal_ = 0;
};

class PlainReader final : public LineReader {
 public:
  explicit PlainReader(Interrupts& interrupts) : input_(interrupts) {}

  ReadResult Read() override {
    ReadResult result;
    char byte = 0;
    for (;;) {
      const int got = input_.Get(&byte);
      if (got < 0)
        return {.kind = ReadResult::Kind::kSignal, .line = "", .signal = input_.signal()};
      if (got == 0 && result.line.empty()) return result;
      if (got == 0 || byte == '\n') break;
      if (result.line.size() < kLineMax) result.line += byte;
    }
    result.kind = ReadResult::Kind::kLine;
    return result;
  }

 private:
  Input input_;
};

// libedit on a terminal, its keys taken from Input so that a signal ends the reading.
class EditingReader final : public LineReader {
 public:
  explicit EditingReader(Interrupts& interrupts) : input_(interrupts) {
    std::setlocale(LC_CTYPE, "");
    if (MB_CUR_MAX == 1) std::setlocale(LC_CTYPE, "C.UTF-8");
    history_ = history_init();
    edit_ = el_init("penstock", stdin, stdout, stderr);
    HistEvent event;
    history(history_, &event, H_SETSIZE, 1000);
    history(history_, &event, H_SETUNIQUE, 1);
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(edit_, EL_PROMPT, &Prompt);
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_HIST, history, history_);
    el_set(edit_, EL_GETCFN, &NextKey);
  }
  ~EditingReader() override {
    el_end(edit_);
    history_end(history_);
  }

  ReadResult Read() override {
    interrupted_ = false;
    int length = 0;
    // Before the prompt, and not only before the first key as el_gets would: a Ctrl-D that comes in
    // between would be the terminal's, and lost.
    el_set(edit_, EL_PREP_TERM, 1);
    const char* line = el_gets(edit_, &length);
    if (interrupted_) {
      const LineInfo* typed = el_line(edit_);
      std::string text(typed->buffer, static_cast<size_t>(typed->lastchar - typed->buffer));
      el_reset(edit_);
      return {
          .kind = ReadResult::Kind::kSignal, .line = std::move(text), .signal = input_.signal()};
    }
    if (line == nullptr || length <= 0) return {};
    HistEvent event;
    if (length > 1) history(history_, &event, H_ENTER, line);
    std::string text(line, static_cast<size_t>(length));
    if (text.ends_with('\n')) text.pop_back();
    return {.kind = ReadResult::Kind::kLine, .line = std::move(text), .signal = 0};
  }

 private:
  static char* Prompt(EditLine*) {
    static char prompt[] = "> ";
    return prompt;
  }

  // libedit's protocol: 1 for a key, 0 at the end, -1 for an error.
  static int NextKey(EditLine* edit, wchar_t* key) {
    EditingReader* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    std::mbstate_t state{};
    for (;;) {
      char byte = 0;
      const int got = self->input_.Get(&byte);
      if (got <= 0) {
        self->interrupted_ = got < 0;
        return got;
      }
      const size_t used = std::mbrtowc(key, &byte, 1, &state);
      if (used == static_cast<size_t>(-2)) continue;  // more bytes of the same character
      if (used == static_cast<size_t>(-1))
        state = {};  // not UTF-8: dropped
      else
        return 1;
    }
  }

  Input input_;
  History* history_;
  EditLine* edit_;
  bool interrupted_ = false;
};

}  // namespace

std::unique_ptr<LineReader> MakeLineReader(Interrupts& interrupts) {
  if (isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
    return std::make_unique<EditingReader>(interrupts);
  }
  return std::make_unique<PlainReader>(interrupts);
}

absl::StatusOr<std::string> ReadStandardInput(Interrupts& interrupts, size_t max, int* signal) {
  Input input(interrupts);
  std::string text;
  char byte = 0;
  int got = 0;
  while ((got = input.Get(&byte)) > 0) {
    if (text.size() == max) return OutOfRange("the input is larger than {} bytes, the limit", max);
    text += byte;
  }
  *signal = got < 0 ? input.signal() : 0;
  if (got < 0) return Cancelled("stopped");
  return text;
}

bool IsUtf8(const std::string& text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  utf8proc_ssize_t left = static_cast<utf8proc_ssize_t>(text.size());
  while (left > 0) {
    utf8proc_int32_t code_point = 0;
    const utf8proc_ssize_t used = utf8proc_iterate(bytes, left, &code_point);
    if (used <= 0) return false;
    bytes += used;
    left -= used;
  }
  return true;
}

}  // namespace penstock
