#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "lab/simulate/sim_trace.h"

namespace penstock {

// A trace as a file, for the time of a test.
class TraceFile {
 public:
  explicit TraceFile(const SimTrace& trace)
      : path_(std::filesystem::temp_directory_path() /
              ("penstock-trace-" + std::to_string(getpid()) + ".jsonl")) {
    std::ofstream file(path_);
    for (const SimRequest& request : trace.requests) {
      file << "{\"timestamp\": " << request.arrival_s * 1000
           << ", \"input_length\": " << request.prompt_tokens
           << ", \"output_length\": " << request.answer_tokens << ", \"hash_ids\": [";
      for (size_t i = 0; i < request.blocks.size(); ++i) {
        file << (i == 0 ? "" : ", ") << request.blocks[i];
      }
      file << "]}\n";
    }
  }
  ~TraceFile() { std::filesystem::remove(path_); }
  SimSource source() const { return {.path = path_}; }

 private:
  const std::filesystem::path path_;
};

}  // namespace penstock
