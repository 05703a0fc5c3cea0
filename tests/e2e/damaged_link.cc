// Preloaded into a worker by a test, this is a link that damages data: while the file that
// PENSTOCK_DAMAGE names is there, one bit of every large buffer that the process sends over a
// socket is another one when it arrives. KV goes in large buffers, and calls between processes do
// not.
#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace {

constexpr size_t kLargeBytes = 8 << 10;

bool IsOn() {
  const char* file = std::getenv("PENSTOCK_DAMAGE");
  return file != nullptr && access(file, F_OK) == 0;
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
  if (size < kLargeBytes || !IsOn()) return next(socket, bytes, size, flags);
  return next(socket, Damaged(bytes, size).data(), size, flags);
}

extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  static auto* const next = Next<decltype(sendmsg)>("sendmsg");
  iovec* const parts = message->msg_iov;
  iovec* const large = std::find_if(parts, parts + message->msg_iovlen,
                                    [](const iovec& part) { return part.iov_len >= kLargeBytes; });
  if (large == parts + message->msg_iovlen || !IsOn()) return next(socket, message, flags);
  std::vector<char> copy = Damaged(large->iov_base, large->iov_len);
  std::vector<iovec> replaced(parts, parts + message->msg_iovlen);
  replaced[static_cast<size_t>(large - parts)].iov_base = copy.data();
  msghdr changed = *message;
  changed.msg_iov = replaced.data();
  return next(socket, &changed, flags);
}
