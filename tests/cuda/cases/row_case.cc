#include "tests/cuda/cases/row_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/cuda/row_ops.h"
#include "tests/cuda/cases/device_array.h"
#include "tests/cuda/cases/kv_pool_case.h"
#include "tests/kernels/kv_row_oracle.h"

namespace penstock::cuda {
namespace {

class Data {
 public:
  explicit Data(uint64_t seed) : random_(seed) {}
  std::vector<float> Floats(size_t size, float deviation = 1.0f, float mean = 0.0f) {
    std::vector<float> values(size);
    for (float& value : values) value = normal_(random_) * deviation + mean;
    return values;
  }
  std::mt19937_64& random() { return random_; }

 private:
  std::mt19937_64 random_;
  std::normal_distribution<float> normal_;
};

// [slices][rows][width] on the device, and its sum.
struct ProductCase {
  ProductCase(Data& data, int rows, int32_t width, int slices, float deviation)
      : host(data.Floats(size_t{1} * slices * rows * width, deviation)),
        device(host),
        product{.data = device.data(),
                .slice_stride = int64_t{rows} * width,
                .slices = slices,
                .width = width} {}
  double At(int64_t row, int column) const {
    double sum = 0;
    for (int s = 0; s < product.slices; ++s) {
      sum += host[s * product.slice_stride + row * product.width + column];
    }
    return sum;
  }
  std::vector<float> host;
  DeviceArray<float> device;
  Product product;
};

double Worse(double a, double b) {
  return std::isnan(a) || !(b <= a) ? (std::isnan(a) ? a : b) : a;
}

// An RMS norm or a layer norm, with the kernels' default epsilon; an empty bias is 0.
void Normalise(std::vector<double>& row, bool layer_norm, const std::vector<float>& weight,
               const std::vector<float>& bias) {
  const auto size = static_cast<double>(row.size());
  double mean = 0, square = 0;
  for (const double x : row) mean += x / size;
  for (double& x : row) {
    if (layer_norm) x -= mean;
    square += x * x;
  }
  const double scale = 1 / std::sqrt(square / size + 1e-5);
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = row[i] * scale * weight[i] + (layer_norm ? bias[i] : 0.0f);
  }
}

// x = code * scale + minimum, whatever the code.
double Decode(KvCode code, const std::byte* row, const std::byte* scale, int dim, int element,
              double& loss) {
  uint16_t params[2] = {};
  std::memcpy(params, scale, ScaleBytes(code));
  const auto* codes = reinterpret_cast<const uint8_t*>(row);
  if (code == KvCode::kBf16) {
    Bf16 value;
    std::memcpy(&value, row + 2 * element, 2);
    loss = std::fabs(ToFloat(value)) / 256;
    return ToFloat(value);
  }
  const double step = ToFloat(Bf16{params[0]}), minimum = ToFloat(Bf16{params[1]});
  if (code == KvCode::kF8) {
    const int c = codes[element], exponent = c >> 3 & 15, mantissa = c & 7;
    const double x = std::ldexp(exponent == 0 ? mantissa / 8.0 : 1 + mantissa / 8.0,
                                exponent == 0 ? -6 : exponent - 7);
    loss = std::max(x * step / 16, step * std::ldexp(1, -10));
    return (c & 0x80) != 0 ? -x * step : x * step;
  }
  if (IsLevels(code)) {
    const int bits = CodeBits(code);
    const std::vector<double> levels = LevelsOf(bits);
    const double level = LevelAt(row, bits, dim, element);
    // Half of the widest gap; the outermost level stands for all beyond it.
    const double gap = levels.back() - levels[levels.size() - 2];
    loss = step * (std::fabs(level) == levels.back() ? 3 : gap / 2);
    return level * step;
  }
  loss = step / 2;
  int c = codes[element];
  if (code == KvCode::kI4)
    c = element < dim / 2 ? codes[element] & 15 : codes[element - dim / 2] >> 4;
  return c * step + minimum;
}

// Times the normalised Hadamard matrix.
void Hadamard(std::vector<double>& x) {
  for (size_t step = 1; step < x.size(); step *= 2) {
    for (size_t d = 0; d < x.size(); ++d) {
      if ((d & step) != 0) continue;
      const double a = x[d], b = x[d + step];
      x[d] = a + b;
      x[d + step] = a - b;
    }
  }
  for (double& v : x) v /= std::sqrt(x.size());
}

// One RopeAppend: its inputs, on the host and on the device, and what came of it.
class RopeRun {
 public:
  explicit RopeRun(const RopeCase& c)
      : c_(c),
        data_(c.seed),
        product_(data_, c.rows, Columns() * c.head_dim, c.slices, c.deviation),
        bias_(data_.Floats(size_t{1} * Columns() * c.head_dim)),
        query_norm_(data_.Floats(c.head_dim)),
        key_norm_(data_.Floats(c.head_dim)),
        cosines_(data_.Floats(size_t{1} * c.rows * RotaryDims() / 2)),
        sines_(data_.Floats(size_t{1} * c.rows * RotaryDims() / 2)),
        means_(data_.Floats(size_t{1} * c.kv_heads * c.head_dim, 2.0f)),
        planes_(PlanesOfCodes({.keys = c.keys,
                               .values = c.values,
                               .kv_heads = c.kv_heads,
                               .head_dim = c.head_dim,
                               .page = c.page},
                              1, nullptr)),
        layer_(reinterpret_cast<size_t>(planes_.layer)) {
    planes_.rotated_keys = c.rotated;
    for (int r = 0; r < c.rows; ++r) slots_.push_back((r / c.page + 1) * c.page + r % c.page);
    std::swap(slots_.front(), slots_.back());
    if (c.rows > 2) slots_[1] = -1;
  }

