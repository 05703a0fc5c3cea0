// What arrives on the emulated GPU of a model's weights, from memory and from its files.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <random>

#include "kernels/cuda/quantised_gemm.h"
#include "lab/fake/temp_folder.h"
#include "lab/plan/weight_meter.h"
#include "model/cuda/code_sections.h"
#include "model/cuda/cuda_model_check.h"
#include "model/cuda/cuda_upload.h"
#include "model/cuda/cuda_weights.h"
#include "model/load/load_model.h"
#include "model/load/stored_model.h"
#include "model/weights/formats/block_types.h"
#include "tests/cuda/cases/device_bytes.h"
#include "tests/e2e/models/latent_model.h"
#include "tests/support/environment.h"

namespace penstock {
namespace {

constexpr int kThreads = 3;
constexpr auto kOrder = cuda::InputOrder::kNatural;

std::vector<std::byte> BytesOf(const cuda::DeviceBuffer& memory) {
  return cuda::BytesOf(0, memory.as<void>(), memory.bytes());
}

bool SameBytes(const cuda::DeviceBuffer& a, const cuda::DeviceBuffer& b) {
  return BytesOf(a) == BytesOf(b);
}

bool Same(const CudaMatrix& a, const CudaMatrix& b) {
  return SameBytes(a.memory, b.memory) && SameBytes(a.bias_memory, b.bias_memory) &&
         a.weight.outputs == b.weight.outputs && a.weight.inputs == b.weight.inputs;
}

void ExpectSame(const CudaWeights& a, const CudaWeights& b) {
  EXPECT_TRUE(SameBytes(a.embedding, b.embedding));
  EXPECT_TRUE(SameBytes(a.positions, b.positions));
  EXPECT_TRUE(SameBytes(a.final_norm, b.final_norm));
  EXPECT_TRUE(Same(a.lm_head, b.lm_head));
  for (const auto norm : {&DeviceMtp::token_norm, &DeviceMtp::hidden_norm, &DeviceMtp::norm}) {
    EXPECT_TRUE(SameBytes(a.mtp.*norm, b.mtp.*norm));
  }
  EXPECT_TRUE(Same(a.mtp_projection, b.mtp_projection));
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t i = 0; i < a.layers.size(); ++i) {
    const CudaLayer &x = a.layers[i], &y = b.layers[i];
    for (const auto norm : {&CudaLayer::attention_norm, &CudaLayer::attention_output_norm,
                            &CudaLayer::q_norm, &CudaLayer::k_norm, &CudaLayer::sinks,
                            &CudaLayer::mlp_norm, &CudaLayer::mlp_output_norm}) {
      EXPECT_TRUE(SameBytes(x.*norm, y.*norm)) << i;
    }
    for (const auto matrix : {&CudaLayer::qkv, &CudaLayer::attention_output, &CudaLayer::gate_up,
                              &CudaLayer::down, &CudaLayer::latent_down, &CudaLayer::query_down}) {
      EXPECT_TRUE(Same(x.*matrix, y.*matrix)) << i;
    }
    ASSERT_EQ(x.latents.has_value(), y.latents.has_value());
    if (x.latents.has_value()) {
      for (const auto norm : {&DeviceLatents::norm, &DeviceLatents::query_norm}) {
        EXPECT_TRUE(SameBytes((*x.latents).*norm, (*y.latents).*norm)) << i;
      }
      for (const auto heads : {&DeviceLatents::queries, &DeviceLatents::values}) {
        EXPECT_TRUE(SameBytes(((*x.latents).*heads).memory, ((*y.latents).*heads).memory)) << i;
      }
    }
    ASSERT_EQ(x.experts.has_value(), y.experts.has_value());
    if (!x.experts.has_value()) continue;
    for (const auto part :
         {&DeviceExperts::router, &DeviceExperts::router_bias, &DeviceExperts::choice_bias}) {
      EXPECT_TRUE(SameBytes((*x.experts).*part, (*y.experts).*part)) << i;
    }
    for (const auto matrices : {&DeviceExperts::gate_up, &DeviceExperts::down}) {
      const DeviceMatrices &m = (*x.experts).*matrices, &n = (*y.experts).*matrices;
      EXPECT_TRUE(SameBytes(m.memory, n.memory) && SameBytes(m.bias, n.bias)) << i;
    }
  }
}

// Compares all shards of the checkpoint; returns the number of these.
int CompareShards(const std::string& model, const cuda::CudaDevice& device, bool use_mtp = false) {
  const auto packed = LoadModel(model, {.use_mtp = use_mtp});
  EXPECT_TRUE(packed.ok()) << packed.status();
  const auto stored = StoredModel::Open(model, {.use_mtp = use_mtp, .threads = kThreads});
  EXPECT_TRUE(stored.ok()) << stored.status();
  int shards = 0;
  for (const int ranks : {1, 2, 4, 8}) {
    if (!CheckCudaModel(packed->weights.config, ranks).ok()) continue;
    if (!CheckShards(packed->weights.config, ranks).ok()) continue;
    for (int rank = 0; rank < ranks; ++rank, ++shards) {
      const ModelShard shard{.rank = rank, .ranks = ranks};
      const auto want = CudaWeights::Upload(packed->weights, shard, kOrder, 1, device.stream());
      const auto got =
          CudaWeights::Upload((*stored)->weights(), shard, kOrder, kThreads, device.stream());
      EXPECT_TRUE(want.ok() && got.ok()) << want.status() << got.status();
      ExpectSame(**got, **want);
    }
  }
  return shards;
}

// What `penstock plan` counts for experts, which stay in their codes.
TEST(CudaWeights, ExpertsTakeWhatThePlanCounts) {
  const auto device = *cuda::CudaDevice::Open(0);
  int quantised = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(SourceFolder() + "/tests/golden/logits")) {
    const std::string file = entry.path() / "model.gguf";
    const std::string path = std::filesystem::exists(file) ? file : entry.path().string();
    const auto model = LoadModel(path);
    ASSERT_TRUE(model.ok()) << model.status();
    const ModelConfig& config = model->weights.config;
    if (config.experts.count == 0 || !CheckCudaModel(config).ok()) continue;
    SCOPED_TRACE(path);
    const auto there = CudaWeights::Upload(model->weights, {}, kOrder, 1, device->stream());
    ASSERT_TRUE(there.ok()) << there.status();
    const auto sizes = MeasureModel(path, config, WeightPolicy::kCheckpoint);
    ASSERT_TRUE(sizes.ok()) << sizes.status();
    size_t bytes = 0;
    for (const CudaLayer& layer : (*there)->layers) {
      if (!layer.experts.has_value()) continue;
      for (const DeviceMatrices* matrices : {&layer.experts->gate_up, &layer.experts->down}) {
        bytes += matrices->memory.bytes();
        quantised += matrices->weight.quantised() ? 1 : 0;
      }
    }
    EXPECT_NEAR(static_cast<double>(bytes) / sizes->experts.gpu_bytes, 1, 1e-6);
  }
  EXPECT_GT(quantised, 0);
}

