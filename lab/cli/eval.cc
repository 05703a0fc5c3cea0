#include <fmt/format.h>

#include <thread>

#include "base/lifecycle.h"
#include "cli/shell/interrupts.h"
#include "cli/shell/progress.h"
#include "lab/cli/commands.h"
#include "lab/eval/kv_eval.h"
#include "lab/eval/kv_source.h"
#include "lab/eval/weights_eval.h"

namespace penstock {
namespace {

int Fail(const char* command, const absl::Status& status) {
  fmt::print(stderr, "penstock {}: {}\n", command, Message(status));
  return static_cast<int>(ExitCodeFor(status));
}

absl::StatusOr<std::string> Calibrate(const CalibrateOptions& options) {
  const int32_t cores = static_cast<int32_t>(std::thread::hardware_concurrency());
  ASSIGN_OR_RETURN(const KvSample sample,
                   PrefillSample(options.model, options.text, options.tokens,
                                 options.threads > 0 ? options.threads : cores));
  const KvCalibration calibration = MeasureCalibration(sample);
  RETURN_IF_ERROR(calibration.Save(options.model));
  if (!sample.layout.HasLatents()) {
    RETURN_IF_ERROR(MeasureKeyMeans(sample).Save(options.model, sample.config));
  }
  return fmt::format("{}: calibrated on {} tokens, id {:#x}", options.model,
                     sample.blocks * sample.layout.block_tokens, calibration.id());
}

int EvaluateWeights(const EvalOptions& options, Progress& progress) {
  const absl::StatusOr<WeightsEvalReport> report =
      RunWeightsEval(options.kv, [&](const std::string& text) { progress.Line(text); });
  if (!report.ok()) return Fail("eval", report.status());
  fmt::print("{}", options.json ? ToJson(*report) + "\n" : ToText(*report));
  return 0;
}

}  // namespace

int Run(const CalibrateOptions& options) {
  EndAtOnceAtSignals();
  Progress progress;
  progress.Line("prefilling " + options.text);
  const absl::StatusOr<std::string> done = Calibrate(options);
  if (!done.ok()) return Fail("calibrate", done.status());
  fmt::print("{}\n", *done);
  return 0;
}

int Run(const EvalOptions& options) {
  EndAtOnceAtSignals();
  Progress progress;
  if (options.subject == "weights") return EvaluateWeights(options, progress);
  const absl::StatusOr<KvEvalReport> report =
      RunKvEval(options.kv, [&](const std::string& text) { progress.Line(text); });
  if (!report.ok()) return Fail("eval", report.status());
  const std::string text = options.json ? ToJson(*report) + "\n" : ToText(*report);
  fmt::print("{}", text);
  if (options.plot.empty()) return 0;
  const absl::Status plotted = WritePlot(*report, options.plot);
  return plotted.ok() ? 0 : Fail("eval", plotted);
}

}  // namespace penstock
