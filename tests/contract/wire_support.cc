#include "tests/contract/wire_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>

#include "kvstore/slab.h"
#include "kvstore/wire_loopback.h"
#include "kvstore/wire_ucx.h"

namespace penstock {

TestMessage MakeMessage(uint64_t number, size_t size) {
  TestMessage message;
  message.payload.resize(size);
  std::mt19937_64 random(number);
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t word = random();
    std::memcpy(message.payload.data() + i, &word, std::min<size_t>(8, size - i));
  }
  message.header = {.number = number, .size = size, .crc = Crc32c(message.payload)};
  return message;
}

void Waiting::Change(const std::function<void()>& change) {
  MutexLock lock(mutex_);
  change();
  changed_.NotifyAll();
}

bool Waiting::Wait(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  MutexLock lock(mutex_);
  while (!condition()) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left.count() <= 0) return false;
    changed_.WaitFor(mutex_, left);
  }
  return true;
}

absl::StatusOr<std::byte*> TestReceiver::OnAnnounced(std::span<const std::byte> header,
                                                     size_t size) {
  EXPECT_EQ(header.size(), sizeof(TestHeader));
  TestHeader parsed;
  std::memcpy(&parsed, header.data(), sizeof(parsed));
  EXPECT_EQ(parsed.size, size);
  if (on_announced) RETURN_IF_ERROR(on_announced(parsed));
  auto entry = std::make_unique<Entry>();
  entry->header = parsed;
  entry->target.resize(size + 1);  // One more: even an empty payload has an address of its own.
  entry->events.push_back(Event::kAnnounced);
  std::byte* target = entry->target.data();
  waiting_.Change([&] {
    NoteThread();
    entries_.push_back(std::move(entry));
  });
  EXPECT_TRUE(waiting_.Wait([&] { return !held_; }));
  return target;
}

TestReceiver::Entry& TestReceiver::Find(std::span<const std::byte> header) {
  TestHeader parsed;
  std::memcpy(&parsed, header.data(), std::min(header.size(), sizeof(parsed)));
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const std::unique_ptr<Entry>& entry) {
        return entry->header.number == parsed.number && entry->events.size() == 1;
      });
  if (found == entries_.end()) {
    ADD_FAILURE() << "message " << parsed.number << " was not announced, or has ended before";
    static Entry nobody;
    return nobody;
  }
  return **found;
}

void TestReceiver::OnLanded(std::span<const std::byte> header, std::span<std::byte> payload) {
  const uint32_t crc = Crc32c(payload);
  waiting_.Change([&] {
    NoteThread();
    Entry& entry = Find(header);
    entry.events.push_back(Event::kLanded);
    entry.whole = payload.data() == entry.target.data() && payload.size() == entry.header.size &&
                  crc == entry.header.crc;
  });
}

void TestReceiver::OnLost(std::span<const std::byte> header, std::byte* target) {
  waiting_.Change([&] {
    NoteThread();
    Entry& entry = Find(header);
    EXPECT_EQ(entry.target.data(), target);
    entry.events.push_back(Event::kLost);
    // From now on nothing may write here.
    std::fill(entry.target.begin(), entry.target.end(), std::byte{0xd5});
  });
}

void TestReceiver::NoteThread() {
  const auto id = std::this_thread::get_id();
  if (std::find(threads_.begin(), threads_.end(), id) == threads_.end()) threads_.push_back(id);
}

void TestReceiver::Hold() {
  waiting_.Change([&] { held_ = true; });
}
void TestReceiver::Release() {
  waiting_.Change([&] { held_ = false; });
}

size_t TestReceiver::Count(Event event) const {
  return static_cast<size_t>(
      std::count_if(entries_.begin(), entries_.end(), [&](const std::unique_ptr<Entry>& entry) {
        return std::count(entry->events.begin(), entry->events.end(), event) > 0;
      }));
}

bool TestReceiver::WaitLanded(size_t count) {
  return waiting_.Wait([&] { return Count(Event::kLanded) >= count; });
}
bool TestReceiver::WaitAnnounced(size_t count) {
  return waiting_.Wait([&] { return entries_.size() >= count; });
}
bool TestReceiver::WaitSettled() {
  return waiting_.Wait([&] {
    return std::all_of(entries_.begin(), entries_.end(),
                       [](const auto& entry) { return entry->events.size() >= 2; });
  });
}