// Compares what a GPU has of a checkpoint with latents with what a plan counts.
void CompareWithPlan(const std::string& folder, const cuda::CudaDevice& device, bool use_mtp) {
  const auto model = LoadModel(folder, {.use_mtp = use_mtp});
  ASSERT_TRUE(model.ok()) << model.status();
  const auto there = CudaWeights::Upload(model->weights, {}, kOrder, 1, device.stream());
  ASSERT_TRUE(there.ok()) << there.status();
  EXPECT_EQ((*there)->mtp_projection.memory.bytes() > 0, use_mtp);
  const auto sizes = MeasureModel(folder, model->weights.config, WeightPolicy::kCheckpoint);
  ASSERT_TRUE(sizes.ok()) << sizes.status();
  double bytes = 0;
  for (const CudaMatrix* matrix : (*there)->Matrices()) {
    bytes += static_cast<double>(matrix->memory.bytes());
  }
  for (const CudaLayer& layer : (*there)->layers) {
    bytes += static_cast<double>(layer.latents->queries.memory.bytes() +
                                 layer.latents->values.memory.bytes());
  }
  EXPECT_NEAR(bytes / sizes->layers.gpu_bytes, 1, 1e-6);
}

// kv_b_proj is cut up while it is loaded, or while it is uploaded from its file.
TEST(CudaWeights, LatentsAreTheSameFromFiles) {
  const auto device = *cuda::CudaDevice::Open(0);
  const TempFolder folder;
  WriteLargeLatentModel(folder.path());
  EXPECT_EQ(CompareShards(folder.path(), *device), 1 + 2);  // six heads
  CompareWithPlan(folder.path(), *device, false);
}

