#include "lab/router/edge_streams.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <thread>

#include "base/lifecycle.h"
#include "lab/fake/fake_model.h"
#include "lab/fake/fake_worker.h"
#include "lab/fake/paced_worker.h"
#include "lab/fake/test_model.h"
#include "lab/fake/wait_until.h"
#include "router/router_server.h"

namespace penstock {
namespace {

constexpr char kPrompt[] = "Once upon a time";
constexpr double kLimitMs = 5;
constexpr double kLimitChange = 0.2;
constexpr int kDecodeWorkers = 8;
constexpr uint32_t kOtherTokens = 1500;  // of other streams: more than a measurement takes
constexpr Duration kStep = std::chrono::milliseconds(2);  // of a decode worker
constexpr int kStalledReceiveBytes = 4096;

class ClientSocket {
 public:
  // `receive_bytes`: that the kernel takes for it before it has read; 0: as many as usual.
  explicit ClientSocket(const std::string& endpoint, int receive_bytes = 0) {
    const auto address = ParseHostPort(endpoint);
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (receive_bytes > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    }
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(address->port);
    inet_pton(AF_INET, address->host.c_str(), &to.sin_addr);
    good_ = connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0;
    fcntl(fd_, F_SETFL, O_NONBLOCK);
  }
  ~ClientSocket() { close(fd_); }
  ClientSocket(const ClientSocket&) = delete;
  ClientSocket& operator=(const ClientSocket&) = delete;

  void Send(const std::string& text) {
    good_ = good_ &&
            send(fd_, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  int fd() const { return fd_; }
  bool good() const { return good_; }

 private:
  int fd_ = -1;
  bool good_ = false;
};

std::string StreamRequest(uint64_t seed, uint32_t tokens, uint32_t choices) {
  const std::string body =
      fmt::format(R"({{"prompt": "{}", "max_tokens": {}, "seed": {}, "n": {}, "stream": true}})",
                  kPrompt, tokens, seed, choices);
  return fmt::format(
      "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n\r\n{}",
      body.size(), body);
}

// One client and what it has received.
struct Client {
  Client(const std::string& endpoint, uint64_t number) : connection(endpoint), seed(number) {}

  ClientSocket connection;
  const uint64_t seed;
  std::string unread;
  std::string text;
  bool done = false;
};

// Reads events of the stream as they come; notes how old each token is.
class Reader {
 public:
  Reader(const EmissionLog& log, std::vector<double>& latencies_ms)
      : log_(log), latencies_ms_(latencies_ms) {}

  // False: the connection has ended.
  bool Read(Client& client) {
    const ssize_t count = recv(client.connection.fd(), buffer_.data(), buffer_.size(), 0);
    if (count < 0 && errno == EAGAIN) return true;
    if (count <= 0) return false;
    const int64_t now = std::chrono::steady_clock::now().time_since_epoch().count();
    client.unread.append(buffer_.data(), static_cast<size_t>(count));
    size_t at = 0;
    for (size_t end = 0; (end = client.unread.find("\n\n", at)) != std::string::npos;
         at = end + 2) {
      Take(std::string_view(client.unread).substr(at, end - at), now, client);
    }
    client.unread.erase(0, at);
    return true;
  }

 private:
  void Take(std::string_view event, int64_t now, Client& client) {
    if (event.find("data: [DONE]") != std::string_view::npos) client.done = true;
    constexpr std::string_view kText = R"("text":")";
    const size_t begin = event.find(kText);
    if (begin == std::string_view::npos) return;
    const size_t first = begin + kText.size();
    const std::string_view text = event.substr(first, event.find('"', first) - first);
    if (text.empty()) return;
    // The first of several tokens in one event has waited longest. (Token 0 is the prefill
    // worker's.)
    const size_t position = client.text.size();
    client.text += text;
    if (position == 0) return;
    latencies_ms_.push_back(static_cast<double>(now - log_.At(client.seed, position)) / 1e6);
  }

  const EmissionLog& log_;
  std::vector<double>& latencies_ms_;
  std::array<char, 64 << 10> buffer_;
};

double Percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  const size_t at = std::min(values.size() - 1, static_cast<size_t>(p * values.size()));
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at), values.end());
  return values[at];
}

double ResidentKiB() {
  std::ifstream file("/proc/self/statm");
  double total = 0;
  double resident = 0;
  file >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / 1024;
}

struct Measured {
  std::vector<double> latencies_ms;
  uint32_t errors = 0;
  double memory_kib = 0;  // more than before the streams, while all of them ran

  void Add(const Measured& more) {
    latencies_ms.insert(latencies_ms.end(), more.latencies_ms.begin(), more.latencies_ms.end());
    errors += more.errors;
    memory_kib = std::max(memory_kib, more.memory_kib);
  }
};

