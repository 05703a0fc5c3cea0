#pragma once

#include <memory>
#include <string>

#include "kernels/cpu/thread_pool.h"
#include "kvstore/cache/block_pool.h"
#include "kvstore/paging/disk_pager.h"
#include "model/forward/transformer_runner.h"
#include "model/weights/weights.h"
#include "worker/model/gpu_host.h"

namespace penstock {

// This room (worker/model) loads a checkpoint onto a CPU or GPUs and maps the block pool for its
// KV. It knows one model and one pool. It does not know requests, engines, roles or other workers.
//
// A ModelHost is a checkpoint that is ready to run, and the block pool for its KV. Members are in
// the order of construction.
struct ModelHost {
  // The file of the pool's pages.
  struct KvFile {
    std::string directory;  // empty: all pages are in memory
    std::string size;       // "16GiB"
  };
  struct Options {
    std::string model;      // directory
    std::string kv_memory;  // "512MiB"
    KvFile kv_file = {};
    int32_t block_tokens = 16;
    std::string kv_format = "bf16";
    std::string weights = "checkpoint";  // or "int8", "int4" (WeightPolicy)
    std::string expert_memory;           // "8GiB": ExpertCache::Options; empty: all are in memory
    std::string expert_dir;
    std::string packed_directory;  // LoadOptions::packed_directory
    int32_t threads = 0;           // 0: every core
    int32_t step_tokens = 512;     // maximum of one step
    // Or "cuda:N", whose pool takes what is left of the GPU's memory: at most kv_memory, if
    // limits_gpu_pool, or all.
    std::string device = "cpu";
    bool limits_gpu_pool = false;
    double gpu_memory_utilization = 0.9;
    int32_t tensor_parallel = 1;       // GPUs, from that one on
    std::string nccl_library;          // where there are several
    std::string gpu_kernels = "auto";  // as GpuOptions::kernels
    std::string gpu_graphs = "auto";   // as GpuOptions::graphs
    std::string numerics = "exact";    // as GpuOptions::numerics
    bool evicts = false;               // requests may evict KV: a GPU needs memory for it
    // Requests may select pages: a GPU, and the memory of a file of pages, have room for bounds.
    bool selects = false;
    bool blends = false;   // requests may blend KV: a GPU needs memory for it
    bool use_mtp = false;  // load the model's layer for multi-token prediction, too
    // Computes on these threads, which outlive the host, instead of `threads` of its own. The
    // caller computes one of the models at a time.
    ThreadPool* shared_threads = nullptr;
    // Give the layers of the window group less memory than the others (SplitKvMemory). The callers
    // must then hold rows (BlockCredit::MoveWindow).
    bool splits_kv = false;
  };

  // Errors name the file and field, or the missing memory.
  static absl::StatusOr<std::unique_ptr<ModelHost>> Open(const Options& options);

  std::string name;              // of the checkpoint's folder
  Weights weights;               // empty where they are on a GPU
  std::string weights_form;      // Weights::FormName, on a GPU MatricesName
  std::unique_ptr<GpuHost> gpu;  // null: the CPU
  ModelStart start;
  std::string arithmetic;  // what computes, where that changes bits
  std::string numerics;    // as Options::numerics
  // Fingerprint of checkpoint and arithmetic: two workers of equal fingerprints compute equal bits,
  // except workers of different numbers of GPUs (docs/adr/0025).
  uint64_t fingerprint = 0;
  uint64_t checkpoint_fingerprint = 0;
  std::unique_ptr<ThreadPool> threads;  // null: on a GPU, or shared with another host
  std::unique_ptr<TransformerRunner> cpu_runner;
  ModelRunner* runner = nullptr;
  int32_t step_tokens = 0;           // Options::step_tokens, the runner's maximum
  KvLayout layout;                   // of the pool
  std::unique_ptr<DiskPager> pager;  // null: all pages are in memory
  std::unique_ptr<BlockPool> pool;
};

}  // namespace penstock
