#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <map>

#include "base/bytes.h"
#include "base/check.h"
#include "base/lifecycle.h"
#include "base/rpc/rpc_server.h"
#include "cli/operate/commands.h"
#include "cli/operate/turn_progress.h"
#include "cli/shell/connect.h"
#include "cli/shell/interrupts.h"
#include "proto/admin.grpc.pb.h"
#include "proto/names.h"

namespace penstock {
namespace {

constexpr std::chrono::seconds kAdminCallTimeout{
    15};  // beyond the router's own patience with a worker

// On one line.
std::string JsonOf(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  PENSTOCK_CHECK(google::protobuf::util::MessageToJsonString(message, &json, options).ok());
  return json + "\n";
}

std::string TextOf(const v1::ServerInfo& info) {
  std::string text = fmt::format("{} {} ({}), up {:.0f} s, log level {}\n", info.program(),
                                 info.version(), info.build(), info.uptime_s(), info.log_level());
  for (const v1::Setting& setting : info.config()) {
    text += fmt::format("  {:<18} {}\n", setting.name(), setting.value());
  }
  return text;
}

std::string TextOf(const v1::RoleAdvice& advice) {
  std::string text = fmt::format("role load (1 = at SLO capacity): prefill {:.2f}, decode {:.2f}\n",
                                 advice.prefill_load(), advice.decode_load());
  if (advice.worker().empty()) return text;
  const std::string to(RoleName(advice.to()));
  return text + fmt::format("proposal: turn {} to {}: {}\n{}\n", advice.worker(), to, advice.why(),
                            advice.mode() == "act"
                                ? "the router turns it (--role_advice=act)"
                                : "penstock admin role " + advice.worker() + " " + to);
}

std::string TextOf(const v1::ScaleAdvice& advice) {
  std::string text = advice.mode() == "propose" ? "autoscaling would want"
                     : advice.leads()           ? "autoscaling wants"
                                                : "another router decides on replicas; wanted";
  text += fmt::format(" {} prefill and {} decode replicas\n", advice.prefill().replicas(),
                      advice.decode().replicas());
  for (const auto& [name, role] :
       {std::pair("prefill", &advice.prefill()), std::pair("decode", &advice.decode())}) {
    text += fmt::format("  {}: {}: {}\n", name, role->reason(), role->why());
  }
  return text;
}

std::string TextOf(const v1::Fleet& fleet) {
  std::string text =
      fmt::format("{:<24} {:<22} {:<8} {:<10} {:>5} {:>5} {:>8} {:>6} {}\n", "worker", "endpoint",
                  "role", "state", "run", "wait", "tokens", "placed", "blocks used/total");
  std::map<std::string, std::string> names;
  for (const v1::WorkerRow& row : fleet.workers()) {
    const v1::WorkerState& state = row.state();
    const std::string& name = state.worker_id().empty() ? row.endpoint() : state.worker_id();
    names[row.endpoint()] = name;
    text +=
        fmt::format("{:<24.24} {:<22} {:<8} {:<10} {:>5} {:>5} {:>8} {:>6} {}/{}\n", name,
                    row.endpoint(), RoleName(state.role()), row.status(), state.running(),
                    state.waiting(), state.waiting_tokens(), row.requests(),
                    state.kv_blocks_used() + state.kv_blocks_reserved(), state.kv_blocks_total());
  }
  const auto name_of = [&](const std::string& endpoint) {
    return names.contains(endpoint) ? names.at(endpoint) : endpoint;
  };
  for (const v1::FleetLink& link : fleet.links()) {
    text += fmt::format("{} -> {}: {}, {} transfers, {}, {} open\n", name_of(link.from()),
                        name_of(link.to()), link.transport().empty() ? "?" : link.transport(),
                        link.done(), FormatBytes(link.bytes()), link.open());
  }
  if (fleet.has_role_advice()) text += TextOf(fleet.role_advice());
  if (fleet.has_scale_advice()) text += TextOf(fleet.scale_advice());
  return text;
}

std::string TextOf(const v1::WorkerState& state) {
  return fmt::format("{} is {}: running={} waiting={} handoffs={} moved={}\n", state.worker_id(),
                     PhaseName(state.phase()), state.running(), state.waiting(), state.handoffs(),
                     state.sequences_moved());
}

std::string TextOf(const v1::KvFlushed& flushed) {
  return fmt::format("flushed {} cached blocks\n", flushed.blocks());
}

std::string TextOf(const v1::LogLevelSet& set) { return fmt::format("it was {}\n", set.before()); }

// Ids by their first half: enough to tell blocks apart, and a line stays one.
std::string Ids(const std::string& ids) {
  constexpr size_t kIdBytes = 16, kShown = 8;
  std::string text;
  for (size_t i = 0; i + kIdBytes <= ids.size(); i += kIdBytes) {
    text += " ";
    for (size_t j = 0; j < kShown; ++j) {
      text += fmt::format("{:02x}", static_cast<unsigned char>(ids[i + j]));
    }
  }
  return text;
}

std::string TextOf(const v1::BlockEvents& events) {
  const std::string when = events.snapshot() ? "snapshot" : fmt::format("{:>8}", events.sequence());
  std::string text;
  for (const v1::BlockEvent& event : events.events()) {
    if (event.has_stored()) {
      text += fmt::format("{} stored in {}:{}\n", when, TierName(event.stored().tier()),
                          Ids(event.stored().ids()));
    } else if (event.has_removed()) {
      text += fmt::format("{} removed:{}\n", when, Ids(event.removed().ids()));
    } else if (event.has_moved()) {
      text += fmt::format("{} moved to {}:{}\n", when, TierName(event.moved().tier()),
                          Ids(event.moved().ids()));
    } else if (event.has_cleared()) {
      text += fmt::format("{} cleared\n", when);
    }
  }
  return text;
}

// Prints what a stream brings, without its heartbeats.
class Printer {
 public:
  explicit Printer(bool json) : json_(json) {}