class Bench {
 public:
  explicit Bench(const EdgeBenchOptions& options)
      : options_(options), log_(options.streams, options.tokens) {}

  absl::Status Start() {
    RouterServerOptions router;
    router.model = MakeTestModel();
    router.http_listen = "127.0.0.1:0";
    router.max_requests = 4 * (options_.streams + options_.stalled);
    router.http_connections = router.max_requests;
    prefill_ = std::make_unique<FakeWorker>(
        FakeWorkerOptions{.role = v1::WorkerState::PREFILL, .worker_id = "prefill"});
    router.fleet.discovery.workers = {prefill_->endpoint()};
    for (int i = 0; i < kDecodeWorkers; ++i) {
      decode_.push_back(std::make_unique<PacedWorker>(PacedWorker::Options{
          .worker_id = fmt::format("decode-{}", i),
          .token_every = Duration(static_cast<int64_t>(1e9 / options_.tokens_per_s)),
          .step = kStep,
          .log = &log_}));
      router.fleet.discovery.workers.push_back(decode_.back()->endpoint());
    }
    ASSIGN_OR_RETURN(router_, RouterServer::Start(std::move(router)));
    if (!WaitUntil([&] { return router_->fleet().table().ready(); })) {
      return Unavailable("the bench's workers did not become ready");
    }
    return absl::OkStatus();
  }

  Measured Measure() {
    Measured measured;
    Reader reader(log_, measured.latencies_ms);
    const double before = ResidentKiB();
    const int epoll = epoll_create1(EPOLL_CLOEXEC);
    std::vector<std::unique_ptr<Client>> clients;
    uint32_t open = 0;
    const auto drain = [&](int wait_ms) {
      std::array<epoll_event, 256> events;
      const int count = epoll_wait(epoll, events.data(), events.size(), wait_ms);
      for (int i = 0; i < count; ++i) {
        Client& client = *static_cast<Client*>(events[i].data.ptr);
        if (reader.Read(client) && !client.done) continue;
        epoll_ctl(epoll, EPOLL_CTL_DEL, client.connection.fd(), nullptr);
        --open;
      }
    };
    for (uint32_t i = 0; i < options_.streams; ++i) {
      clients.push_back(std::make_unique<Client>(router_->http_endpoint(), i));
      epoll_event event{.events = EPOLLIN, .data = {.ptr = clients.back().get()}};
      epoll_ctl(epoll, EPOLL_CTL_ADD, clients.back()->connection.fd(), &event);
      clients.back()->connection.Send(StreamRequest(i, options_.tokens, 1));
      ++open;
      drain(0);
      usleep(1000);  // 1,000 requests a second: a start, not a stampede
    }
    measured.latencies_ms.clear();  // from here on all of them run
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    while (open > 0 && std::chrono::steady_clock::now() < limit) {
      measured.memory_kib = std::max(measured.memory_kib, ResidentKiB() - before);
      drain(100);
    }
    close(epoll);
    const std::string prompt = kPrompt;
    const std::vector<uint32_t> ids(prompt.begin(), prompt.end());
    for (const auto& client : clients) {
      const bool whole =
          client->done && client->text == FakeAnswer(ids, client->seed, 0, options_.tokens);
      measured.errors += whole ? 0 : 1;
    }
    return measured;
  }

  // Other streams, which are read as they come.
  class Crowd {
   public:
    Crowd(const std::string& endpoint, uint32_t count, uint64_t first_seed)
        : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
      for (uint32_t i = 0; i < count; ++i) {
        clients_.push_back(std::make_unique<ClientSocket>(endpoint));
        epoll_event event{.events = EPOLLIN, .data = {.fd = clients_.back()->fd()}};
        epoll_ctl(epoll_, EPOLL_CTL_ADD, clients_.back()->fd(), &event);
        clients_.back()->Send(StreamRequest(first_seed + i, kOtherTokens, 1));
        usleep(1000);
      }
      reader_ = std::thread([this] { ReadAll(); });
    }
    ~Crowd() {
      stop_ = true;
      reader_.join();
      close(epoll_);
    }
    Crowd(const Crowd&) = delete;
    Crowd& operator=(const Crowd&) = delete;

   private:
    void ReadAll() {
      std::array<char, 64 << 10> buffer;
      std::array<epoll_event, 256> events;
      while (!stop_) {
        const int count = epoll_wait(epoll_, events.data(), events.size(), 100);
        for (int i = 0; i < count; ++i) {
          if (recv(events[i].data.fd, buffer.data(), buffer.size(), 0) > 0) continue;
          epoll_ctl(epoll_, EPOLL_CTL_DEL, events[i].data.fd, nullptr);
        }
      }
    }

