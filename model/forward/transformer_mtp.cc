// TransformerRunner: the layer for multi-token prediction (MTP). Its input is eh_proj of the norms
// of the token's embedding and of the hidden state before it, in this order (DeepSeek-V3's README
// for its weights, and SGLang and vLLM). What the model's last layers are for its logits, the layer
// and shared_head.norm are for the guess; the output matrix is the model's own.

#include <algorithm>

#include "kernels/gemm.h"
#include "kernels/norm.h"
#include "model/forward/step_check.h"
#include "model/forward/transformer_batch.h"
#include "model/forward/transformer_scratch.h"

namespace penstock {

MtpLayer* TransformerRunner::mtp() { return weights_.mtp.has_value() ? this : nullptr; }

// Makes the rows of batch.mtp the only rows, beside the hidden states of the tokens before them.
// `hidden` has those of the rows that are kept.
void TransformerRunner::GatherMtp(View<const float, 2> hidden, Batch& batch) {
  TransformerScratch& s = *scratch_;
  const auto width = static_cast<size_t>(hidden.dim(1));
  float* target = s.mtp_hidden.as<float>();
  size_t row = 0;
  for (const Batch::MtpRows& part : batch.mtp) {
    for (int64_t i = 0; i < part.rows; ++i, ++row, target += width) {
      if (i > 0 || part.follows) {
        std::copy_n(hidden.row(part.kept_row + i - 1), width, target);
      } else if (part.before.empty()) {
        std::fill_n(target, width, 0.0f);
      } else {
        std::ranges::copy(part.before, target);
      }
      const auto from = static_cast<size_t>(part.first_row + i);
      s.tokens[row] = s.tokens[from];
      s.slots[row] = s.slots[from];
      s.positions[row] = s.positions[from];
    }
  }
  s.tokens.resize(row);
  s.slots.resize(row);
  s.positions.resize(row);
  for (size_t i = 0; i < row; ++i) {
    const auto position = static_cast<int32_t>(s.positions[i]);
    for (RotationScratch& rotation : s.rotations) {
      rotation.SetRow(static_cast<int64_t>(i), position);
    }
  }
}

// Sets the residual to the layer's input. The residual has the embeddings of the rows' tokens, and
// mtp_hidden the hidden states before them.
void TransformerRunner::ProjectMtp(const Batch& batch) {
  const MtpWeights& mtp = *weights_.mtp;
  TransformerScratch& s = *scratch_;
  const int64_t hidden = weights_.config.hidden;
  const View<float, 2> residual(s.residual.as<float>(), {batch.rows, hidden});
  const View<float, 2> before(s.mtp_hidden.as<float>(), {batch.rows, hidden});
  const View<float, 2> input(s.mtp_input.as<float>(), {batch.rows, 2 * hidden});
  const auto norm = [&](View<float, 2> rows, const std::vector<float>& weight) {
    RmsNorm(exec_, {.input = rows,
                    .weight = {weight.data(), {hidden}},
                    .output = rows,
                    .epsilon = weights_.config.norm_epsilon});
  };
  norm(residual, mtp.token_norm);
  norm(before, mtp.hidden_norm);
  for (int64_t row = 0; row < batch.rows; ++row) {
    std::copy_n(residual.row(row), hidden, input.row(row));
    std::copy_n(before.row(row), hidden, input.row(row) + hidden);
  }
  Gemm(exec_, {.input = input, .weight = &mtp.projection, .output = residual, .scratch = &s.gemm});
}

// Writes the layer's keys and values of the rows that GatherMtp has gathered.
void TransformerRunner::FillMtp(const StepArgs& args, Batch& batch) {
  batch.rows = std::ssize(scratch_->tokens);
  Embed(batch);
  ProjectMtp(batch);
  AppendKv(args, weights_.config.layers, batch);
}

absl::Status TransformerRunner::StepMtp(const StepArgs& args) {
  RETURN_IF_ERROR(Check(args));
  RETURN_IF_ERROR(CheckBefore(args, weights_.config.hidden));
  Batch batch;
  Prepare(args, batch);
  float* target = scratch_->mtp_hidden.as<float>();
  for (const SequenceStep& sequence : args.sequences) {
    target = std::ranges::copy(sequence.before, target).out;
  }
  ProjectMtp(batch);
  const int32_t layer = weights_.config.layers;
  AppendKv(args, layer, batch);
  if (batch.kept.empty()) return absl::OkStatus();
  batch.KeepLast();
  Attend(args, layer, batch);
  KeepRows(batch);
  RETURN_IF_ERROR(FinishLayer(args, layer, batch));
  const View<const float, 2> hidden = Normed(weights_.mtp->norm, batch);
  for (const Batch::Output& output : batch.outputs) {
    std::copy_n(hidden.row(output.row), output.hidden.size(), output.hidden.begin());
  }
  Logits(args, hidden);
  return absl::OkStatus();
}

}  // namespace penstock
