#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "router/placement.h"

namespace grpc {
class Channel;
}

namespace penstock {

// One life of a worker process.
using WorkerLife = std::pair<std::string, uint64_t>;  // endpoint, incarnation

// How badly each worker has failed one session; 0 where absent.
using WorkerFailures = std::map<WorkerLife, int>;

// What is set aside for one attempt on one worker; given back when it goes. Movable.
class Booking {
 public:
  Booking() = default;
  explicit Booking(std::function<void()> release) : release_(std::move(release)) {}
  Booking(Booking&& other) noexcept : release_(std::exchange(other.release_, nullptr)) {}
  Booking& operator=(Booking&& other) noexcept {
    if (this != &other) {
      Release();
      release_ = std::exchange(other.release_, nullptr);
    }
    return *this;
  }
  ~Booking() { Release(); }

  void Release() {
    if (auto release = std::exchange(release_, nullptr)) release();
  }

 private:
  std::function<void()> release_;
};

struct PlacedWorker {
  WorkerLife life;
  std::string worker_id;
  std::shared_ptr<grpc::Channel> channel;  // shared with the fleet and with other sessions
  Booking booking;
};

// The workers chosen for one attempt, booked.
struct PlacedPair {
  PlacedWorker prefill;
  PlacedWorker decode;
  KvFormat format;
};

}  // namespace penstock
