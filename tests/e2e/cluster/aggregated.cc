// penstock-aggregated MODEL DEVICE GPU_SHARE LONGEST_PROMPT TOKENS WEIGHTS NUMERICS: reads prompts,
// a line of token ids each, and prints for each the ids of an answer of TOKENS, drawn at
// temperature 1 with the line's number, from 0 on, as seed, as one process gives it: what a
// disaggregated run has to match.

#include <cstdio>
#include <iostream>
#include <sstream>
#include <string>

#include "tests/e2e/cluster/local_generator.h"

int main(int argc, char** argv) {
  if (argc != 8) {
    std::fprintf(stderr,
                 "usage: penstock-aggregated MODEL DEVICE GPU_SHARE LONGEST_PROMPT TOKENS WEIGHTS "
                 "NUMERICS\n");
    return 64;
  }
  penstock::LocalGenerator generator({.model = argv[1],
                                      .kv_memory = "256MiB",
                                      .weights = argv[6],
                                      .step_tokens = std::stoi(argv[4]),
                                      .device = argv[2],
                                      .gpu_memory_utilization = std::stod(argv[3]),
                                      .numerics = argv[7]});
  penstock::SamplingParams params;
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<uint32_t> prompt;
    std::istringstream ids(line);
    for (uint32_t id = 0; ids >> id;) prompt.push_back(id);
    for (const uint32_t id : generator.Generate(prompt, params, std::stoi(argv[5]))) {
      std::cout << id << ' ';
    }
    std::cout << std::endl;
    ++params.seed;
  }
}
