#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/checkpoint/model_config.h"
#include "model/weights/formats/tensor_source.h"
#include "model/weights/weight_policy.h"

namespace penstock {

// A part of a model's weights.
struct WeightPart {
  uint64_t elements = 0;
  double bytes = 0;      // in a worker's memory, without the padding of panels
  double gpu_bytes = 0;  // in a GPU's: of codes with the padding of inputs
};

// The weights of a model by how a step uses them. Matrices have 16 bits an element unless they are
// quantised; vectors are f32, as workers hold them.
struct WeightSizes {
  WeightPart layers;   // matrices that every token uses, those of shared experts too
  WeightPart experts;  // routed experts of all layers, of which a token uses a few
  WeightPart head;     // output matrix; also the embeddings, where they are tied
  WeightPart tables;   // embeddings of their own and learned positions: a token reads one row
  WeightPart vectors;  // norms, biases and routers
  std::string form;    // of matrices, as Weights::FormName without activations
  std::vector<std::string> expanded_forms;  // those that GPUs hold in 16 bits

  uint64_t elements() const {
    return layers.elements + experts.elements + head.elements + tables.elements + vectors.elements;
  }
  double bytes() const {
    return layers.bytes + experts.bytes + head.bytes + tables.bytes + vectors.bytes;
  }
  // The same on a GPU.
  WeightSizes OnGpu() const;
};

// Measures the weights that workers would load (BuildWeights), without loading them. `forms` rounds
// 16-bit matrices. `source` has the tensors of a checkpoint, which may be quantised; null: all
// matrices have 16 bits. Errors are those of LoadWeights: a config without a model, a quantised
// tensor that does not run, or one that `forms` would round again.
absl::StatusOr<WeightSizes> MeasureWeights(const ModelConfig& config, const MatrixForms& forms,
                                           const TensorSource* source);
// Of the model that LoadModelConfig read. The config is enough for weights of 16 bits; the tensors
// of a quantised model, or of a GGUF file, are opened, and their files must exist.
absl::StatusOr<WeightSizes> MeasureModel(const std::string& model, const ModelConfig& config,
                                         WeightPolicy policy);

}  // namespace penstock
