#include "router/index/block_directory.h"

#include <cstdlib>
#include <new>

#include "base/check.h"

namespace penstock {
namespace {

constexpr uint32_t kLeastCapacity = 16;
// The table is rebuilt when 7/8 of its slots are used, to a load of about 5/8: about 10.7 bytes an
// entry on average.
constexpr uint64_t kFullEighths = 7;

uint64_t EntryOf(uint32_t tag, BlockPlace place) {
  return static_cast<uint64_t>(tag) << 32 | place.Packed();
}

}  // namespace

BlockDirectory::BlockDirectory(EpochDomain& epochs)
    : epochs_(epochs), table_(NewTable(kLeastCapacity)) {}

BlockDirectory::~BlockDirectory() { std::free(table_.load()); }

BlockDirectory::Table* BlockDirectory::NewTable(uint32_t capacity) {
  void* memory = std::malloc(sizeof(Table) + capacity * sizeof(std::atomic<uint64_t>));
  PENSTOCK_CHECK(memory != nullptr, "out of memory");
  auto* table = new (memory) Table{.capacity = capacity};
  for (uint32_t i = 0; i < capacity; ++i) new (&table->slots()[i]) std::atomic<uint64_t>(kEmpty);
  return table;
}

void BlockDirectory::Put(Table& table, uint64_t entry) {
  uint32_t i = table.HomeOf(static_cast<uint32_t>(entry >> 32));
  while (table.slots()[i].load(std::memory_order_relaxed) != kEmpty) {
    i = i + 1 == table.capacity ? 0 : i + 1;
  }
  table.slots()[i].store(entry, std::memory_order_release);
}

void BlockDirectory::Insert(uint32_t tag, BlockPlace place) {
  if ((used_ + uint64_t{1}) * 8 > table_.load()->capacity * kFullEighths) Rebuild();
  Put(*table_.load(), EntryOf(tag, place));
  ++live_;
  ++used_;
}

void BlockDirectory::Erase(uint32_t tag, BlockPlace place) {
  Table& table = *table_.load();
  const uint64_t entry = EntryOf(tag, place);
  uint32_t i = table.HomeOf(tag);
  while (table.slots()[i].load(std::memory_order_relaxed) != entry) {
    PENSTOCK_CHECK_NE(table.slots()[i].load(std::memory_order_relaxed), kEmpty);
    i = i + 1 == table.capacity ? 0 : i + 1;
  }
  table.slots()[i].store(kGone, std::memory_order_release);
  --live_;
}

// Copies the live entries to a new table without the tombstones. Readers of the old table are not
// disturbed: it is retired and freed when the last of them has left.
void BlockDirectory::Rebuild() {
  Table* old = table_.load();
  Table* fresh = NewTable(kLeastCapacity + static_cast<uint32_t>(live_ * uint64_t{8} / 5));
  for (uint32_t i = 0; i < old->capacity; ++i) {
    const uint64_t entry = old->slots()[i].load(std::memory_order_relaxed);
    if (entry != kEmpty && entry != kGone) Put(*fresh, entry);
  }
  used_ = live_;
  table_.store(fresh, std::memory_order_release);
  epochs_.Retire(old);
}

}  // namespace penstock
