#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "kvstore/names/block_hash.h"
#include "proto/inference.pb.h"
#include "proto/worker.pb.h"
#include "router/placement/placement.h"

namespace grpc {
class Channel;
}

namespace penstock {

class DecodeLink;

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

// The two halves of a placed pair.
enum class Side { kPrefill, kDecode };

struct PlacedWorker {
  WorkerLife life;
  uint32_t role_epoch = 0;  // that it had when it was chosen
  std::string worker_id;
  std::shared_ptr<grpc::Channel> channel;  // shared with the fleet and with other sessions
  std::shared_ptr<DecodeLink> sessions;    // likewise; over `channel`
  Booking booking;
};

// What was expected of an attempt when it was placed, to compare with what comes.
struct PlacementForecast {
  std::string endpoint;       // of who computes the prompt
  uint32_t index_worker = 0;  // its number in the PrefixView
  KvFormat format;
  std::vector<BlockId> ids;  // of the prompt's full blocks
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;
  uint32_t held_tokens = 0;  // on the decode worker
  PlacementTerms terms;
  bool stays = false;  // the decode worker is the one that computes
  TimePoint placed_at;
  // Of a prefix that is read from another worker's store:
  WorkerLife source;
  std::optional<uint32_t> source_index;  // in the PrefixView
  bool source_on_device = false;         // none of it is to be restored there first
  uint32_t fetched_tokens = 0;           // 0: nothing is read
};

// The workers chosen for one attempt, booked.
struct PlacedPair {
  bool stays = false;  // the decode worker computes the prompt's end: `prefill` is empty
  PlacedWorker prefill;
  PlacedWorker decode;
  KvFormat format;
  std::optional<v1::PeerPrefix> peer;                  // what the prefill worker is to read first
  std::shared_ptr<const PlacementForecast> forecast;   // shared with who hears of the outcome
  std::shared_ptr<const v1::Explanation> explanation;  // null: not asked for
};

}  // namespace penstock
