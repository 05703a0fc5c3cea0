#include "tests/e2e/cluster/cluster.h"

#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <cstdio>

#include "base/check.h"
#include "base/rpc/tls.h"
#include "lab/fake/certificates.h"
#include "proto/worker.grpc.pb.h"
#include "tests/support/environment.h"
#include "tests/support/files.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

using std::chrono::seconds;

std::shared_ptr<grpc::ChannelCredentials> CredentialsIn(const std::string& identity,
                                                        TlsCheck check) {
  if (identity.empty()) return grpc::InsecureChannelCredentials();
  const auto opened = TlsIdentity::Open(FilesIn(identity), TlsUse::kMember);
  PENSTOCK_CHECK(opened.ok(), "(a test's certificates are not good)");
  return ChannelCredentialsOf(*opened, check);
}

// Loading is seconds under sanitizers on a busy machine.
constexpr seconds kStartPatience{120};

std::string Trimmed(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string AwaitReadyFile(const std::string& path, Process& process) {
  const bool ready =
      WaitUntil([&] { return !ReadFile(path).empty() || !process.running(); }, kStartPatience);
  PENSTOCK_CHECK(ready && process.running(), "(a process did not start)");
  return Trimmed(ReadFile(path));
}

std::string ReadyFileOf(const std::vector<std::string>& command) {
  const std::string flag = "--ready_file=";
  for (const std::string& argument : command) {
    if (argument.starts_with(flag)) return argument.substr(flag.size());
  }
  PENSTOCK_CHECK(false, "(a process was started without a ready file)");
  return "";
}

}  // namespace

std::optional<v1::WorkerState> WorkerProcess::State(std::chrono::milliseconds patience) const {
  const auto stub = v1::WorkerStatus::NewStub(grpc::CreateChannel(endpoint, credentials));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + patience);
  const auto stream = stub->Watch(&context, {});
  v1::WorkerState state;
  if (!stream->Read(&state)) return std::nullopt;
  context.TryCancel();
  return state;
}

std::vector<std::string> ClusterFlags(const std::string& identity) {
  return {"--cluster_cert=" + identity + "/tls.crt", "--cluster_key=" + identity + "/tls.key",
          "--cluster_ca=" + identity + "/ca.crt"};
}