  void Append() {
    const DeviceArray<float> bias(bias_), query_norm(query_norm_), key_norm(key_norm_);
    const DeviceArray<float> cosines(cosines_), sines(sines_);
    const DeviceArray<int64_t> slots(slots_);
    const DeviceArray<Bf16> queries(size_t{1} * c_.rows * c_.heads * c_.head_dim);
    const DeviceArray<Bf16> centre(queries.Read().size());
    const DeviceArray<float> means(means_);
    const int blocks = c_.rows / c_.page + 3;
    const DeviceArray<std::byte> pool(static_cast<size_t>(blocks * planes_.block_stride));
    RopeAppendParams params{.product = product_.product,
                            .cosines = cosines.data(),
                            .sines = sines.data(),
                            .query_norm = c_.norms ? query_norm.data() : nullptr,
                            .key_norm = c_.norms ? key_norm.data() : nullptr,
                            .queries = queries.data(),
                            .heads = c_.heads,
                            .rows = c_.rows,
                            .rotary_dims = RotaryDims(),
                            .kv = planes_,
                            .slots = slots.data()};
    if (c_.bias) params.product.bias = bias.data();
    params.kv.layer = pool.data() + layer_;
    KvPlanes second = PlanesOfCodes(
        {.kv_heads = c_.kv_heads, .head_dim = c_.head_dim, .page = c_.page}, 0, nullptr);
    const DeviceArray<std::byte> copies(static_cast<size_t>(blocks * second.block_stride));
    if (c_.centred) {
      second.layer = copies.data();
      params.recent = second;
      params.recent_slots = slots.data();
      params.key_means = means.data();
      params.centre_queries = centre.data();
    }
    RopeAppend(params, nullptr);
    ExpectNoDeviceError("RopeAppend");
    queries_ = queries.Read();
    centre_ = centre.Read();
    pool_ = pool.Read();
  }

