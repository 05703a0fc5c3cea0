#pragma once

#include <atomic>
#include <functional>
#include <list>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace penstock {

// Somebody on the path: forwards every connection to `target`, and may read and change what passes.
class TcpProxy {
 public:
  struct Chunk {
    size_t connection = 0;   // in the order of accepting
    bool to_target = false;  // the direction
    size_t offset = 0;       // of the first byte, in this direction
    std::span<char> bytes;
  };
  // Called on threads of the proxy.
  using Inspect = std::function<void(const Chunk&)>;

  TcpProxy(const std::string& target, Inspect inspect);
  ~TcpProxy() { Stop(); }
  TcpProxy(const TcpProxy&) = delete;
  TcpProxy& operator=(const TcpProxy&) = delete;

  std::string endpoint() const { return endpoint_; }
  size_t connections() const { return connections_; }
  // Ends all connections, at once and for good. Any thread.
  void CutAll() EXCLUDES(mutex_);
  // No inspection follows.
  void Stop();

 private:
  void Accept();
  void Forward(size_t connection, bool to_target, int from, int to);

  const std::string target_;
  const Inspect inspect_;
  int listen_fd_ = -1;
  std::string endpoint_;
  std::atomic<size_t> connections_{0};
  std::atomic<bool> cut_{false};
  Mutex mutex_;
  std::vector<int> fds_ GUARDED_BY(mutex_);
  std::list<std::thread> threads_;  // of the accepting thread, until Stop
  std::thread accepting_;
};

// Connects, sends `bytes`, and expects that the other end closes, or closes already while it sends.
void ExpectClosesAfter(const std::string& endpoint, const std::string& bytes);

}  // namespace penstock
