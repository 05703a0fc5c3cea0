#include "cli/command_line_operations.h"

#include <CLI/CLI.hpp>

#include "cli/validators.h"

namespace penstock {
namespace {

constexpr char kAdminEndpoint[] = "127.0.0.1:8093";
constexpr char kOfCluster[] = "of the cluster; with --cert and --key";

CLI::Validator Above0(double max = 1e15) { return Quiet(CLI::Range(1e-9, max)); }

void AddPlanHardware(CLI::App& command, PlanOptions& plan) {
  command.add_option("--model", plan.model, "directory of the checkpoint")
      ->required()
      ->type_name("DIR");
  command
      .add_option("--hardware", plan.hardware, "of a worker: h200, l40s ...; cpu measures [cpu]")
      ->type_name("NAME");
  command.add_option("--memory", plan.memory, "instead of the hardware's")
      ->check(Size())
      ->type_name("SIZE");
  command.add_option("--read-gbps", plan.read_gbps, "of its memory, instead of the hardware's")
      ->check(Above0())
      ->type_name("GB/S");
  command.add_option("--tflops", plan.tflops, "instead of the hardware's")
      ->check(Above0())
      ->type_name("X");
  command.add_option("--kv-memory", plan.kv_memory, "of a worker [what the weights leave of 90 %]")
      ->check(Size())
      ->type_name("SIZE");
  command.add_option("--block-tokens", plan.block_tokens, "tokens a block [16]")
      ->check(Quiet(CLI::IsMember({16, 32, 64})))
      ->type_name("16|32|64");
  command.add_option("--max-batch", plan.max_batch, "sequences a decode step, 1 to 512 [64]")
      ->check(Quiet(CLI::Range(1, 512)))
      ->type_name("N");
  command.add_option("--link-gbps", plan.link_gbps, "between two workers, in GB/s [1.25]")
      ->check(Above0())
      ->type_name("GB/S");
}

void AddPlanTraffic(CLI::App& command, PlanOptions& plan) {
  command.add_option("--context", plan.contexts, "tokens of a sequence; may be repeated")
      ->check(Quiet(CLI::Range(int64_t{1}, int64_t{1} << 40)))
      ->allow_extra_args(false)
      ->type_name("N");
  command.add_option("--rate", plan.rate, "requests a second [1]")->check(Above0())->type_name("X");
  command.add_option("--prompt-tokens", plan.prompt_tokens, "mean [1024]")
      ->check(Quiet(CLI::Range(1.0, 1e9)))
      ->type_name("N");
  command.add_option("--answer-tokens", plan.answer_tokens, "mean [256]")
      ->check(Quiet(CLI::Range(1.0, 1e9)))
      ->type_name("N");
  command.add_option("--hit-ratio", plan.hit_ratio, "of prompt tokens cached, 0 to 1 [0]")
      ->check(Quiet(CLI::Range(0.0, 1.0)))
      ->type_name("X");
  command.add_option("--token-ms", plan.token_ms, "target between two tokens [50]")
      ->check(Above0())
      ->type_name("MS");
  command.add_option("--utilisation", plan.utilisation, "of a worker's time, at most [0.7]")
      ->check(Above0(1))
      ->type_name("X");
  command.add_option("--keep", plan.keep_s, "seconds that tiers should keep KV [600]")
      ->check(Above0())
      ->type_name("S");
}

}  // namespace

void AddTls(CLI::App& command, TlsOptions& tls, const std::string& host) {
  command.add_option("--ca", tls.ca, "the CA " + host)->envname("PENSTOCK_CA")->type_name("PEM");
  // Said where certificates are explained, not in every command's help.
  command.add_option("--cert", tls.cert)->envname("PENSTOCK_CERT")->group("");
  command.add_option("--key", tls.key)->envname("PENSTOCK_KEY")->group("");
}

void AddPlan(CLI::App& app, PlanOptions& plan) {
  CLI::App& command = *app.add_subcommand("plan", "how many workers, blocks and tiers are needed");
  command.footer("");
  AddPlanHardware(command, plan);
  AddPlanTraffic(command, plan);
  command.add_option("--plot", plan.plot, "writes a picture (SVG)")->type_name("FILE");
  command.add_flag("--json", plan.json, "one JSON object instead of a table");
}

void AddTop(CLI::App& app, TopOptions& top) {
  CLI::App& command = *app.add_subcommand("top", "what the cluster is doing, as on the page");
  command.footer("");
  top.endpoint = kAdminEndpoint;
  command.add_option("--endpoint", top.endpoint, "a router's admin_listen [127.0.0.1:8093]")
      ->envname("PENSTOCK_ADMIN")
      ->type_name("HOST:PORT");
  command
      .add_option("--workers", top.workers,
                  "ask these workers instead, and show only them; repeat, or separate by commas")
      ->delimiter(',')
      ->type_name("HOST:PORT");
  command.add_option("--every-ms", top.every_ms, "between two pictures [1000]")
      ->check(Quiet(CLI::Range(50, 3600000)))
      ->type_name("MS");
  AddTls(command, top.tls, kOfCluster);
  command.add_flag("--once", top.once, "one picture; fails when one of --workers is not heard");
  command.add_flag("--json", top.json, "a picture a line; with --workers an array of those");
}

CLI::App& AddTrace(CLI::App& app, TraceOptions& trace) {
  CLI::App& command = *app.add_subcommand("trace", "where the time of one request goes");
  command.footer("");
  command.add_option("PROMPT", trace.prompt, "the text")->required()->type_name("");
  command.add_option("--max-tokens", trace.sampling.max_tokens, "longest answer")->type_name("N");
  return command;
}

void AddHealth(CLI::App& app, HealthOptions& health) {
  CLI::App& command = *app.add_subcommand("health", "whether a process serves; exit code 0 if so");
  command.footer("");
  command.add_option("--endpoint", health.endpoint, "of a router or worker")
      ->required()
      ->envname("PENSTOCK_ENDPOINT")
      ->type_name("HOST:PORT");
  AddTls(command, health.tls, kOfCluster);
  command
      .add_option("--service", health.service, "live: whether it moves; else whether it is ready")
      ->check(Quiet(CLI::Validator(
          [](const std::string& name) { return name.size() <= 100 ? "" : "is too long"; }, "")))
      ->type_name("NAME");
  command.add_option("--timeout-ms", health.timeout_ms, "[2000]")
      ->check(Quiet(CLI::Range(1, 600000)))
      ->type_name("MS");
}

void AddAdmin(CLI::App& app, AdminOptions& admin) {
  CLI::App& command = *app.add_subcommand("admin", "what runs; take workers out and back in");
  command.footer(
      "  info [WORKER]             version, build and configuration in effect\n"
      "  workers                   who is there, what each does, who sends KV to whom\n"
      "  drain WORKER              out of service; ends when nothing is open there\n"
      "  resume WORKER             back in\n"
      "  flush WORKER              forgets cached KV that nobody needs\n"
      "  role WORKER ROLE          makes it a prefill or a decode worker; it drains first\n"
      "  events WORKER             its cached blocks, then every change\n"
      "  log-level LEVEL [WORKER]  debug, info, warning or error, until its end\n"
      "A WORKER is an id or host:port, as `workers` shows them; without one, the router is meant.");
  admin.endpoint = kAdminEndpoint;
  command.add_option("WHAT", admin.what, "one of those below")
      ->required()
      ->check(Quiet(CLI::IsMember(
          {"info", "workers", "drain", "resume", "flush", "role", "events", "log-level"})))
      ->type_name("");
  command.add_option("ARGUMENTS", admin.arguments)->expected(0, 2)->type_name("");
  command.add_option("--endpoint", admin.endpoint, "a router's admin_listen [127.0.0.1:8093]")
      ->envname("PENSTOCK_ADMIN")
      ->type_name("HOST:PORT");
  command.add_option("--within", admin.within_s, "of role: seconds that it may drain for [30]")
      ->check(Quiet(CLI::Range(1, 86400)))
      ->type_name("S");
  command.add_flag("--force", admin.force, "of role: even the last worker of its role");
  AddTls(command, admin.tls, kOfCluster);
  command.add_flag("--json", admin.json, "one JSON object a line");
}

}  // namespace penstock