  // The head as it should be before it is stored; `column` counts queries, keys, values.
  std::vector<double> Oracle(int row, int column) const {
    const int dim = c_.head_dim;
    const bool value = column >= c_.heads + c_.kv_heads, query = column < c_.heads;
    std::vector<double> x(dim);
    double square = 0;
    for (int d = 0; d < dim; ++d) {
      x[d] = product_.At(row, column * dim + d) + (c_.bias ? bias_[column * dim + d] : 0.0f);
      square += x[d] * x[d];
    }
    if (value) {
      if (IsLevels(c_.values)) Hadamard(x);
      return x;
    }
    const std::vector<float>& norm = query ? query_norm_ : key_norm_;
    if (c_.norms) {
      for (int d = 0; d < dim; ++d) x[d] *= norm[d] / std::sqrt(square / dim + 1e-5);
    }
    RotateTo(row, x);
    if (!query && c_.centred) {
      const std::vector<double> mean = MeanAt(row, column - c_.heads);
      for (int d = 0; d < dim; ++d) x[d] -= mean[d];
    }
    if (!query) {
      for (double& v : x) v = ToFloat(ToBf16(static_cast<float>(v)));
    }
    if (c_.rotated) Hadamard(x);
    return x;
  }

  double QueryDeviation(int row, int head, const std::vector<double>& want) const {
    return Off(queries_, row, head, want);
  }

  // The deviation of a centre query: the factors of the cosines, sines and ones in the product of a
  // query with the rotated mean.
  double CentreDeviation(int row, int head) const {
    if (!c_.centred) return 0;
    const int dim = c_.head_dim, half = RotaryDims() / 2, kv_head = head / (c_.heads / c_.kv_heads);
    const std::vector<double> query = Unrotated(Oracle(row, head));
    std::vector<double> want(dim);
    for (int d = 0; d < dim; ++d) {
      const auto mean = [&](int element) { return double{means_[kv_head * dim + element]}; };
      if (d >= 2 * half) {
        want[d] = query[d] * mean(d);
      } else if (d < half) {
        want[d] = query[d] * mean(d) + query[d + half] * mean(d + half);
      } else {
        want[d] = query[d] * mean(d - half) - query[d - half] * mean(d);
      }
    }
    return Off(centre_, row, head, want);
  }

  // The deviation of key head `head`, or of a value head from kv_heads on. Forgets the page's row.
  double KeptDeviation(int row, int head, const std::vector<double>& want) {
    if (slots_[row] < 0) return 0;
    const KvPlane& plane = head < c_.kv_heads ? planes_.keys : planes_.values;
    const int64_t slot = slots_[row] % c_.page;
    std::byte* page = pool_.data() + layer_ + slots_[row] / c_.page * planes_.block_stride;
    const int kv_head = head % c_.kv_heads;
    std::byte* codes = page + plane.offset + kv_head * plane.head_stride + slot * plane.row_bytes;
    std::byte* scale = page + plane.scale_offset + kv_head * plane.scale_head_stride +
                       slot * ScaleBytes(plane.code);
    double worst = 0;
    for (int d = 0; d < c_.head_dim; ++d) {
      double loss = 0;
      const double x = Decode(plane.code, codes, scale, c_.head_dim, d, loss);
      // bf16 rounds what is stored, and what is quantised, once before.
      const double allowed = loss * 1.01 + std::fabs(want[d]) / 256 + 1e-6 * c_.deviation + 1e-30;
      worst = Worse(worst, std::fabs(x - want[d]) / allowed);
    }
    std::fill_n(codes, plane.row_bytes, std::byte{0xff});
    std::fill_n(scale, ScaleBytes(plane.code), std::byte{0xff});
    return worst;
  }

  bool NothingElseChanged() const {
    return std::ranges::all_of(pool_, [](std::byte b) { return b == std::byte{0xff}; });
  }