size_t TestReceiver::announced() {
  size_t count = 0;
  waiting_.Change([&] { count = entries_.size(); });
  return count;
}
size_t TestReceiver::landed() {
  size_t count = 0;
  waiting_.Change([&] { count = Count(Event::kLanded); });
  return count;
}
size_t TestReceiver::lost() {
  size_t count = 0;
  waiting_.Change([&] { count = Count(Event::kLost); });
  return count;
}

std::vector<uint64_t> TestReceiver::announcement_order() {
  std::vector<uint64_t> numbers;
  waiting_.Change([&] {
    for (const auto& entry : entries_) numbers.push_back(entry->header.number);
  });
  return numbers;
}

void TestReceiver::ExpectSound() {
  waiting_.Change([&] {
    for (const auto& entry : entries_) {
      ASSERT_EQ(entry->events.size(), 2u) << "message " << entry->header.number;
      if (entry->events[1] == Event::kLanded) {
        EXPECT_TRUE(entry->whole) << "message " << entry->header.number << " landed torn";
      } else {
        EXPECT_TRUE(std::all_of(entry->target.begin(), entry->target.end(),
                                [](std::byte b) { return b == std::byte{0xd5}; }))
            << "message " << entry->header.number << " was written to after it was lost";
      }
    }
  });
}

std::vector<std::thread::id> TestReceiver::threads() {
  std::vector<std::thread::id> copy;
  waiting_.Change([&] { copy = threads_; });
  return copy;
}

absl::Status TestSender::Put(WireLane& lane, TestMessage message) {
  auto owned = std::make_unique<TestMessage>(std::move(message));
  TestMessage& kept = *owned;
  size_t index = 0;
  waiting_.Change([&] {
    index = messages_.size();
    messages_.push_back(std::move(owned));
    ends_.push_back(0);
  });
  return lane.Put(kept.header.bytes(), kept.payload, [this, index](const absl::Status& status) {
    waiting_.Change([&] {
      EXPECT_EQ(++ends_[index], 1) << "a Put ended twice";
      statuses_.push_back(status);
      threads_.push_back(std::this_thread::get_id());
    });
  });
}

bool TestSender::WaitDone(size_t count) {
  return waiting_.Wait([&] { return statuses_.size() >= count; });
}

size_t TestSender::done() {
  size_t count = 0;
  waiting_.Change([&] { count = statuses_.size(); });
  return count;
}

size_t TestSender::count(absl::StatusCode code) {
  size_t count = 0;
  waiting_.Change([&] {
    for (const absl::Status& status : statuses_) count += status.code() == code ? 1 : 0;
  });
  return count;
}

std::vector<TestMessage*> TestSender::messages() {
  std::vector<TestMessage*> list;
  waiting_.Change([&] {
    for (const auto& message : messages_) list.push_back(message.get());
  });
  return list;
}

std::string TestSender::last_message(absl::StatusCode code) {
  std::string text;
  waiting_.Change([&] {
    for (const absl::Status& status : statuses_) {
      if (status.code() == code) text = Message(status);
    }
  });
  return text;
}

std::vector<std::thread::id> TestSender::threads() {
  std::vector<std::thread::id> copy;
  waiting_.Change([&] { copy = threads_; });
  return copy;
}

namespace {

WireKind UcxKind(const std::string& name, const std::string& lanes, const std::string& transport) {
  return {name, transport, [lanes] {
            return [lanes](WireReceiver& receiver, const WireLimits& limits) {
              auto wire =
                  MakeUcxWire({.listen = "127.0.0.1", .lanes = lanes, .limits = limits}, receiver);
              EXPECT_TRUE(wire.ok()) << wire.status();
              return *std::move(wire);
            };
          }};
}

size_t CountEntries(const std::string& directory) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    count += entry.path().empty() ? 0 : 1;
  }
  return count;
}

}  // namespace

std::vector<WireKind> AllWireKinds() {
  const WireKind loopback{"loopback", "loopback", [] {
                            auto hub = std::make_shared<LoopbackHub>();
                            return [hub](WireReceiver& receiver, const WireLimits& limits) {
                              return MakeLoopbackWire(*hub, receiver, limits);
                            };
                          }};
  return {loopback, UcxKind("shm", "shm", "shared memory"), UcxKind("tcp", "tcp", "tcp")};
}

size_t OpenDescriptors() { return CountEntries("/proc/self/fd"); }
size_t RunningThreads() { return CountEntries("/proc/self/task"); }

}  // namespace penstock
