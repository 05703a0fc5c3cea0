#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/tls/tls_files.h"

namespace penstock {

// A certificate and its key, as PEM text.
struct TestPair {
  std::string cert;
  std::string key;
};

// A CA of a test, whose key is made on the spot.
class TestCa {
 public:
  explicit TestCa(const std::string& name);
  ~TestCa();

  const std::string& pem() const;
  // For 127.0.0.1 and localhost, for as long; what has expired has a negative time.
  TestPair Issue(const std::string& name, std::chrono::hours valid = std::chrono::hours(24)) const;
  // Names `roles` (base/tls/tls_roles.h), too.
  TestPair IssueFor(const std::vector<std::string>& roles) const;

 private:
  TestPair IssueWith(const std::string& name, const std::string& names,
                     std::chrono::hours valid) const;

  struct State;
  std::unique_ptr<State> state_;
};

// A concurrent reader finds the old file or all of the new one.
void ReplaceFile(const std::string& path, const std::string& text);

// tls.crt, tls.key and ca.crt in `folder`, as cert-manager lays out a Secret.
void WritePair(const std::string& folder, const TestPair& pair);
void WriteIdentity(const std::string& folder, const TestCa& ca, const TestPair& pair);

// The files of WriteIdentity; the fields are cert, key and ca.
TlsFiles FilesIn(const std::string& folder);

}  // namespace penstock