 private:
  int RotaryDims() const { return c_.rotary_dims < 0 ? c_.head_dim : c_.rotary_dims; }
  int Columns() const { return c_.heads + 2 * c_.kv_heads; }
  // Turns a head to the position of a row.
  void RotateTo(int row, std::vector<double>& x) const {
    const int half = RotaryDims() / 2;
    for (int d = 0; d < half; ++d) {
      const double a = x[d], b = x[d + half];
      const double cosine = cosines_[row * half + d], sine = sines_[row * half + d];
      x[d] = a * cosine - b * sine;
      x[d + half] = b * cosine + a * sine;
    }
  }
  std::vector<double> MeanAt(int row, int kv_head) const {
    const auto first = means_.begin() + kv_head * c_.head_dim;
    std::vector<double> mean(first, first + c_.head_dim);
    RotateTo(row, mean);
    return mean;
  }
  // A query as it is before it is rotated with its keys (Hadamard), which is its own inverse.
  std::vector<double> Unrotated(std::vector<double> query) const {
    if (c_.rotated) Hadamard(query);
    return query;
  }
  double Off(const std::vector<Bf16>& got, int row, int head,
             const std::vector<double>& want) const {
    double worst = 0;
    for (int d = 0; d < c_.head_dim; ++d) {
      const double x = ToFloat(got[(row * c_.heads + head) * c_.head_dim + d]);
      worst = Worse(worst, std::fabs(x - want[d]) / (std::fabs(want[d]) + 0.1));
    }
    return worst;
  }

  const RopeCase c_;
  Data data_;
  const ProductCase product_;
  const std::vector<float> bias_, query_norm_, key_norm_, cosines_, sines_, means_;
  KvPlanes planes_;
  const size_t layer_;  // where the layer starts in the pool
  std::vector<int64_t> slots_;
  std::vector<Bf16> queries_, centre_;
  std::vector<std::byte> pool_;
};

}  // namespace

double NormDeviation(const NormCase& c, uint64_t seed) {
  Data data(seed);
  const size_t hidden = c.hidden;
  const auto residual = data.Floats(c.rows * hidden, 1.0f, 0.3f);
  const auto weight = data.Floats(hidden), bias = data.Floats(hidden);
  const auto product_norm = data.Floats(hidden), product_bias = data.Floats(hidden);
  ProductCase product(data, c.rows, c.hidden, c.slices, 0.5f);
  const DeviceArray<float> device_residual(residual), device_weight(weight), device_bias(bias);
  const DeviceArray<float> device_product_norm(product_norm), device_product_bias(product_bias);
  const DeviceArray<Bf16> output(residual.size());
  if (c.product_bias) product.product.bias = device_product_bias.data();
  AddNorm({.residual = device_residual.data(),
           .product = product.product,
           .weight = c.norm ? device_weight.data() : nullptr,
           .output = output.data(),
           .hidden = c.hidden,
           .bias = c.layer_norm ? device_bias.data() : nullptr,
           .product_norm = c.product_norm ? device_product_norm.data() : nullptr,
           .factor = c.factor,
           .norms_first = c.norms_first},
          c.rows, nullptr);
  ExpectNoDeviceError("AddNorm");
  const auto sums = device_residual.Read();
  const auto normed = output.Read();
  double worst = 0;
  for (int r = 0; r < c.rows; ++r) {
    const std::vector<double> before(residual.begin() + r * hidden,
                                     residual.begin() + (r + 1) * hidden);
    std::vector<double> added(hidden);
    for (size_t i = 0; i < hidden; ++i) {
      added[i] = product.At(r, i) + (c.product_bias ? product_bias[i] : 0.0f);
    }
    if (c.product_norm && c.slices > 0) Normalise(added, false, product_norm, {});
    std::vector<double> after = before;
    for (size_t i = 0; i < hidden; ++i) {
      if (c.slices > 0) after[i] += added[i] * c.factor;
      const double off = std::fabs(sums[r * hidden + i] - after[i]);
      worst = Worse(worst, off / (std::fabs(after[i]) + 1) * 1000);
    }
    std::vector<double> want = c.norms_first ? before : after;
    if (c.norm) Normalise(want, c.layer_norm, weight, bias);
    for (size_t i = 0; i < hidden; ++i) {
      const double off = std::fabs(ToFloat(normed[r * hidden + i]) - want[i]);
      worst = Worse(worst, off / (std::fabs(want[i]) + 0.01));
    }
  }
  return worst;
}

