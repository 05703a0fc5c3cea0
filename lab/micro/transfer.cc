#include "lab/micro/transfer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <sstream>
#include <thread>

#include "base/log/log.h"
#include "base/mutex.h"
#include "kernels/buffer.h"
#include "kvstore/wire/host/host_wire.h"
#include "kvstore/wire/stream/frame.h"
#include "kvstore/wire/stream/frame_seal.h"
#include "lab/fake/certificates.h"
#include "lab/fake/temp_folder.h"
#include "lab/micro/transfer_processes.h"

namespace penstock {
namespace {

constexpr int kPatienceMs = 60'000;
constexpr int kPerftestPatienceMs = 20'000;

// Every message lands in one buffer, as ucx_perftest does it.
class OneBuffer final : public WireReceiver {
 public:
  explicit OneBuffer(size_t size) : buffer_(size) {}
  absl::StatusOr<std::byte*> OnAnnounced(std::span<const std::byte>, size_t) override {
    return buffer_.as<std::byte>();
  }
  void OnLanded(std::span<const std::byte>, std::span<std::byte>) override {}
  void OnLost(std::span<const std::byte>, std::byte*) override {}

 private:
  const Buffer buffer_;
};

void WriteLine(int fd, const std::string& line) {
  const std::string text = line + "\n";
  if (write(fd, text.data(), text.size()) < 0) _exit(1);
}

std::string ReadLine(int fd) {
  std::string line;
  for (char c = 0; read(fd, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

// A kind of lane, and what it is held against.
struct Subject {
  std::string row;
  std::string lanes;
  std::string identity_folder;  // certificates of both processes; empty: none
  std::string perftest;  // the transports that ucx_perftest is given for the same way; empty: none
};

absl::StatusOr<std::unique_ptr<Wire>> MakeWire(const Subject& subject, WireReceiver& receiver) {
  HostWireOptions options{.listen = "127.0.0.1", .lanes = subject.lanes, .limits = {}};
  if (!subject.identity_folder.empty()) {
    ASSIGN_OR_RETURN(options.identity,
                     TlsIdentity::Open(FilesIn(subject.identity_folder), TlsUse::kMember));
  }
  return MakeHostWire(options, receiver);
}

// The receiving process: says where it is, then waits to be killed.
void Receive(const TransferBenchOptions& options, const Subject& subject, int in, int out) {
  OneBuffer receiver(options.message_bytes);
  const auto wire = MakeWire(subject, receiver);
  WriteLine(out, wire.ok() ? (*wire)->address() : "");
  ReadLine(in);
}

// Sends `count` messages, never more than `under_way` at a time; false when one fails.
bool SendAll(WireLane& lane, std::span<const std::byte> payload, int count, int under_way) {
  const std::array<std::byte, kWireHeaderMax> header{};
  Mutex mutex;
  CondVar changed;
  int flying = 0;
  bool well = true;
  const auto done = [&](const absl::Status& status) {
    MutexLock lock(mutex);
    --flying;
    well = well && status.ok();
    changed.NotifyAll();
  };
  for (int i = 0; i < count && well; ++i) {
    {
      MutexLock lock(mutex);
      while (flying >= under_way) changed.Wait(mutex);
      ++flying;
    }
    if (!lane.Put(header, payload, done).ok()) return false;
  }
  MutexLock lock(mutex);
  while (flying > 0) changed.Wait(mutex);
  return well;
}

// The sending process: reads where to, prints the rate in GB/s.
void Send(const TransferBenchOptions& options, const Subject& subject, int in, int out) {
  OneBuffer nothing(0);
  const Buffer memory(options.message_bytes);
  const std::span<std::byte> payload(memory.as<std::byte>(), options.message_bytes);
  std::fill(payload.begin(), payload.end(), std::byte{1});
  auto wire = MakeWire(subject, nothing);
  if (!wire.ok()) return WriteLine(out, Message(wire.status()));
  auto lane = (*wire)->Connect(ReadLine(in), kPatienceMs);
  if (!lane.ok()) return WriteLine(out, Message(lane.status()));
  bool well = SendAll(**lane, payload, options.warm_up, options.under_way);
  const auto start = std::chrono::steady_clock::now();
  well = well && SendAll(**lane, payload, options.messages, options.under_way);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
  const double bytes = static_cast<double>(options.message_bytes) * options.messages;
  WriteLine(out, fmt::format("{:.4f}", well ? bytes / time.count() / 1e9 : 0));
}

absl::StatusOr<double> MeasureWire(const TransferBenchOptions& options, const Subject& subject) {
  ASSIGN_OR_RETURN(Child receiver,
                   Child::Fork([&](int in, int out) { Receive(options, subject, in, out); }));
  ASSIGN_OR_RETURN(Child sender,
                   Child::Fork([&](int in, int out) { Send(options, subject, in, out); }));
  ASSIGN_OR_RETURN(const std::string address, receiver.ReadLine(kPatienceMs));
  RETURN_IF_ERROR(sender.WriteLine(address));
  ASSIGN_OR_RETURN(const std::string rate, sender.ReadLine(kPatienceMs));
  const double value = std::strtod(rate.c_str(), nullptr);
  if (value <= 0) return Unavailable("bench: {} carried nothing: {}", subject.row, rate);
  return value;
}

// ucx_perftest's last line: iterations, three latencies, average and overall MiB/s, message rates.
absl::StatusOr<double> OverallRate(const std::string& line) {
  std::istringstream fields(line);
  double iterations, typical, average, overall, average_rate, overall_rate = 0;
  fields >> iterations >> typical >> average >> overall >> average_rate >> overall_rate;
  if (!fields || overall_rate <= 0) return Unavailable("bench: ucx_perftest says: {}", line);
  return overall_rate * 1048576 / 1e9;
}

absl::StatusOr<double> MeasurePerftest(const TransferBenchOptions& options,
                                       const std::string& transports, const std::string& wait) {
  const std::map<std::string, std::string> environment = {{"UCX_TLS", transports},
                                                          {"UCX_NET_DEVICES", "lo"}};
  ASSIGN_OR_RETURN(const int port, FreePort());
  const std::string port_text = fmt::format("{}", port);
  ASSIGN_OR_RETURN(const Child server,
                   Child::Execute({options.perftest, "-p", port_text, "-E", wait}, environment));
  for (int i = 0; i < 500 && !IsListening(port); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSIGN_OR_RETURN(const std::string line,
                   LastLineOf({options.perftest, "127.0.0.1", "-p", port_text, "-t", "ucp_am_bw",
                               "-s", fmt::format("{}", options.message_bytes), "-n",
                               fmt::format("{}", options.messages), "-w",
                               fmt::format("{}", options.warm_up), "-f", "-E", wait},
                              environment, kPerftestPatienceMs));
  return OverallRate(line);
}

// GB/s of AES-128-GCM on one core, in frames as a sealed lane has them, by the OpenSSL in use.
double MeasureSeal() {
  constexpr auto kTime = std::chrono::milliseconds(200);
  FrameSeal seal(std::string(32, 'k'), StreamDirection::kFromCaller);
  const Buffer buffer(kStreamPartBytes);
  const std::span<std::byte> bytes(buffer.as<std::byte>(), kStreamPartBytes);
  std::fill(bytes.begin(), bytes.end(), std::byte{1});
  const std::array<std::byte, kStreamFrameBytes> header{};
  std::array<std::byte, kSealTagBytes> tag;
  size_t sealed = 0;
  const auto start = std::chrono::steady_clock::now();
  std::chrono::duration<double> time{};
  for (; time < kTime; time = std::chrono::steady_clock::now() - start) {
    seal.Seal(header, bytes, bytes.data(), tag);
    sealed += bytes.size();
  }
  return static_cast<double>(sealed) / time.count() / 1e9;
}

absl::Status MeasureRound(const TransferBenchOptions& options, const Subject& subject,
                          bool with_limit, BenchRow& row) {
  ASSIGN_OR_RETURN(const double rate, MeasureWire(options, subject));
  row.value = std::max(row.value, rate);
  for (const char* wait : {"sleep", "poll"}) {
    if (!with_limit || subject.perftest.empty()) continue;
    // On a loaded machine polling may get nowhere; the other way to wait is the limit then.
    const auto limit = MeasurePerftest(options, subject.perftest, wait);
    if (limit.ok()) row.limit = std::max(row.limit, *limit);
  }
  return absl::OkStatus();
}

bool IsInstalled(const std::string& program) {
  if (program.find('/') != std::string::npos) return access(program.c_str(), X_OK) == 0;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((std::filesystem::path(folder) / program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

size_t Threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> RunTransferBench(const TransferBenchOptions& options) {
  if (Threads() != 1) {
    return FailedPrecondition("bench: the process has {} threads and cannot fork; measure first",
                              Threads());
  }
  const bool with_limit = IsInstalled(options.perftest);
  if (!with_limit)
    LogWarning("bench_without_limit", "no {}: no limit is measured", options.perftest);
  const TempFolder identity;  // of both processes
  const TestCa ca("bench-ca");
  WriteIdentity(identity.path(), ca, ca.Issue("bench"));
  const std::array<Subject, 3> subjects = {
      Subject{.row = "wire_2mib", .lanes = "shm", .identity_folder = "", .perftest = "posix,cma"},
      Subject{.row = "wire_2mib_plain", .lanes = "tcp", .identity_folder = "", .perftest = "tcp"},
      Subject{.row = "wire_2mib_sealed",
              .lanes = "tcp",
              .identity_folder = identity.path(),
              .perftest = ""}};
  std::vector<BenchRow> rows;
  for (const Subject& subject : subjects) rows.push_back({.name = subject.row, .unit = "GB/s"});
  double seal = 0;
  for (int round = 0; round < options.rounds; ++round) {
    for (size_t i = 0; i < subjects.size(); ++i) {
      RETURN_IF_ERROR(MeasureRound(options, subjects[i], with_limit, rows[i]));
    }
    seal = std::max(seal, MeasureSeal());
  }
  // A byte is sealed, sent, and opened by the core that receives it: two stages of equal rate.
  rows[2].limit = 1 / (1 / rows[1].value + 1 / seal);
  for (BenchRow& row : rows) {
    if (row.limit > 0) row.fraction = row.value / row.limit;
    if (row.limit > 0 || !with_limit) continue;
    return Unavailable("bench: {} has not measured {} in {} rounds; is the machine overloaded?",
                       options.perftest, row.name, options.rounds);
  }
  return rows;
}

}  // namespace penstock
