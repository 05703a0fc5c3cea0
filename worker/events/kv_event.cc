#include "worker/events/kv_event.h"

#include "worker/events/msgpack.h"

namespace penstock {
namespace {

// Writes one event: its tag, then its fields in the order of vLLM's classes.
class EventWriter {
 public:
  EventWriter(MsgpackWriter& out, int32_t block_tokens, KvEventForm form)
      : out_(out), block_tokens_(block_tokens), form_(form) {}

  void operator()(const KvBlocksStored& stored) {
    Begin("BlockStored", 7);
    Hashes(stored.hashes);
    Name("parent_block_hash");
    stored.parent ? out_.Uint64(*stored.parent) : out_.Nil();
    Name("token_ids");
    out_.Array(static_cast<uint32_t>(stored.tokens.size()));
    for (const uint32_t token : stored.tokens) out_.Uint(token);
    Name("block_size");
    out_.Uint(static_cast<uint64_t>(block_tokens_));
    Name("lora_id");
    out_.Nil();
    Medium(stored.medium);
    Name("lora_name");
    out_.Nil();
  }
  void operator()(const KvBlocksRemoved& removed) {
    Begin("BlockRemoved", 2);
    Hashes(removed.hashes);
    Medium(removed.medium);
  }
  void operator()(const KvBlocksCleared&) { Begin("AllBlocksCleared", 0); }

 private:
  void Begin(std::string_view tag, uint32_t fields) {
    form_ == KvEventForm::kMap ? out_.Map(fields + 1) : out_.Array(fields + 1);
    Name("type");
    out_.Text(tag);
  }
  void Name(std::string_view name) {
    if (form_ == KvEventForm::kMap) out_.Text(name);
  }
  void Hashes(std::span<const uint64_t> hashes) {
    Name("block_hashes");
    out_.Array(static_cast<uint32_t>(hashes.size()));
    for (const uint64_t hash : hashes) out_.Uint64(hash);
  }
  void Medium(KvMedium medium) {
    Name("medium");
    out_.Text(KvMediumName(medium));
  }

  MsgpackWriter& out_;
  const int32_t block_tokens_;
  const KvEventForm form_;
};

}  // namespace

std::string_view KvMediumName(KvMedium medium) {
  switch (medium) {
    case KvMedium::kGpu:
      return "GPU";
    case KvMedium::kCpu:
      return "CPU";
    case KvMedium::kDisk:
      break;
  }
  return "DISK";
}

uint64_t ShortHash(const BlockId& id) {
  uint64_t hash = 0;
  for (const uint8_t byte : std::span(id.bytes).last<8>()) hash = hash << 8 | byte;
  return hash;
}

std::string EncodeKvEvents(std::span<const KvEvent> events, double unix_s, int32_t block_tokens,
                           KvEventForm form) {
  MsgpackWriter out;
  out.Array(3);
  out.Double(unix_s);
  out.Array(static_cast<uint32_t>(events.size()));
  for (const KvEvent& event : events) std::visit(EventWriter(out, block_tokens, form), event);
  out.Uint(0);  // A worker is one data-parallel rank.
  return out.Take();
}

}  // namespace penstock