// Each GPU has the projection to the layer's input in whole.
TEST(CudaWeights, TheLayerForMultiTokenPredictionIsOneMore) {
  const auto device = *cuda::CudaDevice::Open(0);
  const TempFolder folder;
  WriteLargeMtpModel(folder.path());
  for (const bool use_mtp : {false, true}) {
    EXPECT_EQ(CompareShards(folder.path(), *device, use_mtp), 1 + 2);
    CompareWithPlan(folder.path(), *device, use_mtp);
  }
  const auto with = StoredModel::Open(folder.path(), {.use_mtp = true}),
             without = StoredModel::Open(folder.path(), {});
  ASSERT_TRUE(with.ok() && without.ok());
  EXPECT_NE((*with)->Fingerprint(), (*without)->Fingerprint());
  EXPECT_EQ((*with)->Fingerprint(), LoadModel(folder.path(), {.use_mtp = true})->fingerprint);
  const auto upload = [&](const ModelShard& shard) {
    return *CudaWeights::Upload((*with)->weights(), shard, kOrder, 1, device->stream());
  };
  const auto whole = upload({}), second = upload({.rank = 1, .ranks = 2});
  EXPECT_EQ(whole->layers.size(), 3u);
  EXPECT_TRUE(Same(whole->mtp_projection, second->mtp_projection));
}

// The GPUs' heads one behind the other, and on each GPU what projects to latents.
TEST(CudaWeights, ShardsOfLatentsAreWhatTheWholeHas) {
  const auto device = *cuda::CudaDevice::Open(0);
  const TempFolder folder;
  WriteLargeLatentModel(folder.path());
  const auto model = LoadModel(folder.path());
  ASSERT_TRUE(model.ok()) << model.status();
  const auto upload = [&](const ModelShard& shard) {
    return *CudaWeights::Upload(model->weights, shard, kOrder, 1, device->stream());
  };
  const auto bytes_of = [](const cuda::DeviceBuffer& memory) {
    std::string bytes(memory.bytes(), '\0');
    cuda::CopyToHost(bytes.data(), memory.as<void>(), bytes.size(), nullptr);
    return bytes;
  };
  const auto whole = upload({}), first = upload({.rank = 0, .ranks = 2}),
             second = upload({.rank = 1, .ranks = 2});
  for (size_t i = 0; i < whole->layers.size(); ++i) {
    const CudaLayer &all = whole->layers[i], &a = first->layers[i], &b = second->layers[i];
    for (const auto matrix : {&CudaLayer::latent_down, &CudaLayer::query_down}) {
      EXPECT_TRUE(Same(a.*matrix, all.*matrix) && Same(b.*matrix, all.*matrix)) << i;
    }
    EXPECT_EQ(bytes_of(a.qkv.memory) + bytes_of(b.qkv.memory), bytes_of(all.qkv.memory)) << i;
    EXPECT_EQ(a.attention_output.weight.inputs + b.attention_output.weight.inputs,
              all.attention_output.weight.inputs);
    for (const auto heads : {&DeviceLatents::queries, &DeviceLatents::values}) {
      const auto of = [&](const CudaLayer& layer) {
        return bytes_of(((*layer.latents).*heads).memory);
      };
      EXPECT_EQ(of(a) + of(b), of(all)) << i;
    }
  }
}

