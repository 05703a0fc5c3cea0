#include "tests/contract/fake_nccl/fake_record.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "tests/contract/fake_nccl/fake_nccl.h"

namespace fake_nccl {
namespace {

struct Record {
  std::mutex mutex;
  std::map<std::string, int64_t> calls;
  std::map<std::string, int64_t> faults;
  std::string violations;
  std::string violations_given;
  int64_t operations = 0;
  std::set<Comm*> open;
  std::vector<std::unique_ptr<Comm>> all;  // never freed: an address means one communicator
};
// FAKE_NCCL_FAULT is a fault, as in "error_at=20", that a process has from its start.
Record* NewRecord() {
  auto* record = new Record();
  const char* given = std::getenv("FAKE_NCCL_FAULT");
  const std::string fault = given == nullptr ? "" : given;
  const size_t sign = fault.find('=');
  if (sign != std::string::npos) {
    record->faults[fault.substr(0, sign)] = std::stoll(fault.substr(sign + 1));
  }
  return record;
}
Record& record() {
  static auto* record = NewRecord();  // Outlives every thread.
  return *record;
}

}  // namespace

void WriteLog(const std::string& line) {
  const char* path = std::getenv("FAKE_NCCL_LOG");
  if (path != nullptr) std::ofstream(path, std::ios::app) << line << std::endl;
}

void Violate(const std::string& what) {
  WriteLog("violation: " + what);
  std::lock_guard lock(record().mutex);
  record().violations += what + "\n";
}

void Called(const char* name) {
  std::lock_guard lock(record().mutex);
  ++record().calls[name];
}

int64_t Fault(const char* name) {
  std::lock_guard lock(record().mutex);
  return record().faults[name];
}

bool Lives(Comm* comm, const char* call) {
  bool lives = false;
  {
    std::lock_guard lock(record().mutex);
    lives = record().open.contains(comm);
  }
  if (!lives) Violate(std::string(call) + " on a communicator that is gone");
  return lives;
}

int64_t NumberOperation() {
  std::lock_guard lock(record().mutex);
  return ++record().operations;
}

Comm* Remember(std::unique_ptr<Comm> comm) {
  std::lock_guard lock(record().mutex);
  record().open.insert(comm.get());
  record().all.push_back(std::move(comm));
  return record().all.back().get();
}

void Forget(Comm* comm) {
  std::lock_guard lock(record().mutex);
  record().open.erase(comm);
}

// The functions that tests call. With C linkage, the namespace is not part of a name.

extern "C" {

void fake_nccl_reset() {
  std::lock_guard lock(record().mutex);
  if (!record().open.empty()) record().violations += "reset while communicators are open\n";
  record().calls.clear();
  record().faults.clear();
  record().violations.clear();
  record().operations = 0;
}

void fake_nccl_inject(const char* fault, int64_t value) {
  std::lock_guard lock(record().mutex);
  record().faults[fault] = value;
}

int64_t fake_nccl_count(const char* call) {
  std::lock_guard lock(record().mutex);
  return record().calls[call];
}

const char* fake_nccl_violations() {
  std::lock_guard lock(record().mutex);
  record().violations_given = record().violations;
  return record().violations_given.c_str();
}

int64_t fake_nccl_open() {
  std::lock_guard lock(record().mutex);
  return static_cast<int64_t>(record().open.size());
}

}  // extern "C"

}  // namespace fake_nccl
