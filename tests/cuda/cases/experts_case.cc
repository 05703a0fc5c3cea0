#include "tests/cuda/cases/experts_case.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/cuda/experts.h"
#include "tests/cuda/cases/device_array.h"
#include "tests/cuda/cases/quantised_case.h"

namespace penstock::cuda {
namespace {

std::vector<float> RandomFloats(int64_t size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(size);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<Bf16> RandomBf16(int64_t size, uint64_t seed) {
  std::vector<Bf16> values;
  for (const float value : RandomFloats(size, seed)) values.push_back(ToBf16(value));
  return values;
}

template <class T>
std::vector<T> RowsOf(const std::vector<T>& values, int64_t first, int64_t count, int64_t width) {
  return {values.begin() + first * width, values.begin() + (first + count) * width};
}

std::vector<float> RunScores(const std::vector<Bf16>& x, const std::vector<float>& vectors,
                             int hidden, const std::vector<float>& biases = {}) {
  const auto rows = static_cast<int>(x.size()) / hidden;
  const auto count = static_cast<int>(vectors.size()) / hidden;
  const DeviceArray<Bf16> input(x);
  const DeviceArray<float> weights(vectors), bias(biases), scores(size_t{1} * rows * count);
  Score({.input = input.data(),
         .vectors = weights.data(),
         .bias = biases.empty() ? nullptr : bias.data(),
         .scores = scores.data(),
         .rows = rows,
         .count = count,
         .hidden = hidden},
        nullptr);
  ExpectNoDeviceError("scores");
  return scores.Read();
}

int32_t CountOf(const RouteCase& c) { return c.experts + (c.shared_gate ? 1 : 0); }

double SigmoidInDouble(double x) { return 1 / (1 + std::exp(-x)); }

struct Weighed {
  std::vector<int32_t> chosen;
  std::vector<double> weights;
};

// As RouteArgs says.
void LeaveOutGroups(const RouteCase& c, std::vector<double>& keys) {
  const int32_t size = c.experts / c.groups;
  std::vector<double> best;
  for (int32_t g = 0; g < c.groups; ++g) {
    std::vector<double> group(keys.begin() + g * size, keys.begin() + (g + 1) * size);
    std::ranges::sort(group, std::greater());
    best.push_back(c.sigmoid ? group[0] + group[1] : group[0]);
  }
  std::vector<int32_t> order(c.groups);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return best[a] > best[b]; });
  for (int32_t i = c.kept_groups; i < c.groups; ++i) {
    std::fill_n(keys.begin() + order[i] * size, size, -std::numeric_limits<double>::infinity());
  }
}

// The choice of one row in double precision.
Weighed Oracle(const RouteCase& c, const float* scores, const std::vector<float>& bias) {
  std::vector<double> keys(scores, scores + c.experts);
  for (int e = 0; c.sigmoid && e < c.experts; ++e) {
    keys[e] = SigmoidInDouble(scores[e]) + (bias.empty() ? 0 : bias[e]);
  }
  if (c.groups > 1) LeaveOutGroups(c, keys);
  std::vector<int32_t> order(c.experts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return keys[a] > keys[b]; });
  const auto value = [&](int32_t e) {
    return c.sigmoid ? SigmoidInDouble(scores[e]) : std::exp(double{scores[e]} - scores[order[0]]);
  };
  double sum = 0;
  const bool of_all = !c.sigmoid && !c.normalise;
  for (int i = 0; i < (of_all ? c.experts : c.per_token); ++i) sum += value(order[i]);
  if (c.sigmoid && !c.normalise) sum = 1;
  Weighed result{.chosen = {order.begin(), order.begin() + c.per_token}};
  for (const int32_t e : result.chosen) result.weights.push_back(value(e) / sum * c.scale);
  return result;
}

