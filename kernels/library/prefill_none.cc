#include "base/check.h"
#include "kernels/library/prefill.h"

namespace penstock::cuda::library {

bool HasPrefill() { return false; }

void LaunchPrefill(const PrefillCall&, void*) {
  PENSTOCK_CHECK(HasPrefill(), "this build has no library kernels");
}

}  // namespace penstock::cuda::library
