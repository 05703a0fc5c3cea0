#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lab/eval/kv_eval.h"

namespace penstock {

// What each subcommand was asked to do. command_line.cc fills these; each command reads its own.

// Absent: what the server takes by itself.
struct SamplingOptions {
  std::optional<uint32_t> max_tokens = {};
  std::optional<float> temperature = {};
  std::optional<float> top_p = {};
  std::optional<uint32_t> top_k = {};
  std::optional<float> min_p = {};
  std::optional<int64_t> seed = {};
  std::vector<std::string> stop = {};
  std::string kv_policy = {};  // empty: the server's default
};

// PEM files for TLS; empty: none.
struct TlsOptions {
  std::string ca;    // who must have signed the certificate of who is called
  std::string cert;  // our own
  std::string key;
};

struct GenerateOptions {
  std::string endpoint;
  TlsOptions tls;
  std::string model;
  std::string prompt;  // "-" reads standard input
  SamplingOptions sampling;
  uint32_t choices = 1;
  bool json = false;
  bool stats = false;
};

struct ChatOptions {
  std::string endpoint;
  TlsOptions tls;
  std::string model;
  std::string system;
  SamplingOptions sampling;
  bool json = false;
  bool stats = false;
};

struct UpOptions {
  std::string model;  // empty: the bundled one
  uint32_t prefill = 1;
  uint32_t decode = 1;
  uint16_t port = 8090;
  std::optional<uint16_t> http_port;  // absent: 8000, or a free one where `port` is
  std::string kv_memory;              // empty: the workers' own default
  std::optional<uint32_t> threads;    // a worker; absent: the cores shared out
  std::optional<uint32_t> block_tokens;
  std::string kv_format;
  std::string lossy_kv;
  std::string wire;
  std::string log_level = "info";
  std::string binaries;  // folder of the other programs; empty: this one's
  std::string ask;       // asked once the cluster is up
  std::string once;      // the same, and then everything stops
  uint32_t max_tokens = 96;
  bool verbose = false;
};

struct BenchOptions {
  std::string suite;
  int32_t threads = 0;  // 0: every core
  int32_t rounds = 3;
  bool json = false;
  std::vector<std::string> traces;  // of the cache suite
  bool partial_blocks = false;
  std::string plot;
  double tokens_per_s = 20;                    // of each stream of the edge suite
  std::string directory;                       // of the store suite
  std::string model = "models/penstock-tiny";  // of the codec suite
  std::string text = "models/text/held_out.txt";
  std::string isa;
};

struct BenchServeOptions {
  std::string endpoint = "http://127.0.0.1:8000";
  TlsOptions tls;  // of gRPC
  std::string model;
  std::string api_key;
  bool chat = false;
  bool text = false;
  bool openai_only = false;
  double temperature = 0;
  double timeout_s = 600;
  std::string token_ids = "256:1255";

  double rate = 0;  // a second; 0: not said
  double burstiness = 1;
  uint32_t concurrency = 0;
  uint32_t requests = 0;
  double duration_s = 0;
  uint32_t warm_up = 0;
  uint64_t seed = 0;

  std::string prompt_tokens = "256";
  std::string output_tokens = "64";
  uint32_t shared_prefix = 0;
  uint32_t prefixes = 1;
  std::string trace;
  double trace_speed = 1;
  uint32_t trace_longest = 0;
  bool trace_ticks = false;

  std::string slo;
  bool json = false;
  bool detailed = false;
  std::string output;
  std::string plot;
};

struct KvOptions {
  std::string what;   // inspect, stats, verify or flush
  std::string where;  // a directory, or the host:port of a worker
  TlsOptions tls;
  bool json = false;
};

struct AdminOptions {
  std::string endpoint;
  TlsOptions tls;
  std::string what;
  std::vector<std::string> arguments;  // of `what`
  uint32_t within_s = 30;              // of role
  bool force = false;                  // likewise
  bool json = false;
};

struct PlanOptions {
  std::string model;
  std::string hardware = "cpu";
  std::string memory;               // empty: the hardware's own
  std::optional<double> read_gbps;  // absent: the hardware's own, as the next
  std::optional<double> tflops;
  std::string kv_memory;  // empty: what weights and a reserve leave
  uint32_t block_tokens = 16;
  uint32_t max_batch = 64;
  double link_gbps = 1.25;  // GB/s
  std::vector<int64_t> contexts;
  double rate = 1;
  double prompt_tokens = 1024;
  double answer_tokens = 256;
  double hit_ratio = 0;
  double token_ms = 50;
  double utilisation = 0.7;
  double keep_s = 600;
  std::string plot;
  bool json = false;
};

struct TopOptions {
  std::string endpoint;              // a router's admin_listen
  std::vector<std::string> workers;  // not empty: these are asked instead
  TlsOptions tls;
  uint32_t every_ms = 1000;
  bool once = false;
  bool json = false;
};

struct TraceOptions {
  std::string endpoint;
  TlsOptions tls;
  std::string model;
  std::string prompt;
  SamplingOptions sampling;
};

struct HealthOptions {
  std::string endpoint;
  TlsOptions tls;
  std::string service;  // "" also says no while draining, "live" only when nothing moves
  uint32_t timeout_ms = 2000;
};

struct CalibrateOptions {
  std::string model;
  std::string text = "models/text/calibration.txt";
  int32_t tokens = 32768;
  int32_t threads = 0;  // 0: every core
};

struct EvalOptions {
  std::string subject;  // "kv"
  KvEvalOptions kv;
  bool json = false;
  std::string plot;
};

struct SimulateCommand {
  std::vector<std::string> traces;
  std::vector<uint32_t> workers;
  std::vector<std::string> policies;
  uint32_t decode_workers = 0;
  uint64_t cache_tokens = 30'000'000;
  uint32_t copies = 1;
  uint32_t requests = 4000;
  uint32_t seeds = 1;
  double rho = 1;
  double index_lag_ms = 0;
  bool shared_stores = false;
  bool goodput = false;
  bool json = false;
  std::string plot;
};

struct CompletionOptions {
  std::string shell;  // bash or zsh
};

struct ManualOptions {
  std::string program;
};

struct ExplainOptions {
  std::string endpoint;
  TlsOptions tls;
  std::string model;
  std::string prompt;
  bool json = false;
};

}  // namespace penstock
