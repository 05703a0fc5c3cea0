#include "model/load/tensor_hashes.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "base/check.h"
#include "base/mapped_file.h"

namespace penstock {
namespace {

// Between two pieces a thread looks whether it is to stop.
constexpr size_t kPieceBytes = size_t{16} << 20;

uint64_t SeedOf(const NamedBytes& tensor) {
  return XXH3_64bits(tensor.name.data(), tensor.name.size());
}

// HashOf in pieces; nullopt if `stopping` became true.
std::optional<uint64_t> HashInPieces(const NamedBytes& tensor, const std::atomic<bool>& stopping) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  PENSTOCK_CHECK(state != nullptr);
  XXH3_64bits_reset_withSeed(state.get(), SeedOf(tensor));
  for (size_t done = 0; done < tensor.bytes.size(); done += kPieceBytes) {
    if (stopping) return std::nullopt;
    const auto piece =
        tensor.bytes.subspan(done, std::min(kPieceBytes, tensor.bytes.size() - done));
    ReadAhead(piece);
    XXH3_64bits_update(state.get(), piece.data(), piece.size());
  }
  return XXH3_64bits_digest(state.get());
}

}  // namespace

uint64_t HashOf(const NamedBytes& tensor) {
  return XXH3_64bits_withSeed(tensor.bytes.data(), tensor.bytes.size(), SeedOf(tensor));
}

TensorHashes::TensorHashes(std::span<const NamedBytes> tensors, int threads) : tensors_(tensors) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { HashUntilEmpty(); });
}

TensorHashes::~TensorHashes() {
  stopping_ = true;
  for (std::thread& thread : threads_) thread.join();
}

uint64_t TensorHashes::Sum() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  return sum_;
}

void TensorHashes::HashUntilEmpty() {
  for (size_t i = next_++; i < tensors_.size(); i = next_++) {
    const std::optional<uint64_t> hash = HashInPieces(tensors_[i], stopping_);
    if (!hash) return;
    sum_ += *hash;
  }
}

}  // namespace penstock