// Random choices, each expert at most once in a row.
std::vector<int32_t> RandomChoices(int rows, int experts, int per_token, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> ids(experts), chosen;
  std::iota(ids.begin(), ids.end(), 0);
  for (int r = 0; r < rows; ++r) {
    std::shuffle(ids.begin(), ids.end(), random);
    chosen.insert(chosen.end(), ids.begin(), ids.begin() + per_token);
  }
  return chosen;
}

int ColumnsOf(GroupedKernel kernel) { return 1 << static_cast<int>(kernel); }

Product RunGrouped(const GroupedWeight& weight, const GroupedRows& rows, GroupedKernel kernel,
                   const GroupedRoom& room) {
  if (kernel == GroupedKernel::kChosen) return GroupedGemm(weight, rows, room, nullptr);
  if (kernel == GroupedKernel::kWide) return GroupedWideGemm(weight, rows, room.output, nullptr);
  const int columns = ColumnsOf(kernel);
  if (weight.quantised()) {
    return GroupedQuantisedGemm(weight, rows, columns, room.output, nullptr);
  }
  return GroupedSkinnyGemm(weight, rows, columns, room.output, nullptr);
}

// Slices added in order.
std::vector<float> SumsOf(const Product& product, const std::vector<float>& slices, int64_t size) {
  std::vector<float> sums(size);
  for (int64_t i = 0; i < size; ++i) {
    for (int s = 0; s < product.slices; ++s) sums[i] += slices[s * product.slice_stride + i];
  }
  return sums;
}

std::vector<float> Dense(const std::vector<Bf16>& x, const std::vector<Bf16>& w, int inputs) {
  const auto rows = static_cast<int>(x.size()) / inputs;
  const auto outputs = static_cast<int32_t>(w.size()) / inputs;
  const DeviceArray<Bf16> input(x), matrix(w);
  const Weight weight{.data = matrix.data(), .outputs = outputs, .inputs = inputs};
  const int64_t size = int64_t{1} * rows * outputs;
  const DeviceArray<float> output(size * SkinnySlices(weight));
  const Product product = Gemm(weight, input.data(), rows, output.data(), nullptr);
  return SumsOf(product, output.Read(), size);
}

struct GroupedCase {
  const GroupedWeight& weight;
  const std::vector<Bf16>& values;  // of the matrices, on the host
  const std::vector<int>& sizes;
  uint64_t seed;
};

// True if each row of the product has the bits of the dense one.
bool ProductIsDense(const GroupedCase& c, GroupedKernel kernel, GroupedRoom room) {
  const int32_t inputs = c.weight.inputs, outputs = c.weight.outputs;
  std::vector<int32_t> begins = {0};
  for (const int size : c.sizes) begins.push_back(begins.back() + size);
  const int32_t pairs = begins.back();
  const auto x = RandomBf16(int64_t{pairs} * inputs, c.seed);
  const DeviceArray<Bf16> input(x);
  const DeviceArray<int32_t> first(begins);
  const int64_t size = int64_t{pairs} * outputs;
  const bool chosen = kernel == GroupedKernel::kChosen;
  const DeviceArray<float> output(chosen ? GroupedFloats(c.weight, pairs)
                                         : size * SkinnySlices(c.weight.Of(0)));
  room.output = output.data();
  const GroupedRows rows{.input = input.data(),
                         .first = first.data(),
                         .rows = *std::ranges::max_element(c.sizes),
                         .pairs = pairs};
  const Product product = RunGrouped(c.weight, rows, kernel, room);
  ExpectNoDeviceError("a grouped product");
  const std::vector<float> sums = SumsOf(product, output.Read(), size);
  for (int32_t e = 0; e < c.weight.experts; ++e) {
    if (c.sizes[e] == 0) continue;
    const std::vector<float> want =
        Dense(RowsOf(x, begins[e], c.sizes[e], inputs),
              RowsOf(c.values, e, 1, int64_t{outputs} * inputs), inputs);
    if (RowsOf(sums, begins[e], c.sizes[e], outputs) != want) return false;
  }
  return true;
}

}  // namespace