TEST(CudaWeights, AreTheSameFromFilesForEveryCheckpointAndShard) {
  const auto device = *cuda::CudaDevice::Open(0);
  const std::string golden = SourceFolder() + "/tests/golden/logits";
  int checkpoints = 0, shards = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden)) {
    if (!entry.is_directory()) continue;
    SCOPED_TRACE(entry.path());
    const std::string file = entry.path() / "model.gguf";
    const int compared =
        CompareShards(std::filesystem::exists(file) ? file : entry.path().string(), *device);
    shards += compared;
    checkpoints += compared > 0 ? 1 : 0;
  }
  EXPECT_GE(checkpoints, 8);
  EXPECT_GT(shards, 2 * checkpoints);
  EXPECT_GT(CompareShards(ModelFolder(), *device), 1);
}

struct TypeOnGpu {
  std::string_view name;
  double bits;  // of a weight
};

// A random matrix of a GGUF type's form. Its scales, and integers of scales of two levels, are
// exact.
QuantisedMatrix RandomMatrix(const QuantisedFormat& format, int64_t outputs, int64_t inputs) {
  std::mt19937_64 random(7);
  QuantisedMatrix matrix(outputs, inputs, format);
  const auto runs = static_cast<size_t>(matrix.runs() * (format.two_level() ? 1 : 0));
  const auto groups = static_cast<size_t>(matrix.groups());
  for (int64_t output = 0; output < outputs; ++output) {
    std::vector<uint8_t> codes(static_cast<size_t>(inputs));
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random() % (1u << format.bits));
    const auto values = [&](size_t count) {
      std::vector<float> all(count);
      for (float& value : all) value = static_cast<float>(random() % 60) - 20;
      return all;
    };
    const std::vector<float> scales = values(groups), offsets = values(format.offsets ? groups : 0);
    const std::vector<float> factors(runs, 0.0625f), others(format.offsets ? runs : 0, 0.5f);
    matrix.SetRow(output, {.codes = codes,
                           .scales = scales,
                           .zeros = {},
                           .offsets = offsets,
                           .scale_factors = factors,
                           .offset_factors = others});
  }
  return matrix;
}

// The weights of a matrix as a GPU expands its codes.
std::vector<float> Expanded(const WeightMatrix& matrix, cuda::InputOrder order) {
  const DevicePart part{.outputs = matrix.outputs(),
                        .row_of = [](int64_t row) { return row; },
                        .inputs = matrix.inputs()};
  const CodeSections sections(matrix, part, order);
  EXPECT_TRUE(sections.kept());
  std::vector<std::byte> panels(sections.bytes());
  const CodeSections::Section& section = sections.all().front();
  sections.Fill(section, 0, cuda::PanelsOf(section.outputs), panels.data());
  const cuda::WeightCodes codes{.data = reinterpret_cast<const uint8_t*>(panels.data()),
                                .form = section.form,
                                .outputs = static_cast<int32_t>(matrix.outputs())};
  const cuda::Weight weight{.outputs = static_cast<int32_t>(matrix.outputs()),
                            .inputs = static_cast<int32_t>(matrix.inputs()),
                            .sections = &codes,
                            .section_count = 1};
  std::vector<Bf16> expanded(static_cast<size_t>(matrix.outputs() * matrix.inputs()));
  cuda::ExpandWeight(weight, expanded.data(), nullptr);
  cuda::Synchronize(nullptr);
  std::vector<float> values;
  for (const Bf16 value : expanded) values.push_back(ToFloat(value));
  return values;
}

