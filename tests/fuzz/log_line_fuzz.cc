// Any bytes as a field's value: one line, and JSON that a strict parser takes.
#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/log/log_line.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const penstock::LogField field("x", std::string_view(reinterpret_cast<const char*>(data), size));
  std::string text, json = "{\"a\":1";
  penstock::AppendLogField(field, penstock::LogFormat::kText, text);
  penstock::AppendLogField(field, penstock::LogFormat::kJson, json);
  for (const char c : text + json) {
    PENSTOCK_CHECK(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f);
  }
  PENSTOCK_CHECK(nlohmann::json::parse(json + "}").contains("x"));
  return 0;
}
