#include "tests/e2e/cluster.h"

#include <grpcpp/grpcpp.h>
#include <signal.h>

#include "base/check.h"
#include "proto/worker.grpc.pb.h"

namespace penstock {
namespace {

using std::chrono::seconds;

// Loading is seconds under sanitizers on a busy machine.
constexpr seconds kStartPatience{120};

std::string Trimmed(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

std::string AwaitReadyFile(const std::string& path, Process& process) {
  const bool ready =
      Eventually(kStartPatience, [&] { return !ReadFile(path).empty() || !process.running(); });
  PENSTOCK_CHECK(ready && process.running(), "(a process did not start)");
  return Trimmed(ReadFile(path));
}

}  // namespace

std::optional<v1::WorkerState> WorkerProcess::State(std::chrono::milliseconds patience) const {
  const auto stub =
      v1::WorkerStatus::NewStub(grpc::CreateChannel(endpoint, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + patience);
  const auto stream = stub->Watch(&context, {});
  v1::WorkerState state;
  if (!stream->Read(&state)) return std::nullopt;
  context.TryCancel();
  return state;
}

Cluster::Cluster(const Options& options) {
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
      worker.endpoint = AwaitReadyFile(
          folder_.path() + "/" + worker.role + std::to_string(i) + ".ready", worker.process);
    }
  }
  StartRouter(options.router_flags);
}

Cluster::~Cluster() = default;

WorkerProcess Cluster::StartWorker(const std::string& role, int index,
                                   const std::vector<std::vector<std::string>>& flags) {
  const std::string name = folder_.path() + "/" + role + std::to_string(index);
  std::vector<std::string> command = {"penstock-" + role,
                                      "--listen=127.0.0.1:0",
                                      "--model=" + ModelFolder(),
                                      "--threads=1",
                                      "--kv_memory=64MiB",
                                      "--worker_id=" + role + "-" + std::to_string(index),
                                      "--ready_file=" + name + ".ready"};
  for (const auto& group : flags) command.insert(command.end(), group.begin(), group.end());
  return {.role = role, .endpoint = "", .process = Process(command, name + ".log")};
}

void Cluster::StartRouter(const std::vector<std::string>& flags) {
  const std::string name = folder_.path() + "/router";
  std::vector<std::string> command = {
      "penstock-router",          "--listen=127.0.0.1:0", "--http_listen=127.0.0.1:0",
      "--model=" + ModelFolder(), "--model_name=tiny",    "--ready_file=" + name + ".ready"};
  command.insert(command.end(), flags.begin(), flags.end());
  for (const auto* workers : {&prefill_, &decode_}) {
    for (const WorkerProcess& worker : *workers) command.push_back("--workers=" + worker.endpoint);
  }
  router_ = std::make_unique<Process>(command, name + ".log");
  const std::string ready_text = AwaitReadyFile(name + ".ready", *router_);
  router_endpoint_ = ready_text.substr(0, ready_text.find('\n'));
  const size_t http = ready_text.find("\nhttp=");
  PENSTOCK_CHECK(http != std::string::npos, "(the router has no HTTP endpoint)");
  http_endpoint_ = ready_text.substr(http + 6);
  client_ = v1::Inference::NewStub(
      grpc::CreateChannel(router_endpoint_, grpc::InsecureChannelCredentials()));
  const bool ready = Eventually(kStartPatience, [&] {
    grpc::ClientContext context;
    v1::ListModelsResponse models;
    return client_->ListModels(&context, {}, &models).ok() && models.models_size() == 1 &&
           models.models(0).ready();
  });
  if (!ready) std::fputs(Logs().c_str(), stderr);
  PENSTOCK_CHECK(ready, "(the router never became ready)");
}

bool Cluster::AllBlocksFree(std::chrono::milliseconds patience) {
  return Eventually(patience, [this] {
    for (auto* workers : {&prefill_, &decode_}) {
      for (WorkerProcess& worker : *workers) {
        if (!worker.process.running()) continue;
        const auto state = worker.State();
        if (!state.has_value() || state->kv_blocks_used() != 0 ||
            state->kv_blocks_promised() != 0 || state->handoffs() != 0) {
          return false;
        }
      }
    }
    return true;
  });
}

std::string Cluster::Logs() const {
  std::string logs;
  for (const auto* workers : {&prefill_, &decode_}) {
    for (const WorkerProcess& worker : *workers) logs += worker.process.Log();
  }
  return logs + (router_ == nullptr ? "" : router_->Log());
}

}  // namespace penstock