std::vector<std::string> TinyPool(const std::vector<std::string>& more) {
  std::vector<std::string> flags = {"--kv_memory=600KiB", "--cache_policy=lru"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

Cluster::Cluster(const Options& options)
    : model_(options.model.empty() ? ModelFolder() : options.model),
      identity_(options.identity),
      worker_suffix_(options.worker_suffix) {
  for (int i = 0; i < options.prefill; ++i) {
    std::vector<std::vector<std::string>> flags = {options.prefill_flags};
    if (i == 0) flags.push_back(options.first_prefill_flags);
    prefill_.push_back(StartWorker("prefill", i, flags));
  }
  for (int i = 0; i < options.decode; ++i) {
    std::vector<std::vector<std::string>> flags = {options.decode_flags};
    if (i == 0) flags.push_back(options.first_decode_flags);
    decode_.push_back(StartWorker("decode", i, flags));
  }
  for (auto* workers : {&prefill_, &decode_}) {
    for (size_t i = 0; i < workers->size(); ++i) {
      WorkerProcess& worker = (*workers)[i];
      const std::string ready = AwaitReadyFile(
          folder_.path() + "/" + worker.role + std::to_string(i) + ".ready", worker.process);
      worker.endpoint = ready.substr(0, ready.find('\n'));
    }
  }
  router_flags_ = options.router_flags;
  api_key_ = options.api_key;
  router_ = StartRouter("router");
}

void Cluster::Restart(WorkerProcess& worker) {
  const std::string ready_file = ReadyFileOf(worker.command);
  PENSTOCK_CHECK(std::remove(ready_file.c_str()) == 0, "(a process left no ready file)");
  const int seen_before = TimesSeenReady(router_, worker);
  std::vector<std::string> command = worker.command;
  command.push_back("--listen=" + worker.endpoint);
  const auto start = [&] {
    worker.process = Process(command, folder_.path() + "/restarted.log");
    return WaitUntil([&] { return !ReadFile(ready_file).empty() || !worker.process.running(); },
                     kStartPatience) &&
           worker.process.running();
  };
  // Any connection of another test may have the port for its own end meanwhile, for a while.
  const auto taken = [&] {
    return worker.process.Log().find(worker.endpoint) != std::string::npos;
  };
  const bool started = WaitUntil([&] { return start() || !taken(); }, seconds(30));
  if (!started || !worker.process.running()) {
    std::fprintf(stderr, "%s\n", worker.process.Log().c_str());
    PENSTOCK_CHECK(false, "(a process did not start again)");
  }
  const bool seen = WaitUntil(
      [&] { return TimesSeenReady(router_, worker) > seen_before || !router_.process->running(); },
      kStartPatience);
  PENSTOCK_CHECK(seen, "(the router did not see a process that started again)\n" + Logs());
}

RouterProcess& Cluster::StartAnotherRouter() {
  more_routers_.reserve(8);  // references stay good
  return more_routers_.emplace_back(
      StartRouter("router-" + std::to_string(more_routers_.size() + 1)));
}

void Cluster::KillRouter() {
  if (!router_.process->running()) return;
  router_.process->Signal(SIGKILL);
  router_.process->Wait(seconds(30));
}

void Cluster::ReplaceRouter() {
  KillRouter();
  router_ = StartRouter("replaced-router");
}

Cluster::~Cluster() = default;

WorkerProcess Cluster::StartWorker(const std::string& role, int index,
                                   const std::vector<std::vector<std::string>>& flags) {
  const std::string name = folder_.path() + "/" + role + std::to_string(index);
  const std::string id = role + "-" + std::to_string(index);
  std::vector<std::string> command = {"penstock-" + role + worker_suffix_,
                                      "--listen=127.0.0.1:0",
                                      "--model=" + model_,
                                      "--threads=1",
                                      "--kv_memory=64MiB",
                                      "--worker_id=" + id,
                                      "--ready_file=" + name + ".ready"};
  // A step of an emulated GPU may take many seconds where the machine is busy.
  if (!worker_suffix_.empty()) command.emplace_back("--stall_ms=120000");
  if (!identity_.empty()) {
    const std::vector<std::string> shown = ClusterFlags(identity_);
    command.insert(command.end(), shown.begin(), shown.end());
  }
  for (const auto& group : flags) command.insert(command.end(), group.begin(), group.end());
  Process process(command, name + ".log");
  return {.role = role,
          .id = id,
          .endpoint = "",
          .process = std::move(process),
          .command = std::move(command),
          .credentials = CredentialsIn(identity_, TlsCheck::kMember)};
}

RouterProcess Cluster::StartRouter(const std::string& router_name) {
  const std::string name = folder_.path() + "/" + router_name;
  std::vector<std::string> command = {
      "penstock-router",   "--listen=127.0.0.1:0", "--http_listen=127.0.0.1:0",
      "--model=" + model_, "--model_name=tiny",    "--ready_file=" + name + ".ready"};
  if (!identity_.empty()) {
    const std::vector<std::string> shown = ClusterFlags(identity_);
    command.insert(command.end(), shown.begin(), shown.end());
    command.push_back("--tls_cert=" + identity_ + "/tls.crt");
    command.push_back("--tls_key=" + identity_ + "/tls.key");
  }
  // Tests compare the figures of handoffs, which come late where the machine is busy.
  command.emplace_back("--report_wait_ms=5000");
  command.insert(command.end(), router_flags_.begin(), router_flags_.end());
  for (const auto* workers : {&prefill_, &decode_}) {
    for (const WorkerProcess& worker : *workers) command.push_back("--workers=" + worker.endpoint);
  }
  RouterProcess router{.process = std::make_unique<Process>(command, name + ".log")};
  const std::string ready_text = AwaitReadyFile(name + ".ready", *router.process);
  router.endpoint = ready_text.substr(0, ready_text.find('\n'));
  if (const size_t admin = ready_text.find("\nadmin="); admin != std::string::npos) {
    const size_t begin = admin + 7;
    router.admin_endpoint = ready_text.substr(begin, ready_text.find('\n', begin) - begin);
  }
  const size_t http = ready_text.find("\nhttp=");
  PENSTOCK_CHECK(http != std::string::npos, "(the router has no HTTP endpoint)");
  router.http_endpoint = ready_text.substr(http + 6);
  router.client = v1::Inference::NewStub(
      grpc::CreateChannel(router.endpoint, CredentialsIn(identity_, TlsCheck::kHost)));
  const bool ready = WaitUntil(
      [&] {
        grpc::ClientContext context;
        if (!api_key_.empty()) context.AddMetadata("authorization", "Bearer " + api_key_);
        v1::ListModelsResponse models;
        return router.client->ListModels(&context, {}, &models).ok() && models.models_size() == 1 &&
               models.models(0).ready();
      },
      kStartPatience);
  if (!ready) std::fputs((Logs() + router.process->Log()).c_str(), stderr);
  PENSTOCK_CHECK(ready, "(the router never became ready)");
  // It serves as soon as it has seen one worker of each role.
  const bool has_all = WaitUntil(
      [&] {
        for (auto* workers : {&prefill_, &decode_}) {
          for (WorkerProcess& worker : *workers) {
            if (worker.process.running() && TimesSeenReady(router, worker) == 0) return false;
          }
        }
        return true;
      },
      kStartPatience);
  PENSTOCK_CHECK(has_all,
                 "(the router did not see every worker)\n" + Logs() + router.process->Log());
  return router;
}

int Cluster::TimesSeenReady(const RouterProcess& router, const WorkerProcess& worker) {
  const std::string line = " worker " + worker.id + " is ready";
  const std::string log = router.process->Log();
  int times = 0;
  for (size_t at = log.find(line); at != log.npos; at = log.find(line, at + 1)) ++times;
  return times;
}

bool Cluster::AllBlocksFree(std::chrono::milliseconds patience) {
  return WaitUntil(
      [this] {
        for (auto* workers : {&prefill_, &decode_}) {
          for (WorkerProcess& worker : *workers) {
            if (!worker.process.running()) continue;
            const auto state = worker.State(seconds(5));
            if (!state.has_value() || state->kv_blocks_used() != 0 ||
                state->kv_blocks_reserved() != 0 || state->kv_rows_reserved() != 0 ||
                state->handoffs() != 0) {
              return false;
            }
          }
        }
        return true;
      },
      patience);
}

WorkerProcess* Cluster::RunningDecoder() {
  for (WorkerProcess& worker : decode_) {
    const auto state = worker.State();
    if (state.has_value() && state->running() > 0) return &worker;
  }
  return nullptr;
}

std::string Cluster::Logs() const {
  std::string logs;
  for (const auto* workers : {&prefill_, &decode_}) {
    for (const WorkerProcess& worker : *workers) logs += worker.process.Log();
  }
  return logs + (router_.process == nullptr ? "" : router_.process->Log());
}

}  // namespace penstock
