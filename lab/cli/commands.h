#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/shell/tls_options.h"
#include "lab/eval/kv_eval.h"

namespace penstock {

class CommandLine;

struct BenchOptions {
  std::string suite;
  int32_t threads = 0;  // 0: every core
  int32_t rounds = 3;
  bool json = false;
  std::vector<std::string> traces;  // of the cache suite
  int64_t block_tokens = 512;       // of the traces
  bool partial_blocks = false;
  std::string plot;
  double tokens_per_s = 20;                    // of each stream of the edge suite
  std::string directory;                       // of the store and kv-policy suites
  std::string model = "models/penstock-tiny";  // of the suites that take one
  int32_t vocabulary = 128256;                 // of the structured suite
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

struct PlanOptions {
  std::string model;
  std::string weights = "checkpoint";
  std::string hardware = "cpu";
  std::string memory;               // empty: the hardware's own
  std::optional<double> read_gbps;  // absent: the hardware's own, as the next two
  std::optional<double> tflops;
  std::optional<double> interconnect_gbps;
  std::string tensor_parallel = "auto";
  std::string prefill_tensor_parallel;  // empty: as tensor_parallel, as the next
  std::string decode_tensor_parallel;
  std::string kv_memory;      // empty: what weights and a reserve leave
  std::string expert_memory;  // empty: all experts are in memory
  std::string dram_memory;    // empty: none
  std::string kv_format = "bf16";
  bool mtp = false;  // workers have --speculation=mtp
  uint32_t block_tokens = 16;
  std::optional<uint32_t> chunk_tokens;  // absent: the workers' default on such hardware
  std::optional<uint32_t> max_batch;     // likewise
  double link_gbps = 1.25;               // GB/s
  std::string wire_codec = "raw";
  double gpu_hour_price = 0;
  std::vector<int64_t> contexts;
  std::string trace;  // empty: none
  uint32_t trace_block_tokens = 512;
  std::optional<double> rate;  // absent: the trace's, or 1
  double prompt_tokens = 1024;
  double answer_tokens = 256;
  double hit_ratio = 0;
  double token_ms = 50;
  double utilisation = 0.7;
  double keep_s = 600;
  std::string plot;
  bool json = false;
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
  double day_hours = 0;  // 0: no day
  double peak_over_trough = 4;
  std::vector<std::string> scalers;
  uint32_t workers_min = 1;
  uint32_t workers_max = 16;
  uint32_t start_up_s = 120;
  uint64_t worker_cache_tokens = 1'875'000;
  bool json = false;
  std::string plot;
};

// The laboratory's commands. Shutdown signals are blocked, and no other thread runs yet.
int Run(const BenchOptions& options);
int Run(const BenchServeOptions& options);
int Run(const PlanOptions& options);
int Run(const CalibrateOptions& options);
int Run(const EvalOptions& options);
int Run(const SimulateCommand& command);

void AddBench(CommandLine& line);  // with `bench serve`
void AddPlan(CommandLine& line);
void AddSimulate(CommandLine& line);
void AddCalibrate(CommandLine& line);
void AddEval(CommandLine& line);

}  // namespace penstock
