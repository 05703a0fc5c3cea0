// Preloaded into a worker by a test, this is a bad link: while the file that PENSTOCK_DAMAGE names
// is there, its first letter says what happens to every large buffer that the process sends over a
// socket. KV goes in large buffers, and calls between processes do not.
//   c      the connection is cut
//   s      the buffer is sent late
//   other, or an empty file: one bit is another one when it arrives
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <vector>

namespace {

constexpr size_t kLargeBytes = 8 << 10;
constexpr useconds_t kLateMicroseconds = 20'000;

enum class Fault { kNone, kDamage, kCut, kSlow };

Fault FaultNow() {
  const char* name = std::getenv("PENSTOCK_DAMAGE");
  const int file = name == nullptr ? -1 : open(name, O_RDONLY | O_CLOEXEC);
  if (file < 0) return Fault::kNone;
  char letter = 0;
  const ssize_t bytes = read(file, &letter, 1);
  close(file);
  if (bytes == 1 && letter == 'c') return Fault::kCut;
  if (bytes == 1 && letter == 's') return Fault::kSlow;
  return Fault::kDamage;
}

// True where the buffer is to be damaged, false where it goes as it is; std::nullopt: it does not
// go.
std::optional<bool> Suffer(int socket) {
  switch (FaultNow()) {
    case Fault::kNone:
      return false;
    case Fault::kDamage:
      return true;
    case Fault::kSlow:
      usleep(kLateMicroseconds);
      return false;
    case Fault::kCut:
      shutdown(socket, SHUT_RDWR);
      errno = ECONNRESET;
      return std::nullopt;
  }
  return false;
}

template <class Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

std::vector<char> Damaged(const void* bytes, size_t size) {
  const auto* first = static_cast<const char*>(bytes);
  std::vector<char> copy(first, first + size);
  copy[size / 2] ^= 1;
  return copy;
}

}  // namespace

extern "C" ssize_t send(int socket, const void* bytes, size_t size, int flags) {
  static auto* const next = Next<decltype(send)>("send");
  if (size < kLargeBytes) return next(socket, bytes, size, flags);
  const std::optional<bool> damaged = Suffer(socket);
  if (!damaged.has_value()) return -1;
  if (!*damaged) return next(socket, bytes, size, flags);
  return next(socket, Damaged(bytes, size).data(), size, flags);
}

extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  static auto* const next = Next<decltype(sendmsg)>("sendmsg");
  iovec* const parts = message->msg_iov;
  iovec* const large = std::find_if(parts, parts + message->msg_iovlen,
                                    [](const iovec& part) { return part.iov_len >= kLargeBytes; });
  if (large == parts + message->msg_iovlen) return next(socket, message, flags);
  const std::optional<bool> damaged = Suffer(socket);
  if (!damaged.has_value()) return -1;
  if (!*damaged) return next(socket, message, flags);
  std::vector<char> copy = Damaged(large->iov_base, large->iov_len);
  std::vector<iovec> replaced(parts, parts + message->msg_iovlen);
  replaced[static_cast<size_t>(large - parts)].iov_base = copy.data();
  msghdr changed = *message;
  changed.msg_iov = replaced.data();
  return next(socket, &changed, flags);
}
