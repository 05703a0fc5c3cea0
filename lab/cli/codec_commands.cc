#include <CLI/CLI.hpp>

#include "cli/shell/command_line.h"
#include "cli/shell/lab_commands.h"
#include "cli/shell/validators.h"
#include "lab/cli/commands.h"

namespace penstock {

void AddCalibrate(CommandLine& line) {
  auto [command, calibrate] = line.Add<CalibrateOptions>(std::string(kCalibrateCommand.name),
                                                         std::string(kCalibrateCommand.summary));
  command
      .add_option(
          "--model", calibrate.model,
          "directory of the checkpoint, which the calibration is written to, or a GGUF file")
      ->required()
      ->type_name("DIR");
  command.add_option("--text", calibrate.text, "text to measure on [models/text/calibration.txt]")
      ->type_name("FILE");
  command.add_option("--tokens", calibrate.tokens, "maximum tokens of the text [32768]")
      ->check(Quiet(CLI::Range(256, 1 << 24)))
      ->type_name("N");
  command.add_option("--threads", calibrate.threads, "threads; 0 takes every core [0]")
      ->check(Quiet(CLI::Range(0, 1024)))
      ->type_name("N");
}

void AddEval(CommandLine& line) {
  auto [command, eval] =
      line.Add<EvalOptions>(std::string(kEvalCommand.name), std::string(kEvalCommand.summary));
  const auto count = Quiet(CLI::Range(1, 1 << 20));
  command
      .add_option("SUBJECT", eval.subject,
                  "subject of the evaluation: kv, or weights (--weights=int8|int4 of workers)")
      ->required()
      ->check(Quiet(CLI::IsMember({"kv", "weights"})))
      ->type_name("");
  command.add_option("--model", eval.kv.model, "directory of the checkpoint, or a GGUF file")
      ->required()
      ->type_name("DIR");
  command.add_option("--text", eval.kv.text, "held-out text [models/text/held_out.txt]")
      ->type_name("FILE");
  command
      .add_option(
          "--codec", eval.kv.codecs,
          "codec, eviction (for example snapkv:128, or tova:128+32, which evicts while "
          "decoding too), selection (quest:128), blend of documents (blend:15) or "
          "format of all pages (pages:k3v2, or pages:i8,snapkv:128 for both) to evaluate; for "
          "comparison oracle:128 (the "
          "prompt's 128 tokens with the most attention), blend:naive, and blend:moved, which "
          "corrects positions alone; may be repeated [all codecs, and int4]")
      ->allow_extra_args(false)
      ->type_name("NAME");
  command.add_option("--seeds", eval.kv.seeds, "random selections of windows [3]")->check(count);
  command.add_option("--windows", eval.kv.windows, "windows of text per seed [8]")->check(count);
  command.add_option("--context", eval.kv.context, "tokens of KV that are compressed [1024]")
      ->check(count);
  command.add_option("--document", eval.kv.document, "tokens of a document of a blend [256]")
      ->check(count);
  command.add_option("--continuation", eval.kv.continuation, "tokens scored and generated [128]")
      ->check(count);
  command
      .add_option("--prompts", eval.kv.prompts, "recall prompts per distance; 0 skips recall [24]")
      ->check(Quiet(CLI::Range(0, 1 << 20)));
  command.add_flag("--codes", eval.kv.codes,
                   "recall prompts state the codes of four words and ask for one, not a pass key");
  command.add_option("--threads", eval.kv.threads, "threads; 0 takes every core [0]")
      ->check(Quiet(CLI::Range(0, 1024)))
      ->type_name("N");
  command.add_flag("--json", eval.json, "print JSON instead of a table");
  command.add_option("--plot", eval.plot, "draw KL divergence over size, and recall")
      ->type_name("FILE.svg");
}

}  // namespace penstock