double ScoreDeviation(int rows, int count, int hidden, uint64_t seed, bool bias) {
  const auto x = RandomBf16(int64_t{rows} * hidden, seed);
  const auto vectors = RandomFloats(int64_t{count} * hidden, seed + 1);
  const std::vector<float> biases = bias ? RandomFloats(count, seed + 2) : std::vector<float>();
  const std::vector<float> scores = RunScores(x, vectors, hidden, biases);
  double worst = 0;
  for (int64_t i = 0; i < int64_t{rows} * count; ++i) {
    double want = bias ? biases[i % count] : 0;
    for (int k = 0; k < hidden; ++k) {
      want += double{ToFloat(x[i / count * hidden + k])} * vectors[i % count * hidden + k];
    }
    const double off = std::abs(scores[i] - want) / std::sqrt(hidden);
    if (off > worst || std::isnan(off)) worst = off;  // NaN stays
  }
  return worst;
}

bool ScoresAreOfTheirRow(int rows, int count, int hidden, uint64_t seed) {
  const auto x = RandomBf16(int64_t{rows} * hidden, seed);
  const auto vectors = RandomFloats(int64_t{count} * hidden, seed + 1);
  const std::vector<float> all = RunScores(x, vectors, hidden);
  for (int r = 0; r < rows; ++r) {
    if (RunScores(RowsOf(x, r, 1, hidden), vectors, hidden) != RowsOf(all, r, 1, count)) {
      return false;
    }
  }
  return true;
}

RouteInputs InputsOf(const RouteCase& c) {
  RouteInputs inputs{.scores = RandomFloats(int64_t{c.rows} * CountOf(c), c.seed)};
  if (c.ties) {
    for (float& score : inputs.scores) score = std::round(score);
  }
  if (c.choice_bias) inputs.bias = RandomFloats(c.experts, c.seed + 1);
  return inputs;
}

RouteResult RunRoute(const RouteCase& c, const RouteInputs& inputs) {
  const DeviceArray<float> scores(inputs.scores), bias(inputs.bias);
  const DeviceArray<int32_t> chosen(size_t{1} * c.rows * c.per_token);
  const DeviceArray<float> weights(chosen.size()), shared(c.shared ? c.rows : 0);
  Route({.scores = scores.data(),
         .choice_bias = c.choice_bias ? bias.data() : nullptr,
         .chosen = chosen.data(),
         .weights = weights.data(),
         .shared_weights = c.shared ? shared.data() : nullptr,
         .count = CountOf(c),
         .experts = c.experts,
         .per_token = c.per_token,
         .normalise = c.normalise,
         .sigmoid = c.sigmoid,
         .groups = c.groups,
         .kept_groups = c.kept_groups,
         .scale = c.scale},
        c.rows, nullptr);
  ExpectNoDeviceError("a choice of experts");
  return {.chosen = chosen.Read(), .weights = weights.Read(), .shared = shared.Read()};
}

double RouteDeviation(const RouteCase& c) {
  const RouteInputs inputs = InputsOf(c);
  const RouteResult got = RunRoute(c, inputs);
  double worst = 0;
  const auto compare = [&](float weight, double want) {
    const double off = std::abs(weight - want);
    if (off > worst || std::isnan(off)) worst = off;  // NaN stays
  };
  for (int r = 0; r < c.rows; ++r) {
    const float* scores = inputs.scores.data() + int64_t{r} * CountOf(c);
    const Weighed want = Oracle(c, scores, inputs.bias);
    if (RowsOf(got.chosen, r, 1, c.per_token) != want.chosen) {
      return std::numeric_limits<double>::infinity();
    }
    for (int i = 0; i < c.per_token; ++i) {
      compare(got.weights[r * c.per_token + i], want.weights[i]);
    }
    if (c.shared) compare(got.shared[r], c.shared_gate ? SigmoidInDouble(scores[c.experts]) : 1);
  }
  return worst;
}

