// Memory that another process exports, as the lanes within one host use it (ADR 51): its bytes
// arrive, and it stays readable when that process frees it, ends, or is killed during a copy. The
// other process is this program, started with --export.

#include "tests/cuda/gpu/exports.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "tests/cuda/gpu/timing.h"

namespace penstock::cuda {
namespace {

constexpr size_t kBytes = size_t{8} << 20;
constexpr int kCopies = 200;  // under way when the other process is killed

std::vector<uint32_t> Pattern() {
  std::vector<uint32_t> words(kBytes / sizeof(uint32_t));
  for (size_t i = 0; i < words.size(); ++i) words[i] = static_cast<uint32_t>(i * 2654435761u + 1);
  return words;
}

// The other process, and its memory as it is mapped here.
class Exporter {
 public:
  Exporter() {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    char name[] = "gpu_check", flag[] = "--export";
    char* const argv[] = {name, flag, nullptr};
    if (posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv, environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    in_ = in[1];
    out_ = out[0];
    ExportName exported{};
    size_t got = 0;
    while (got < exported.size()) {
      const ssize_t more = read(out_, exported.data() + got, exported.size() - got);
      if (more <= 0) return;
      got += static_cast<size_t>(more);
    }
    data_ = static_cast<std::byte*>(ImportForWires(exported, kBytes));
  }
  ~Exporter() {
    Kill();
    if (data_ != nullptr) ReleaseImport(data_, kBytes);
    close(in_);
    close(out_);
  }
  Exporter(const Exporter&) = delete;
  Exporter& operator=(const Exporter&) = delete;

  const std::byte* data() const { return data_; }  // null: it could not be mapped
  // Returns when the other process has freed its memory.
  bool MakeItFree() const {
    char answer = 0;
    return write(in_, "f", 1) == 1 && read(out_, &answer, 1) == 1;
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1, out_ = -1;
  std::byte* data_ = nullptr;
};

// Copies imported memory to memory of this process, and counts the words that are wrong there.
class Reader {
 public:
  Reader() : copy_(static_cast<std::byte*>(AllocateDevice(kBytes))) {}
  ~Reader() {
    FreeDevice(copy_);
    DestroyStream(stream_);
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  void Start(const std::byte* from) { CopyOnDevice(copy_, from, kBytes, stream_); }
  double Wrong() {
    std::vector<uint32_t> got(pattern_.size());
    CopyToHost(got.data(), copy_, kBytes, stream_);
    Synchronize(stream_);
    if (TakeError() != nullptr) return static_cast<double>(got.size());
    double wrong = 0;
    for (size_t i = 0; i < got.size(); ++i) wrong += got[i] != pattern_[i] ? 1 : 0;
    FillDevice(copy_, 0, kBytes, stream_);
    return wrong;
  }
  void* stream() const { return stream_; }

 private:
  const std::vector<uint32_t> pattern_ = Pattern();
  void* const stream_ = CreateStream(/*high_priority=*/true);
  std::byte* const copy_;
};

}  // namespace

void CheckExports(bool small, Report& report) {
  Reader reader;
  const auto check = [&](const char* when, double wrong) {
    report.checks.push_back({std::string("another process's memory, ") + when, wrong, 0.5});
  };
  Exporter freed, killed;
  if (freed.data() == nullptr || killed.data() == nullptr) {
    const char* error = TakeError();
    report.not_run.push_back(std::string("another process's memory: it cannot be mapped (") +
                             (error == nullptr ? "no reason given" : error) + ")");
    return;
  }
  reader.Start(freed.data());
  check("mapped", reader.Wrong());
  if (!small) {
    const double us = MedianUs([&] { reader.Start(freed.data()); }, reader.stream());
    report.measurements.push_back(
        {"copy of 8 MiB of another process's memory", us, 2.0 * kBytes / us / 1e3, "GB/s"});
  }
  const bool told = freed.MakeItFree();
  reader.Start(freed.data());
  check("after it was freed", told ? reader.Wrong() : 1.0);
  for (int i = 0; i < kCopies; ++i) reader.Start(killed.data());
  killed.Kill();
  check("copied while its process was killed", reader.Wrong());
  reader.Start(killed.data());
  check("after its process was killed", reader.Wrong());
}

int RunExporter() {
  DeviceInfo info;
  if (!OpenDevice(0, &info)) return 1;
  const std::vector<uint32_t> pattern = Pattern();
  void* const data = AllocateForWires(kBytes);
  if (data == nullptr) return 1;
  void* const stream = CreateStream(/*high_priority=*/false);
  CopyToDevice(data, pattern.data(), kBytes, stream);
  Synchronize(stream);
  ExportedMemory exported;
  if (!ExportForWires(data, &exported)) return 1;
  if (write(STDOUT_FILENO, exported.name.data(), exported.name.size()) < 0) return 1;
  for (char told = 0; read(STDIN_FILENO, &told, 1) == 1;) {
    FreeForWires(data, kBytes);
    if (write(STDOUT_FILENO, "f", 1) < 0) return 1;
  }
  return 0;
}

}  // namespace penstock::cuda