double GeluDeviation(GeluKind kind, int rows, int width, int slices, uint64_t seed) {
  Data data(seed);
  const bool gate = kind == GeluKind::kTanhGate;
  const ProductCase product(data, rows, gate ? 2 * width : width, slices, 2.0f);
  const DeviceArray<Bf16> output(size_t{1} * rows * width);
  Gelu({.product = product.product, .output = output.data(), .kind = kind}, rows, nullptr);
  ExpectNoDeviceError("Gelu");
  const auto got = output.Read();
  double worst = 0;
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < width; ++i) {
      const double x = product.At(r, i);
      const double tanh = std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
      double want = x / 2 * (1 + (kind == GeluKind::kExact ? std::erf(x / std::sqrt(2.0)) : tanh));
      if (gate) want *= product.At(r, width + i);
      // The two GELUs differ by up to 5e-4.
      worst =
          Worse(worst, std::fabs(ToFloat(got[r * width + i]) - want) / (std::fabs(want) + 2e-3));
    }
  }
  return worst;
}

double WideHeadNormDeviation(const WideNormCase& c, uint64_t seed) {
  Data data(seed);
  const int width = c.query_width + 2 * c.key_width;
  ProductCase product(data, c.rows, width, c.slices, 1.0f);
  const auto bias = data.Floats(width);
  const auto query_norm = data.Floats(c.query_width), key_norm = data.Floats(c.key_width);
  const DeviceArray<float> device_bias(bias), queries(query_norm), keys(key_norm);
  product.product.bias = device_bias.data();
  WideHeadNorm({.product = product.product,
                .output = product.device.data(),
                .query_norm = queries.data(),
                .key_norm = keys.data(),
                .query_width = c.query_width,
                .key_width = c.key_width},
               c.rows, nullptr);
  ExpectNoDeviceError("WideHeadNorm");
  const auto got = product.device.Read();
  double worst = 0;
  for (int r = 0; r < c.rows; ++r) {
    int column = 0;
    for (const std::vector<float>& norm : {query_norm, key_norm, std::vector<float>()}) {
      std::vector<double> want(norm.empty() ? key_norm.size() : norm.size());
      const int first = column;
      for (double& x : want) x = product.At(r, column) + bias[column], ++column;
      if (!norm.empty()) Normalise(want, false, norm, {});
      for (size_t i = 0; i < want.size(); ++i) {
        const double off = std::fabs(got[r * width + first + i] - want[i]);
        worst = Worse(worst, off / (std::fabs(want[i]) + 1));
      }
    }
  }
  return worst;
}

double PlacedEmbeddingDeviation(bool placed, int rows, int hidden, uint64_t seed) {
  Data data(seed);
  constexpr int kEntries = 31;
  std::vector<Bf16> table, places;
  for (const float x : data.Floats(size_t{kEntries} * hidden)) table.push_back(ToBf16(x));
  for (const float x : data.Floats(size_t{kEntries} * hidden)) places.push_back(ToBf16(x));
  std::vector<uint32_t> tokens(rows);
  std::vector<int32_t> positions(rows);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(data.random()() % kEntries);
  for (int32_t& position : positions) position = static_cast<int32_t>(data.random()() % kEntries);
  const DeviceArray<Bf16> device_table(table), device_places(places);
  const DeviceArray<uint32_t> device_tokens(tokens);
  const DeviceArray<int32_t> device_positions(positions);
  const DeviceArray<float> output(size_t{1} * rows * hidden);
  constexpr float kMultiplier = 7.25f;
  Embedding({.tokens = device_tokens.data(),
             .table = device_table.data(),
             .output = output.data(),
             .hidden = hidden,
             .position_table = placed ? device_places.data() : nullptr,
             .positions = device_positions.data(),
             .multiplier = kMultiplier},
            rows, nullptr);
  ExpectNoDeviceError("Embedding");
  const auto got = output.Read();
  double worst = 0;
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < hidden; ++i) {
      double want = ToFloat(table[tokens[r] * hidden + i]);
      if (placed) want += ToFloat(places[positions[r] * hidden + i]);
      want *= kMultiplier;
      worst = Worse(worst, std::fabs(got[r * hidden + i] - want) / (std::fabs(want) + 1));
    }
  }
  return worst;
}

