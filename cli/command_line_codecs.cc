#include "cli/command_line_codecs.h"

#include <CLI/CLI.hpp>

#include "cli/validators.h"

namespace penstock {
void AddCalibrate(CLI::App& app, CalibrateOptions& calibrate) {
  CLI::App& command =
      *app.add_subcommand("calibrate", "measure what the KV codec cgx needs to know of a model");
  command.footer("");
  command
      .add_option("--model", calibrate.model, "directory of the checkpoint; the result goes there")
      ->required()
      ->type_name("DIR");
  command.add_option("--text", calibrate.text, "what it reads [models/text/calibration.txt]")
      ->type_name("FILE");
  command.add_option("--tokens", calibrate.tokens, "at most [32768]")
      ->check(Quiet(CLI::Range(256, 1 << 24)))
      ->type_name("N");
  command.add_option("--threads", calibrate.threads, "0 takes every core [0]")
      ->check(Quiet(CLI::Range(0, 1024)))
      ->type_name("N");
}

void AddEval(CLI::App& app, EvalOptions& eval) {
  CLI::App& command =
      *app.add_subcommand("eval", "what compressing the KV does to a model's answers");
  command.footer("");
  const auto count = Quiet(CLI::Range(1, 1 << 20));
  command.add_option("SUBJECT", eval.subject, "kv")
      ->required()
      ->check(Quiet(CLI::IsMember({"kv"})))
      ->type_name("");
  command.add_option("--model", eval.kv.model, "directory of the checkpoint")
      ->required()
      ->type_name("DIR");
  command.add_option("--text", eval.kv.text, "held-out text [models/text/held_out.txt]")
      ->type_name("FILE");
  command.add_option("--codec", eval.kv.codecs, "only this one; may be repeated [all, and int4]")
      ->allow_extra_args(false)
      ->type_name("NAME");
  command.add_option("--seeds", eval.kv.seeds, "draws of windows [3]")->check(count);
  command.add_option("--windows", eval.kv.windows, "of text, per seed [8]")->check(count);
  command.add_option("--context", eval.kv.context, "tokens that are compressed [1024]")
      ->check(count);
  command.add_option("--continuation", eval.kv.continuation, "tokens scored and generated [128]")
      ->check(count);
  command.add_option("--prompts", eval.kv.prompts, "recall, per distance; 0 leaves it out [24]")
      ->check(Quiet(CLI::Range(0, 1 << 20)));
  command.add_option("--threads", eval.kv.threads, "0 takes every core [0]")
      ->check(Quiet(CLI::Range(0, 1024)))
      ->type_name("N");
  command.add_flag("--json", eval.json, "JSON instead of a table");
  command.add_option("--plot", eval.plot, "draws KL over size")->type_name("FILE.svg");
}

}  // namespace penstock
