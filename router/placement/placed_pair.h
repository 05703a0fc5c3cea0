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

// One run of a worker process: it changes when the process restarts.
using WorkerLife = std::pair<std::string, uint64_t>;  // endpoint, incarnation

// Weighted failures of one session on each worker; 0 where absent.
using WorkerFailures = std::map<WorkerLife, int>;

// The load that one attempt has reserved on one worker, in this router's accounts. Released by
// Release or the destructor. Movable; one thread at a time.
class Reservation {
 public:
  Reservation() = default;
  explicit Reservation(std::function<void()> release) : release_(std::move(release)) {}
  Reservation(Reservation&& other) noexcept : release_(std::exchange(other.release_, nullptr)) {}
  Reservation& operator=(Reservation&& other) noexcept {
    if (this != &other) {
      Release();
      release_ = std::exchange(other.release_, nullptr);
    }
    return *this;
  }
  ~Reservation() { Release(); }

  void Release() {
    if (auto release = std::exchange(release_, nullptr)) release();
  }

 private:
  std::function<void()> release_;
};

// The two halves of a placed pair.
enum class Side { kPrefill, kDecode };

// A worker that was chosen for one side of an attempt.
struct PlacedWorker {
  WorkerLife life;
  uint32_t role_epoch = 0;  // the worker's role epoch when it was chosen
  std::string worker_id;
  std::shared_ptr<grpc::Channel> channel;  // shared with the fleet and with other sessions
  std::shared_ptr<DecodeLink> sessions;    // over `channel`; shared likewise
  Reservation reservation;
};

// The predictions for an attempt when it was placed, to compare with its outcome.
struct PlacementForecast {
  std::string endpoint;       // the worker that computes the prompt
  uint32_t index_worker = 0;  // that worker's number in the PrefixView
  KvFormat format;
  std::vector<BlockId> ids;  // ids of the prompt's full blocks
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;  // prompt tokens that need not be computed
  uint32_t held_tokens = 0;    // prompt tokens that the decode worker has
  PlacementTerms terms;
  bool local_prefill = false;  // the decode worker computes the prompt
  TimePoint placed_at;
  // The prefix that is read from another worker's store:
  WorkerLife source;
  std::optional<uint32_t> source_index;  // the source's number in the PrefixView
  bool source_on_device = false;         // no part of it must be restored from a slower tier
  uint32_t fetched_tokens = 0;           // 0: nothing is read
};

// The workers chosen for one attempt, with a reservation on each.
struct PlacedPair {
  bool local_prefill = false;  // the decode worker computes the prompt's end; `prefill` is empty
  bool alone = false;          // the decode worker computes the whole prompt: nobody else is ready
  PlacedWorker prefill;
  PlacedWorker decode;
  KvFormat format;
  std::optional<v1::PeerPrefix> peer;                  // the prefix that is read from a peer first
  std::shared_ptr<const PlacementForecast> forecast;   // shared with the attempt's calls
  std::shared_ptr<const v1::Explanation> explanation;  // nullptr: not requested
};

}  // namespace penstock
