#include "kvstore/wire/nccl/nccl_library.h"

#include <dlfcn.h>

namespace penstock {
namespace {

constexpr int kOldest = 21900;
constexpr int kMajor = 2;

std::string VersionText(int code) {
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const NcclLibrary>> NcclLibrary::Load(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    return FailedPrecondition(
        "NCCL cannot be loaded ({}): install NVIDIA's libnccl2, or name the file with "
        "nccl_library; "
        "wire=auto and tensor_parallel=1 do without",
        dlerror());
  }
  auto library = std::make_shared<NcclLibrary>();
  std::string missing;
  nccl::VisitFunctions(library->calls_, [&](const char* name, auto& function, bool needed) {
    // POSIX guarantees this cast; ISO C++ supports it conditionally.
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr && needed && missing.empty()) missing = name;
  });
  if (!missing.empty()) {
    return FailedPrecondition("nccl_library: {} has no {}: is it NCCL?", path, missing);
  }
  int code = 0;
  RETURN_IF_ERROR(library->StatusOf(library->calls_.get_version(&code), "ncclGetVersion", nullptr));
  library->version_ = VersionText(code);
  if (code < kOldest || code / 10000 != kMajor) {
    return FailedPrecondition(
        "nccl_library: {} is NCCL {}; versions from {} on, below 3, are supported", path,
        library->version_, VersionText(kOldest));
  }
  return library;
}

absl::Status NcclLibrary::StatusOf(nccl::Result result, std::string_view what,
                                   nccl::Comm* comm) const {
  if (result == nccl::kSuccess) return absl::OkStatus();
  const char* detail = calls_.get_last_error(comm);
  return Unavailable("{}: {}{}{}", what, calls_.get_error_string(result),
                     detail == nullptr || *detail == '\0' ? "" : "; ",
                     detail == nullptr ? "" : detail);
}

}  // namespace penstock