double CapSlicesDeviation(float factor, float cap, int rows, int width, int slices, uint64_t seed) {
  Data data(seed);
  const ProductCase c(data, rows, width, slices, 3.0f);
  SumSlices({.product = c.product, .output = c.device.data(), .factor = factor, .cap = cap}, rows,
            nullptr);
  ExpectNoDeviceError("SumSlices");
  const auto got = c.device.Read();
  double worst = 0;
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < width; ++i) {
      double want = c.At(r, i) * factor;
      if (cap != 0) want = cap * std::tanh(want / cap);
      worst = Worse(worst, std::fabs(got[r * width + i] - want) / (std::fabs(want) + 1));
    }
  }
  return worst;
}

double SiluDeviation(int rows, int half, int slices, uint64_t seed) {
  Data data(seed);
  const ProductCase product(data, rows, 2 * half, slices, 4.0f);
  const DeviceArray<Bf16> output(size_t{1} * rows * half);
  SiluGate({.product = product.product, .output = output.data()}, rows, nullptr);
  const auto got = output.Read();
  double worst = 0;
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < half; ++i) {
      const double gate = product.At(r, i);
      const double want = gate / (1 + std::exp(-gate)) * product.At(r, half + i);
      worst = Worse(worst, std::fabs(ToFloat(got[r * half + i]) - want) / (std::fabs(want) + 1e-3));
    }
  }
  return worst;
}

bool EmbeddingIsExact(int rows, int hidden, uint64_t seed) {
  Data data(seed);
  constexpr int kVocabulary = 31;
  std::vector<Bf16> table;
  for (const float x : data.Floats(size_t{kVocabulary} * hidden)) table.push_back(ToBf16(x));
  std::vector<uint32_t> tokens(rows);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(data.random()() % kVocabulary);
  const DeviceArray<Bf16> device_table(table);
  const DeviceArray<uint32_t> device_tokens(tokens);
  const DeviceArray<float> output(size_t{1} * rows * hidden);
  Embedding({.tokens = device_tokens.data(),
             .table = device_table.data(),
             .output = output.data(),
             .hidden = hidden},
            rows, nullptr);
  const auto got = output.Read();
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < hidden; ++i) {
      if (got[r * hidden + i] != ToFloat(table[tokens[r] * hidden + i])) return false;
    }
  }
  return true;
}

bool SumSlicesIsExact(int rows, int width, int slices, uint64_t seed) {
  Data data(seed);
  ProductCase c(data, rows, width, slices, 1.0f);
  const std::vector<float> bias = data.Floats(width);
  const DeviceArray<float> device_bias(bias), elsewhere(size_t{1} * rows * width);
  c.product.bias = device_bias.data();
  SumSlices({.product = c.product, .output = elsewhere.data()}, rows, nullptr);
  SumSlices({.product = c.product, .output = c.device.data()}, rows, nullptr);
  std::vector<float> want(size_t{1} * rows * width);
  for (size_t i = 0; i < want.size(); ++i) {
    for (int s = 0; s < slices; ++s) want[i] += c.host[s * want.size() + i];
    want[i] += bias[i % width];
  }
  std::vector<float> in_place = c.device.Read();
  in_place.resize(want.size());
  return elsewhere.Read() == want && in_place == want;
}

