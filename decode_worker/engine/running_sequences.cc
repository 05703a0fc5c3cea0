#include "decode_worker/engine/running_sequences.h"

#include <absl/container/flat_hash_set.h>

#include <algorithm>
#include <utility>

#include "kernels/kv_pager.h"
#include "model/forward/step_selection.h"

namespace penstock {

void RunningSequences::Enter(std::vector<DecodeSequence> sequences) {
  for (DecodeSequence& sequence : sequences) {
    if (sequence.freezes.empty()) scheduler_.Add(sequence.id);
    sequences_.emplace(sequence.id, std::move(sequence));
  }
}

std::vector<uint64_t> RunningSequences::NextBatch(const PagedKv& kv) {
  const auto bytes_wanted = [&](uint64_t id) {
    const DecodeSequence& sequence = sequences_.at(id);
    return StepSelection::BytesWanted(kv.layout, sequence.tokens_held + 1, sequence.Selection());
  };
  std::vector<uint64_t> batch = kv.pager == nullptr
                                    ? scheduler_.Next()
                                    : scheduler_.NextWithin(kv.pager->memory_bytes(), bytes_wanted);
  std::sort(batch.begin(), batch.end());
  return batch;
}

DecodeSequence* RunningSequences::Find(const HandoffKey& key, uint32_t choice) {
  const auto found = std::find_if(sequences_.begin(), sequences_.end(), [&](const auto& entry) {
    return entry.second.choice == choice && entry.second.session->key == key;
  });
  return found == sequences_.end() ? nullptr : &found->second;
}

std::vector<uint64_t> RunningSequences::IdsOf(const HandoffKey& key) const {
  std::vector<uint64_t> ids;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.session->key == key) ids.push_back(id);
  }
  return ids;
}

int64_t RunningSequences::BlocksHeld(const DecodeSession& session) const {
  absl::flat_hash_set<uint32_t> blocks;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.session.get() != &session) continue;
    blocks.insert(sequence.table.begin() + static_cast<std::ptrdiff_t>(sequence.passed),
                  sequence.table.end());
  }
  return static_cast<int64_t>(blocks.size());
}

void RunningSequences::Remove(uint64_t id) {
  scheduler_.Remove(id);
  sequences_.erase(id);
}

std::vector<DecodeSequence> RunningSequences::Take(const DecodeSession& session) {
  std::vector<DecodeSequence> taken;
  for (auto it = sequences_.begin(); it != sequences_.end();) {
    if (it->second.session.get() != &session) {
      ++it;
      continue;
    }
    scheduler_.Remove(it->first);
    taken.push_back(std::move(it->second));
    it = sequences_.erase(it);
  }
  return taken;
}

RunningSequences::Map RunningSequences::TakeAll() {
  for (const auto& [id, sequence] : sequences_) scheduler_.Remove(id);
  return std::exchange(sequences_, {});
}

}  // namespace penstock
