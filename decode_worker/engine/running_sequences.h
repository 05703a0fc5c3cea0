#pragma once

#include <map>
#include <vector>

#include "decode_worker/engine/decode_scheduler.h"
#include "decode_worker/engine/decode_sequence.h"

namespace penstock {

// The sequences of a decode engine whose KV is in pages. They take turns in its steps, except those
// that rest: frozen ones, and beams that wait for the others of their search. Used by the engine's
// thread only.
class RunningSequences {
 public:
  using Map = std::map<uint64_t, DecodeSequence>;  // by id: the oldest first

  explicit RunningSequences(size_t batch_max) : scheduler_(batch_max) {}

  uint64_t NewId() { return next_id_++; }
  // Adds sequences with ids; frozen ones rest.
  void Enter(std::vector<DecodeSequence> sequences);
  void Rest(uint64_t id) { scheduler_.Remove(id); }
  void EndRest(uint64_t id) { scheduler_.Add(id); }
  // The next step's, the oldest first. They take turns, or are those whose pages are in memory
  // (DecodeScheduler::NextWithin).
  std::vector<uint64_t> NextBatch(const PagedKv& kv);

  bool empty() const { return sequences_.empty(); }
  size_t size() const { return sequences_.size(); }
  bool Has(uint64_t id) const { return sequences_.contains(id); }
  DecodeSequence& at(uint64_t id) { return sequences_.at(id); }
  Map& all() { return sequences_; }
  DecodeSequence* Find(const HandoffKey& key, uint32_t choice);  // null: it does not run
  std::vector<uint64_t> IdsOf(const HandoffKey& key) const;      // of a session's sequences
  // The blocks of all of the session's sequences, each once.
  int64_t BlocksHeld(const DecodeSession& session) const;

  void Remove(uint64_t id);
  // Takes the session's sequences out, by ascending ids.
  std::vector<DecodeSequence> Take(const DecodeSession& session);
  Map TakeAll();

 private:
  DecodeScheduler scheduler_;
  Map sequences_;
  uint64_t next_id_ = 0;
};

}  // namespace penstock