bool GatherRowsIsExact(int rows, int width, uint64_t seed) {
  Data data(seed);
  std::vector<uint32_t> input(size_t{2} * rows * width);
  for (uint32_t& word : input) word = static_cast<uint32_t>(data.random()());
  std::vector<int32_t> from(rows);
  for (int32_t& row : from) row = static_cast<int32_t>(data.random()() % (2 * rows));
  const DeviceArray<uint32_t> device_input(input), output(size_t{1} * rows * width);
  const DeviceArray<int32_t> device_from(from);
  GatherRows({.input = device_input.data(),
              .output = output.data(),
              .from = device_from.data(),
              .width = width},
             rows, nullptr);
  const auto got = output.Read();
  for (int r = 0; r < rows; ++r) {
    if (!std::equal(got.begin() + r * width, got.begin() + (r + 1) * width,
                    input.begin() + from[r] * width)) {
      return false;
    }
  }
  return true;
}

RopeDeviation RunRopeAppend(const RopeCase& c) {
  RopeRun run(c);
  run.Append();
  RopeDeviation result;
  for (int r = 0; r < c.rows; ++r) {
    for (int column = 0; column < c.heads + 2 * c.kv_heads; ++column) {
      const std::vector<double> want = run.Oracle(r, column);
      if (column < c.heads) {
        result.queries = Worse(result.queries, run.QueryDeviation(r, column, want));
        result.centre = Worse(result.centre, run.CentreDeviation(r, column));
      } else {
        result.kept = Worse(result.kept, run.KeptDeviation(r, column - c.heads, want));
      }
    }
  }
  result.untouched = run.NothingElseChanged();
  return result;
}

KvLayout HeadLayoutOf(const HeadCase& c) {
  return {.layers = c.span > 0 ? 2 : 1,
          .kv_heads = 1,
          .head_dim = static_cast<int32_t>(c.x.size()),
          .dtype = c.dtype,
          .span = c.span};
}

std::vector<std::byte> AppendHead(const HeadCase& c) {
  const auto dim = static_cast<int32_t>(c.x.size());
  std::vector<float> qkv;
  for (int i = 0; i < 3; ++i) qkv.insert(qkv.end(), c.x.begin(), c.x.end());
  const DeviceArray<float> product(qkv), cosines(c.cosines), sines(c.sines);
  const DeviceArray<int64_t> slots(std::vector<int64_t>{0});
  const DeviceArray<Bf16> queries(dim);
  const KvLayout layout = HeadLayoutOf(c);
  const DeviceArray<std::byte> pool(layout.BlockStride());
  const PagedKv pages{.arena = pool.data(), .blocks = 1, .layout = layout};
  const KvPlanes planes = PlanesOf(pages, 0);
  const KvPlanes recent = c.span > 0 ? PlanesOf(pages, 1) : KvPlanes();
  const DeviceArray<float> mean(c.mean.empty() ? c.x : c.mean);
  const DeviceArray<Bf16> centre(dim);
  RopeAppend({.product = {.data = product.data(), .slices = 1, .width = 3 * dim},
              .cosines = cosines.data(),
              .sines = sines.data(),
              .queries = queries.data(),
              .heads = 1,
              .rows = 1,
              .rotary_dims = dim,
              .kv = planes,
              .slots = slots.data(),
              .recent = recent,
              .recent_slots = slots.data(),
              .key_means = c.mean.empty() ? nullptr : mean.data(),
              .centre_queries = centre.data()},
             nullptr);
  const std::vector<std::byte> bytes = pool.Read();
  const KvPlane& plane = c.key ? planes.keys : planes.values;
  const auto codes = bytes.begin() + plane.offset, scales = bytes.begin() + plane.scale_offset;
  std::vector<std::byte> kept(codes, codes + plane.row_bytes);
  kept.insert(kept.end(), scales, scales + ScaleBytes(plane.code));
  if (c.span == 0) return kept;
  const KvPlane& second = c.key ? recent.keys : recent.values;
  const auto copy = bytes.begin() + (recent.layer - pool.data()) + second.offset;
  kept.insert(kept.end(), copy, copy + second.row_bytes);
  return kept;
}

}  // namespace penstock::cuda