    const int epoll_;
    std::vector<std::unique_ptr<ClientSocket>> clients_;
    std::atomic<bool> stop_{false};
    std::thread reader_;
  };

  // Half ask for much and read nothing, half send their request a byte at a time.
  class Nuisance {
   public:
    Nuisance(const std::string& endpoint, uint32_t count, uint64_t first_seed) {
      for (uint32_t i = 0; i < count; ++i) {
        // With the usual buffer a client would not stall before the run is over.
        clients_.push_back(std::make_unique<ClientSocket>(endpoint, kStalledReceiveBytes));
        const std::string request = StreamRequest(first_seed + i, kOtherTokens, 1);
        if (i % 2 == 0) {
          clients_.back()->Send(request);
        } else {
          slow_.push_back(clients_.back().get());
        }
        usleep(1000);
      }
      dripper_ = std::thread([this] { Drip(); });
    }
    ~Nuisance() {
      stop_ = true;
      dripper_.join();
    }
    Nuisance(const Nuisance&) = delete;
    Nuisance& operator=(const Nuisance&) = delete;

   private:
    // Ten bytes a second each, and each at a time of its own, as clients that do not know of each
    // other send.
    void Drip() {
      const std::string request = StreamRequest(0, 10, 1);
      const Duration apart = Duration(std::chrono::milliseconds(100)) / (slow_.size() + 1);
      auto next = std::chrono::steady_clock::now();
      for (size_t at = 0; !stop_; ++at) {
        for (ClientSocket* client : slow_) {
          client->Send(request.substr(at % 64, 1));
          std::this_thread::sleep_until(next += apart);
        }
      }
    }

    std::vector<std::unique_ptr<ClientSocket>> clients_;
    std::vector<ClientSocket*> slow_;
    std::atomic<bool> stop_{false};
    std::thread dripper_;
  };

  template <class Others>
  std::unique_ptr<Others> Join() {
    return std::make_unique<Others>(router_->http_endpoint(), options_.stalled, options_.streams);
  }

 private:
  const EdgeBenchOptions options_;
  EmissionLog log_;
  std::unique_ptr<FakeWorker> prefill_;
  std::vector<std::unique_ptr<PacedWorker>> decode_;
  std::unique_ptr<RouterServer> router_;
};

BenchRow Row(const std::string& name, double value, const std::string& unit, double limit) {
  return {.name = name,
          .value = value,
          .unit = unit,
          .limit = limit,
          .fraction = limit == 0 ? 0 : value / limit};
}

}  // namespace

absl::StatusOr<std::vector<BenchRow>> RunEdgeBench(
    const EdgeBenchOptions& options, const std::function<void(const std::string&)>& progress) {
  Bench bench(options);
  RETURN_IF_ERROR(bench.Start());
  Measured plain, crowded, stalled;
  for (int round = 0; round < options.rounds; ++round) {
    progress(fmt::format("edge: {} streams of {} tokens a second, {} of {}", options.streams,
                         options.tokens_per_s, round + 1, options.rounds));
    plain.Add(bench.Measure());
    auto crowd = bench.Join<Bench::Crowd>();
    progress(fmt::format("edge: the same beside {} others", options.stalled));
    crowded.Add(bench.Measure());
    crowd.reset();
    auto nuisance = bench.Join<Bench::Nuisance>();
    progress(fmt::format("edge: the same beside {} clients that stall", options.stalled));
    stalled.Add(bench.Measure());
  }
  const double p99 = Percentile(plain.latencies_ms, 0.99);
  const double p99_crowded = Percentile(crowded.latencies_ms, 0.99);
  const double p99_stalled = Percentile(stalled.latencies_ms, 0.99);
  const auto change = [&](double before) { return before > 0 ? p99_stalled / before - 1 : 0; };
  return std::vector<BenchRow>{
      Row("edge_p50", Percentile(plain.latencies_ms, 0.5), "ms", kLimitMs),
      Row("edge_p99", p99, "ms", kLimitMs),
      Row("edge_p99_crowded", p99_crowded, "ms", kLimitMs),
      Row("edge_p99_stalled", p99_stalled, "ms", kLimitMs),
      Row("edge_stalled_change", change(p99), "", kLimitChange),
      Row("edge_stalled_for_crowd", change(p99_crowded), "", kLimitChange),
      Row("edge_memory", plain.memory_kib / options.streams, "KiB/stream", 0),
      Row("edge_errors", plain.errors + crowded.errors + stalled.errors, "streams", 0)};
}

}  // namespace penstock
