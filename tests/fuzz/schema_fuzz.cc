// Schemas, regular expressions and grammars of clients: whatever they are, they become a grammar
// that the library reads, or an error.
#include <cstdint>
#include <string>

#include "base/check.h"
#include "model/grammar/grammar.h"
#include "model/grammar/schema_gate.h"
#include "model/grammar/schema_grammar.h"
#include "model/grammar/structured_output.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto gated = penstock::GateSchema(text);
  if (gated.ok()) {
    const auto grammar = penstock::SchemaGrammar(text, size % 2 == 0);
    PENSTOCK_CHECK(grammar.ok() || absl::IsInvalidArgument(grammar.status()));
    if (grammar.ok()) PENSTOCK_CHECK(penstock::CheckGrammar(*grammar).ok());
  }
  const auto regex = penstock::RegexGrammar(text);
  if (regex.ok()) PENSTOCK_CHECK(penstock::CheckGrammar(*regex).ok());
  return 0;
}