  template <class Message>
  void operator()(const Message& message) {
    const std::string text = json_ ? JsonOf(message) : TextOf(message);
    if (!json_ && text == printed_) return;
    printed_ = text;
    fmt::print("{}", text);
    fflush(stdout);
  }

 private:
  const bool json_;
  std::string printed_;
};

// One command, with the connection it goes over.
class AdminCall {
 public:
  AdminCall(const AdminOptions& options, const std::shared_ptr<grpc::Channel>& channel)
      : options_(options), stub_(v1::Admin::NewStub(channel)) {}

  grpc::Status Run() {
    const std::string& what = options_.what;
    if (what == "workers") return Ask<v1::Fleet>(&v1::Admin::Stub::Workers, v1::WorkersRequest());
    if (what == "events") {
      return Follow<v1::BlockEvents>(&v1::Admin::Stub::WatchBlocks,
                                     OfWorker<v1::WatchWorkerBlocksRequest>(),
                                     Printer(options_.json));
    }
    if (what == "info") {
      return Ask<v1::ServerInfo>(&v1::Admin::Stub::Info, OfWorker<v1::InfoRequest>());
    }
    if (what == "flush") {
      return Ask<v1::KvFlushed>(&v1::Admin::Stub::Flush, OfWorker<v1::FlushRequest>());
    }
    if (what == "log-level") {
      v1::SetLogLevelRequest request;
      request.set_level(options_.arguments[0]);
      if (options_.arguments.size() > 1) request.set_worker(options_.arguments[1]);
      return Ask<v1::LogLevelSet>(&v1::Admin::Stub::SetLogLevel, request);
    }
    if (what == "role") return Turn();
    auto request = OfWorker<v1::DrainRequest>();
    request.set_resume(what == "resume");
    return Follow<v1::WorkerState>(&v1::Admin::Stub::Drain, request, Printer(options_.json));
  }
  int signal() const { return signal_; }

 private:
  template <class Request>
  Request OfWorker() const {
    Request request;
    if (!options_.arguments.empty()) request.set_worker(options_.arguments[0]);
    return request;
  }

