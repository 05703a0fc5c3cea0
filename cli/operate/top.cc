#include <fmt/format.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <unistd.h>

#include "base/lifecycle.h"
#include "base/rpc/rpc_server.h"
#include "cli/operate/cluster_text.h"
#include "cli/operate/commands.h"
#include "cli/operate/screen.h"
#include "cli/operate/top_workers.h"
#include "cli/shell/connect.h"
#include "cli/shell/interrupts.h"
#include "proto/admin.grpc.pb.h"

namespace penstock {
namespace {

// The source of the pictures. Main thread.
class Source {
 public:
  virtual ~Source() = default;
  // The next picture, as text for that many columns or as a line of JSON.
  virtual absl::StatusOr<std::string> Draw(bool json, size_t columns) = 0;
  // True when every part of the picture is known; the first picture waits for that.
  virtual bool complete() = 0;
};

class OfWorkers final : public Source {
 public:
  explicit OfWorkers(std::unique_ptr<WorkersScreen> screen) : screen_(std::move(screen)) {}
  absl::StatusOr<std::string> Draw(bool json, size_t /*columns*/) override {
    return json ? screen_->Json() : screen_->Text();
  }
  bool complete() override { return screen_->complete(); }

 private:
  const std::unique_ptr<WorkersScreen> screen_;
};

// By a router's Admin.
class OfRouter final : public Source {
 public:
  OfRouter(std::string endpoint, const std::shared_ptr<grpc::Channel>& channel)
      : endpoint_(std::move(endpoint)), stub_(v1::Admin::NewStub(channel)) {}

  absl::StatusOr<std::string> Draw(bool json, size_t columns) override {
    constexpr std::chrono::seconds kPatience{5};
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kPatience);
    v1::ClusterPicture picture;
    RETURN_IF_ERROR(AdminStatus(stub_->Cluster(&context, {}, &picture), endpoint_));
    if (json) return picture.json() + "\n";
    ClusterSeen seen{.json = picture.json(), .at = clock_.Now()};
    auto text = ClusterText(seen, before_, columns);
    before_ = std::move(seen);
    return text;
  }
  bool complete() override { return true; }

 private:
  const std::string endpoint_;
  const std::unique_ptr<v1::Admin::Stub> stub_;
  SteadyClock clock_;
  std::optional<ClusterSeen> before_;
};

absl::StatusOr<std::unique_ptr<Source>> OpenSource(const TopOptions& options) {
  if (!options.workers.empty()) {
    ASSIGN_OR_RETURN(auto screen, WorkersScreen::Open(options));
    return std::unique_ptr<Source>(new OfWorkers(std::move(screen)));
  }
  ASSIGN_OR_RETURN(auto channel, Connect(options.endpoint, options.tls, Called::kProcess));
  return std::unique_ptr<Source>(new OfRouter(options.endpoint, channel));
}

int TopFailed(const absl::Status& status) {
  fmt::print(stderr, "penstock top: {}\n", Message(status));
  return static_cast<int>(ExitCodeFor(status));
}

}  // namespace

int Run(const TopOptions& options) {
  Interrupts interrupts({SIGINT, SIGTERM});
  const auto source = OpenSource(options);
  if (!source.ok()) return TopFailed(source.status());
  SteadyClock clock;
  const TimePoint give_up = clock.Now() + std::chrono::seconds(2);
  int signal = 0;
  while (signal == 0 && !(*source)->complete() && clock.Now() < give_up) {
    signal = interrupts.Wait(std::chrono::milliseconds(20));
  }
  std::optional<AlternateScreen> screen;
  if (!options.once && !options.json && TerminalSize(STDOUT_FILENO)) screen.emplace();
  while (signal == 0) {
    const std::optional<ScreenSize> size = TerminalSize(STDOUT_FILENO);
    const auto picture = (*source)->Draw(options.json, size ? size->columns : SIZE_MAX);
    if (!picture.ok()) {
      screen.reset();
      return TopFailed(picture.status());
    }
    if (screen) {
      screen->Draw(FitToScreen(*picture, *size));
    } else {
      fmt::print("{}", *picture);
      fflush(stdout);
    }
    if (options.once) return (*source)->complete() ? 0 : static_cast<int>(ExitCode::kUnavailable);
    signal = interrupts.Wait(std::chrono::milliseconds(options.every_ms));
  }
  return signal == SIGINT ? 0 : 128 + signal;
}

}  // namespace penstock
