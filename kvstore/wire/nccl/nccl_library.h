#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "kvstore/wire/nccl/nccl_abi.h"

namespace penstock {

// NCCL, loaded at run time. It stays loaded until the process ends: threads of its own may be in
// it.
class NcclLibrary {
 public:
  // `path` as dlopen takes it, e.g. "libnccl.so.2". FAILED_PRECONDITION says what is wrong with the
  // library and what to do; versions from 2.19 on are taken, the first whose abort several threads
  // may call.
  static absl::StatusOr<std::shared_ptr<const NcclLibrary>> Load(const std::string& path);

  const nccl::Functions& calls() const { return calls_; }
  const std::string& version() const { return version_; }  // "2.28.9"
  // UNAVAILABLE with NCCL's words; `comm` may be null.
  absl::Status StatusOf(nccl::Result result, std::string_view what, nccl::Comm* comm) const;

 private:
  nccl::Functions calls_{};
  std::string version_;
};

}  // namespace penstock
