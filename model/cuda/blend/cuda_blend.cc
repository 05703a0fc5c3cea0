#include "model/cuda/blend/cuda_blend.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/blend/blend.h"

namespace penstock {
namespace {

int64_t SlotOf(const PagedKv& kv, std::span<const uint32_t> table, int64_t position) {
  const int64_t page = kv.layout.block_tokens;
  return table[static_cast<size_t>(position / page)] * page + position % page;
}

// The rotation from one position to another is that to the latter, times that from the former.
struct Turns {
  std::vector<float> cosines, sines;

  void Add(AngleTable& table, int32_t from, int32_t to) {
    const AngleTable::Angles a = table.At(to), b = table.At(from);
    const float scale = 1 / (table.attention_factor() * table.attention_factor());
    for (size_t i = 0; i < table.pairs(); ++i) {
      cosines.push_back((a.cosines[i] * b.cosines[i] + a.sines[i] * b.sines[i]) * scale);
      sines.push_back((a.sines[i] * b.cosines[i] - a.cosines[i] * b.sines[i]) * scale);
    }
  }
};

// Copies arrays one behind the other to a device's memory.
class Sender {
 public:
  Sender(std::byte* to, void* stream) : to_(to), stream_(stream) {}

  template <class T>
  const T* Send(const std::vector<T>& values) {
    const auto* sent = reinterpret_cast<const T*>(to_);
    cuda::CopyToDevice(to_, values.data(), values.size() * sizeof(T), stream_);
    to_ += (values.size() * sizeof(T) + 15) / 16 * 16;
    return sent;
  }

 private:
  std::byte* to_;
  void* stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaBlend>> CudaBlend::Create(cuda::CudaDevice& device,
                                                             Options options) {
  std::unique_ptr<CudaBlend> blend(new CudaBlend(device, std::move(options)));
  RETURN_IF_ERROR(blend->Allocate());
  return blend;
}

absl::Status CudaBlend::Allocate() {
  const auto rows = static_cast<size_t>(options_.rows_max);
  const size_t squares_bytes = rows * 2 * sizeof(float);
  const auto create = [](auto& buffer, size_t bytes) -> absl::Status {
    ASSIGN_OR_RETURN(buffer, std::decay_t<decltype(buffer)>::Create(bytes, "blends"));
    return absl::OkStatus();
  };
  size_t bytes_of_token = 2 * sizeof(int64_t);
  for (const AngleTable* table : options_.angles) {
    bytes_of_token += 2 * table->pairs() * sizeof(float);
  }
  const size_t layers_bytes = options_.angles_of.size() * sizeof(int32_t) + 8 * 16;
  RETURN_IF_ERROR(create(kept_, rows * static_cast<size_t>(options_.value_width) * sizeof(Bf16)));
  RETURN_IF_ERROR(create(squares_, squares_bytes));
  RETURN_IF_ERROR(create(squares_here_, squares_bytes));
  return create(moves_, kMovedAtOnce * bytes_of_token + layers_bytes);
}

KeyRotations CudaBlend::rotations() {
  KeyRotations rotations{.tables = {}, .layers = options_.angles_of, .exec = {}, .mover = this};
  for (const AngleTable* table : options_.angles) rotations.tables.push_back(table->frequencies());
  return rotations;
}

void CudaBlend::Move(const MoveTokensArgs& args) {
  device_.Select();
  for (int64_t first = 0; first < args.tokens; first += kMovedAtOnce) {
    MoveSome(args, first, std::min(kMovedAtOnce, args.tokens - first));
  }
  cuda::Synchronize(device_.stream());  // the caller may give the blocks to others
}

void CudaBlend::MoveSome(const MoveTokensArgs& args, int64_t first, int64_t count) {
  std::vector<int64_t> from, to;
  std::array<Turns, 2> turns;
  for (int64_t token = first; token < first + count; ++token) {
    const int64_t source = args.from_position + token, target = args.to_position + token;
    from.push_back(SlotOf(args.kv, args.from, source));
    to.push_back(SlotOf(args.kv, args.to, target));
    for (size_t i = 0; i < turns.size(); ++i) {
      turns[i].Add(*options_.angles[i], static_cast<int32_t>(source), static_cast<int32_t>(target));
    }
  }
  std::vector<int32_t> turns_of = options_.angles_of;
  if (args.from_position == args.to_position) std::ranges::fill(turns_of, -1);
  Sender sender(moves_.as<std::byte>(), device_.stream());
  const KvLayout& layout = args.kv.layout;
  cuda::MoveTokensParams params{.kv = cuda::PlanesOf(args.kv, 0),
                                .layer_stride = static_cast<int64_t>(layout.LayerBytes()),
                                .layers = layout.layers,
                                .from = sender.Send(from),
                                .to = sender.Send(to),
                                .turns_of = sender.Send(turns_of)};
  for (size_t i = 0; i < turns.size(); ++i) {
    params.turns[i] = {.cosines = sender.Send(turns[i].cosines),
                       .sines = sender.Send(turns[i].sines),
                       .pairs = static_cast<int32_t>(options_.angles[i]->pairs())};
  }
  cuda::MoveTokens(params, static_cast<int>(count), device_.stream());
}

void CudaBlend::KeepValues(const cuda::KvPlanes& layer, const int64_t* slots, int64_t rows) {
  cuda::ReadValues({.kv = layer, .slots = slots, .values = kept_.as<Bf16>()},
                   static_cast<int>(rows), device_.stream());
}

absl::StatusOr<std::span<const float>> CudaBlend::CompareValues(const cuda::KvPlanes& layer,
                                                                const int64_t* slots,
                                                                int64_t rows) {
  cuda::CompareValues(
      {.kv = layer, .slots = slots, .values = kept_.as<Bf16>(), .squares = squares_.as<float>()},
      static_cast<int>(rows), device_.stream());
  const auto count = static_cast<size_t>(2 * rows);
  cuda::CopyToHost(squares_here_.as<void>(), squares_.as<void>(), count * sizeof(float),
                   device_.stream());
  cuda::Synchronize(device_.stream());
  RETURN_IF_ERROR(cuda::TakeStatus("comparing values of a blend"));
  return std::span<const float>(squares_here_.as<float>(), count);
}

}  // namespace penstock