bool GroupIsExact(int rows, int experts, int per_token, uint64_t seed) {
  const std::vector<int32_t> choices = RandomChoices(rows, experts, per_token, seed);
  const auto pairs = static_cast<int32_t>(choices.size());
  const DeviceArray<int32_t> chosen(choices), first(experts + 1), of_rows(pairs), places(pairs),
      owners(pairs);
  Group({.chosen = chosen.data(),
         .pairs = pairs,
         .per_token = per_token,
         .experts = experts,
         .first = first.data(),
         .rows = of_rows.data(),
         .places = places.data(),
         .owners = owners.data()},
        nullptr);
  ExpectNoDeviceError("a sort by expert");
  std::vector<int32_t> order(pairs), want_first, want_rows, want_places(pairs), want_owners;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return choices[a] < choices[b]; });
  for (int32_t place = 0; place < pairs; ++place) {
    want_rows.push_back(order[place] / per_token);
    want_places[order[place]] = place;
    want_owners.push_back(choices[order[place]]);
  }
  for (int e = 0; e <= experts; ++e) {
    want_first.push_back(static_cast<int32_t>(
        std::ranges::count_if(choices, [e](int32_t choice) { return choice < e; })));
  }
  return first.Read() == want_first && of_rows.Read() == want_rows &&
         places.Read() == want_places && owners.Read() == want_owners;
}

bool GroupedIsDense(const std::vector<int>& sizes, int inputs, int outputs, GroupedKernel kernel,
                    uint64_t seed) {
  const auto experts = static_cast<int32_t>(sizes.size());
  const auto w = RandomBf16(int64_t{experts} * outputs * inputs, seed + 1);
  const DeviceArray<Bf16> matrices(w);
  const GroupedWeight weight{
      .data = matrices.data(), .outputs = outputs, .inputs = inputs, .experts = experts};
  return ProductIsDense({.weight = weight, .values = w, .sizes = sizes, .seed = seed}, kernel, {});
}

bool GroupedCodesAreDense(const CodeForm& form, const std::vector<int>& sizes, int inputs,
                          int outputs, GroupedKernel kernel, uint64_t seed) {
  const auto experts = static_cast<int32_t>(sizes.size());
  const int32_t half = outputs / 2;
  std::vector<std::byte> panels;
  std::vector<Bf16> values;
  int64_t second_at = 0;
  for (int32_t e = 0; e < experts; ++e) {
    for (const int32_t part : {outputs - half, half}) {
      const RandomCodes codes =
          MakeRandomCodes({.form = form, .inputs = inputs, .outputs = part, .seed = seed + 10 * e});
      if (e == 0 && second_at == 0) second_at = std::ssize(codes.panels);
      panels.insert(panels.end(), codes.panels.begin(), codes.panels.end());
      values.insert(values.end(), codes.weights.begin(), codes.weights.end());
    }
  }
  const DeviceArray<std::byte> memory(panels);
  const auto* first = reinterpret_cast<const uint8_t*>(memory.data());
  const std::array<WeightCodes, 2> sections = {
      {{first, form, 0, outputs - half}, {first + second_at, form, outputs - half, half}}};
  const GroupedWeight weight{.outputs = outputs,
                             .inputs = inputs,
                             .experts = experts,
                             .sections = sections.data(),
                             .section_count = sections.size(),
                             .expert_bytes = std::ssize(panels) / experts};
  constexpr int32_t kAtOnce = 2;
  const DeviceArray<Bf16> expanded(int64_t{kAtOnce} * outputs * inputs);
  return ProductIsDense({.weight = weight, .values = values, .sizes = sizes, .seed = seed}, kernel,
                        {.expanded = expanded.data(), .expanded_experts = kAtOnce});
}

