#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

namespace penstock {

// A non-owning, row-major view of host or device memory. Copying a View never copies elements.
//
// This room, kernels/, has the operations of a transformer and of the KV formats as pure functions
// over views: one header per operation with its shapes, one implementation in kernels/cpu and one
// in kernels/cuda. It may use base/ only. It does not know models, requests, sequences' owners or
// the network, and no header here depends on a build flag (device.h has the one exception,
// kHasCuda).
template <class T, int N>
struct View {
  View() = default;
  View(T* elements, std::array<int64_t, N> shape) : data(elements), extents(shape) {}

  // View<float, 2> converts to View<const float, 2>, never the reverse.
  template <class U>
  // NOLINTNEXTLINE(google-explicit-constructor)
  requires std::is_convertible_v<U (*)[], T (*)[]> View(View<U, N> other)
      : data(other.data), extents(other.extents) {}

  int64_t dim(int i) const { return extents[i]; }
  T* row(int64_t i) const requires(N == 2) { return data + i * extents[1]; }

  T* data = nullptr;
  std::array<int64_t, N> extents{};
};

static_assert(std::is_trivially_copyable_v<View<float, 3>>);  // Kernels take views by value.

}  // namespace penstock
