#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "kernels/page_copier.h"
#include "model/forward/model_runner.h"

namespace penstock::world {

// The model of a simulated worker, which has no checkpoint. Its runner takes simulated time for
// every step.
struct SimModel {
  ModelRunner* runner = nullptr;  // never destroyed, as the processes that use it
  uint64_t fingerprint = 0;
  // Set: its pages are copied by this, as a GPU's are.
  PageCopier* (*make_copier)(std::byte* arena, const KvLayout& layout) = nullptr;
};

// Opens the checkpoint of a worker's configuration, in the worker's process.
using OpenModel = std::function<SimModel(const std::string& checkpoint)>;

// Set it once, before a worker starts.
void SetModels(OpenModel open);

}  // namespace penstock::world