double ClampedGateDeviation(int pairs, int width, int slices, bool bias, uint64_t seed) {
  constexpr int kExperts = 5;
  constexpr float kLimit = 0.75f;
  const int64_t size = int64_t{2} * pairs * width;
  const std::vector<float> products = RandomFloats(size * slices, seed);
  const std::vector<float> biases = RandomFloats(int64_t{2} * kExperts * width, seed + 1);
  const std::vector<int32_t> owners_here = RandomChoices(pairs, kExperts, 1, seed);
  const DeviceArray<float> product(products), bias_there(biases);
  const DeviceArray<int32_t> owners(owners_here);
  const DeviceArray<Bf16> output(size / 2);
  ClampedGate({.product = {.data = product.data(),
                           .slice_stride = size,
                           .slices = slices,
                           .width = 2 * width},
               .bias = bias ? bias_there.data() : nullptr,
               .owners = owners.data(),
               .limit = kLimit,
               .output = output.data()},
              pairs, nullptr);
  ExpectNoDeviceError("a clamped gate");
  const std::vector<Bf16> got = output.Read();
  double worst = 0;
  for (int64_t i = 0; i < size / 2; ++i) {
    const int64_t pair = i / width;
    const auto value = [&](int64_t column) {
      double sum = bias ? biases[(int64_t{2} * owners_here[pair]) * width + column] : 0;
      for (int s = 0; s < slices; ++s) sum += products[s * size + 2 * pair * width + column];
      return sum;
    };
    const double gate = std::min(value(i % width), double{kLimit});
    const double up = std::clamp(value(width + i % width), -double{kLimit}, double{kLimit});
    const double want = gate * SigmoidInDouble(1.702 * gate) * (up + 1);
    const double off = std::abs(ToFloat(got[i]) - want) / std::max(1.0, std::abs(want));
    if (off > worst || std::isnan(off)) worst = off;  // NaN stays
  }
  return worst;
}

bool MixIsExact(const MixCase& c, uint64_t seed) {
  const int64_t pairs = int64_t{c.rows} * c.per_token, size = pairs * c.width;
  const std::vector<float> slices = RandomFloats(size * c.slices, seed);
  const std::vector<float> weights = RandomFloats(pairs, seed + 1);
  std::vector<float> want = RandomFloats(int64_t{c.rows} * c.width, seed + 2);
  std::vector<int32_t> places(pairs);
  std::iota(places.begin(), places.end(), 0);
  if (c.sorted) std::shuffle(places.begin(), places.end(), std::mt19937_64(seed));
  const DeviceArray<float> product(slices), factors(weights), output(want);
  const DeviceArray<int32_t> order(places);
  constexpr int kExperts = 3;
  const std::vector<int32_t> experts = RandomChoices(static_cast<int>(pairs), kExperts, 1, seed);
  const std::vector<float> biases = RandomFloats(int64_t{kExperts} * c.width, seed + 3);
  const DeviceArray<int32_t> chosen(experts);
  const DeviceArray<float> bias(biases);
  Mix({.product =
           {.data = product.data(), .slice_stride = size, .slices = c.slices, .width = c.width},
       .bias = c.bias ? bias.data() : nullptr,
       .chosen = c.bias ? chosen.data() : nullptr,
       .places = c.sorted ? order.data() : nullptr,
       .weights = factors.data(),
       .per_token = c.per_token,
       .output = output.data(),
       .adds = c.adds},
      c.rows, nullptr);
  ExpectNoDeviceError("a mix of experts");
  for (int64_t i = 0; i < std::ssize(want); ++i) {
    float sum = c.adds ? want[i] : 0;
    for (int64_t pair = i / c.width * c.per_token; pair < (i / c.width + 1) * c.per_token; ++pair) {
      float x = 0;
      for (int s = 0; s < c.slices; ++s)
        x += slices[s * size + places[pair] * c.width + i % c.width];
      if (c.bias) x += biases[int64_t{experts[pair]} * c.width + i % c.width];
      sum = std::fma(weights[pair], x, sum);
    }
    want[i] = sum;
  }
  return output.Read() == want;
}

}  // namespace penstock::cuda
