#include "tests/e2e/models/window_model.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "tests/support/environment.h"

namespace penstock {

void WriteWindowModel(const std::string& folder, int32_t window, WindowedLayersOf layers) {
  for (const auto& file : std::filesystem::directory_iterator(ModelFolder())) {
    const auto target = std::filesystem::path(folder) / file.path().filename();
    std::filesystem::copy_file(file.path(), target);
  }
  nlohmann::json config;
  std::ifstream(ModelFolder() + "/config.json") >> config;
  config["architectures"] = {"MistralForCausalLM"};
  config["model_type"] = "mistral";
  config["sliding_window"] = window;
  if (layers == WindowedLayersOf::kNone) config["sliding_window"] = nullptr;
  config["max_position_embeddings"] = 8192;
  if (layers == WindowedLayersOf::kAllButThird) {
    const char* const slides = "sliding_attention";
    config["layer_types"] = {slides, slides, "full_attention", slides, slides};
  }
  std::ofstream file(folder + "/config.json");
  file << config.dump();
  PENSTOCK_CHECK(file.good());
}

}  // namespace penstock