// GPUs keep every type of GGUF files in codes, which stand for the same weights, rounded to bf16.
TEST(CodeSections, EveryBlockTypeStaysInCodes) {
  constexpr int64_t kOutputs = 40, kInputs = 512;
  for (const auto& [name, bits] :
       {TypeOnGpu{"Q8_0", 9}, TypeOnGpu{"Q4_0", 5}, TypeOnGpu{"Q4_1", 6}, TypeOnGpu{"Q5_0", 9},
        TypeOnGpu{"Q5_1", 10}, TypeOnGpu{"Q4_K", 6}, TypeOnGpu{"Q5_K", 10}, TypeOnGpu{"Q6_K", 10},
        TypeOnGpu{"IQ4_NL", 9}, TypeOnGpu{"IQ4_XS", 9}, TypeOnGpu{"MXFP4", 4.5}}) {
    SCOPED_TRACE(name);
    const QuantisedFormat& format = BlockTypeNamed(name)->format;
    EXPECT_EQ(GpuRowBytes(format, kInputs) * 8 / kInputs, bits);
    const WeightMatrix matrix(RandomMatrix(format, kOutputs, kInputs));
    std::vector<float> want, row(kInputs);
    for (int64_t output = 0; output < kOutputs; ++output) {
      matrix.GetRow(output, row.data());
      for (const float value : row) want.push_back(ToFloat(ToBf16(value)));
    }
    for (const auto order : {cuda::InputOrder::kOwn, cuda::InputOrder::kNatural}) {
      EXPECT_EQ(Expanded(matrix, order), want);
    }
  }
}

// More than both buffers take, in rows that do not divide them. The emulated device copies as late
// as CUDA may, so a buffer that is filled too early shows.
TEST(CudaUpload, SendsMoreThanItsBuffersHold) {
  const auto device = *cuda::CudaDevice::Open(0);
  constexpr int64_t kRows = 100'003;
  constexpr size_t kRowBytes = 1000;
  const auto value_of = [](int64_t row, size_t i) {
    return static_cast<std::byte>(row * 31 + static_cast<int64_t>(i) * 7 + row / 256);
  };
  const auto target = *cuda::DeviceBuffer::Create(kRows * kRowBytes, "rows");
  {
    CudaUpload upload(kThreads, device->stream());
    const absl::Status sent = upload.Send(
        kRows, kRowBytes,
        [&](int64_t first, int64_t count, std::byte* to) {
          for (int64_t row = first; row < first + count; ++row) {
            for (size_t i = 0; i < kRowBytes; ++i) *to++ = value_of(row, i);
          }
        },
        target.as<std::byte>());
    EXPECT_EQ(Message(sent), "");
    EXPECT_EQ(Message(upload.Finish()), "");
  }
  const std::vector<std::byte> sent = BytesOf(target);
  int64_t wrong = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    for (size_t i = 0; i < kRowBytes; ++i) {
      const std::byte found = sent[static_cast<size_t>(row) * kRowBytes + i];
      wrong += found == value_of(row, i) ? 0 : 1;
    }
  }
  EXPECT_EQ(wrong, 0);
}

// A row that is larger than a buffer gets a buffer of its size.
TEST(CudaUpload, SendsARowOfAnySize) {
  const auto device = *cuda::CudaDevice::Open(0);
  constexpr size_t kRowBytes = (size_t{33} << 20) + 7;
  const auto target = *cuda::DeviceBuffer::Create(3 * kRowBytes, "rows");
  CudaUpload upload(kThreads, device->stream());
  const auto fill = [](int64_t first, int64_t count, std::byte* to) {
    for (int64_t row = first; row < first + count; ++row, to += kRowBytes) {
      std::memset(to, static_cast<int>(row) + 1, kRowBytes);
    }
  };
  EXPECT_EQ(Message(upload.Send(3, kRowBytes, fill, target.as<std::byte>())), "");
  EXPECT_EQ(Message(upload.Finish()), "");
  const std::vector<std::byte> sent = BytesOf(target);
  for (int row = 0; row < 3; ++row) {
    const std::byte* const begin = sent.data() + static_cast<size_t>(row) * kRowBytes;
    EXPECT_EQ(std::count(begin, begin + kRowBytes, static_cast<std::byte>(row + 1)),
              static_cast<ptrdiff_t>(kRowBytes));
  }
}

}  // namespace
}  // namespace penstock