  template <class Message>
  void Print(const Message& message) const {
    fmt::print("{}", options_.json ? JsonOf(message) : TextOf(message));
    fflush(stdout);
  }

  template <class Answer, class Method, class Request>
  grpc::Status Ask(Method method, const Request& request) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kAdminCallTimeout);
    Answer answer;
    grpc::Status status = (stub_.get()->*method)(&context, request, &answer);
    if (status.ok()) Print(answer);
    return status;
  }

  grpc::Status Turn() {
    auto request = OfWorker<v1::SetRoleRequest>();
    const std::string& role = options_.arguments[1];
    request.set_role(role == "prefill" ? v1::WorkerState::PREFILL : v1::WorkerState::DECODE);
    request.set_within_ms(options_.within_s * 1000);
    request.set_force(options_.force);
    const auto follow = [&](auto show) {
      return Follow<v1::WorkerState>(&v1::Admin::Stub::SetRole, request, std::move(show));
    };
    if (options_.json) return follow(Printer(true));
    TurnProgress progress(options_.arguments[0], role);
    grpc::Status status = follow([&](const v1::WorkerState& state) { progress.Show(state); });
    if (signal_ != 0) {
      progress.Left();
    } else if (status.ok()) {
      progress.Turned();
    } else {
      progress.Failed();
    }
    return status;
  }

  // Until its end, or a signal, which leaves what is under way as it is.
  template <class Message, class Method, class Request, class Show>
  grpc::Status Follow(Method method, const Request& request, Show show) {
    Interrupts interrupts({SIGINT, SIGTERM});
    grpc::ClientContext context;
    OnInterrupt watch(interrupts, [&context] { context.TryCancel(); });
    const auto reader = (stub_.get()->*method)(&context, request);
    Message message;
    while (reader->Read(&message)) show(message);
    grpc::Status status = reader->Finish();
    signal_ = watch.Finish();
    return status;
  }

  const AdminOptions& options_;
  const std::unique_ptr<v1::Admin::Stub> stub_;
  int signal_ = 0;
};

// How many arguments each command takes.
absl::Status CheckArguments(const AdminOptions& options) {
  const std::map<std::string, std::pair<size_t, size_t>> counts = {
      {"info", {0, 1}},  {"workers", {0, 0}}, {"drain", {1, 1}},     {"resume", {1, 1}},
      {"flush", {1, 1}}, {"events", {1, 1}},  {"log-level", {1, 2}}, {"role", {2, 2}}};
  const auto [min, max] = counts.at(options.what);
  const size_t count = options.arguments.size();
  if (count < min) {
    const char* wants = options.what == "log-level" ? "LEVEL" : "WORKER";
    if (options.what == "role") wants = "WORKER and prefill or decode";
    return InvalidArgument("{} needs a {}: see `penstock admin --help`", options.what, wants);
  }
  if (count > max) return InvalidArgument("{} is unknown", options.arguments[max]);
  if (options.what == "role" && options.arguments[1] != "prefill" &&
      options.arguments[1] != "decode") {
    return InvalidArgument("role `{}` is unknown; allowed: prefill, decode", options.arguments[1]);
  }
  return absl::OkStatus();
}

int Fail(const std::string& text, ExitCode code) {
  fmt::print(stderr, "penstock admin: {}\n", text);
  return static_cast<int>(code);
}

}  // namespace

int Run(const AdminOptions& options) {
  const absl::Status arguments = CheckArguments(options);
  if (!arguments.ok()) return Fail(Message(arguments), ExitCode::kUsage);
  const auto channel = Connect(options.endpoint, options.tls, Called::kProcess);
  if (!channel.ok()) return Fail(Message(channel.status()), ExitCodeFor(channel.status()));
  AdminCall call(options, *channel);
  const absl::Status status = AdminStatus(call.Run(), options.endpoint);
  if (call.signal() != 0) return 128 + call.signal();
  return status.ok() ? 0 : Fail(Message(status), ExitCodeFor(status));
}

}  // namespace penstock
