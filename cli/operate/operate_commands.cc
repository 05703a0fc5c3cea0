#include <CLI/CLI.hpp>

#include "cli/operate/commands.h"
#include "cli/shell/command_line.h"
#include "cli/shell/validators.h"

namespace penstock {
namespace {

constexpr char kAdminEndpoint[] = "127.0.0.1:8093";
constexpr char kOfCluster[] = "of the cluster; with --cert and --key";

void AddTop(CommandLine& line) {
  auto [command, top] = line.Add<TopOptions>("top", "watch the cluster, as on the web page");
  top.endpoint = kAdminEndpoint;
  command.add_option("--endpoint", top.endpoint, "router's admin_listen [127.0.0.1:8093]")
      ->envname("PENSTOCK_ADMIN")
      ->type_name("HOST:PORT");
  command
      .add_option("--workers", top.workers,
                  "ask these workers instead of the router; repeat, or separate by commas")
      ->delimiter(',')
      ->type_name("HOST:PORT");
  command.add_option("--every-ms", top.every_ms, "interval between two pictures [1000]")
      ->check(Quiet(CLI::Range(50, 3600000)))
      ->type_name("MS");
  AddTls(command, top.tls, kOfCluster);
  command.add_flag("--once", top.once,
                   "print one picture; fail if a worker of --workers does not answer");
  command.add_flag("--json", top.json, "print a JSON picture a line; with --workers an array");
}

void AddHealth(CommandLine& line) {
  auto [command, health] =
      line.Add<HealthOptions>("health", "check the health of a router or worker (exit 0: serving)");
  command.add_option("--endpoint", health.endpoint, "address of the router or worker")
      ->required()
      ->envname("PENSTOCK_ENDPOINT")
      ->type_name("HOST:PORT");
  AddTls(command, health.tls, kOfCluster);
  command
      .add_option("--service", health.service, "health service: `live` checks liveness [readiness]")
      ->check(Quiet(CLI::Validator(
          [](const std::string& name) { return name.size() <= 100 ? "" : "is too long"; }, "")))
      ->type_name("NAME");
  command.add_option("--timeout-ms", health.timeout_ms, "time limit of the check [2000]")
      ->check(Quiet(CLI::Range(1, 600000)))
      ->type_name("MS");
}

void AddKv(CommandLine& line) {
  auto [command, kv] = line.Add<KvOptions>("kv", "inspect or flush the KV that a worker cached");
  command
      .add_option("WHAT", kv.what,
                  "inspect (list segments on disk), stats (of all tiers; for a directory, the sum "
                  "of its segments), verify (read every block on disk) or flush (evict all blocks "
                  "that no request uses)")
      ->required()
      ->check(Quiet(CLI::IsMember({"inspect", "stats", "verify", "flush"})))
      ->type_name("");
  command.add_option("WHERE", kv.where, "host:port of a worker, or an nvme_dir")
      ->required()
      ->type_name("");
  AddTls(command, kv.tls, kOfCluster);
  command.add_flag("--json", kv.json, "print one JSON object");
}

void AddAdmin(CommandLine& line) {
  auto [command, admin] =
      line.Add<AdminOptions>("admin", "inspect a running cluster; drain, flush and turn workers");
  command.footer(
      "  info [WORKER]             show version, build and effective configuration\n"
      "  workers                   list workers, their load and their KV links\n"
      "  drain WORKER              take it out of service; ends when it has no open requests\n"
      "  resume WORKER             put it back into service\n"
      "  flush WORKER              evict all cached blocks that no request uses\n"
      "  role WORKER ROLE          turn it to prefill or decode; it drains first\n"
      "  events WORKER             print its cached blocks, then every change\n"
      "  log-level LEVEL [WORKER]  set debug, info, warning or error until it restarts\n"
      "A WORKER is an id or host:port, as `workers` shows them; without one, the router is meant.");
  admin.endpoint = kAdminEndpoint;
  command.add_option("WHAT", admin.what, "one of the actions below")
      ->required()
      ->check(Quiet(CLI::IsMember(
          {"info", "workers", "drain", "resume", "flush", "role", "events", "log-level"})))
      ->type_name("");
  command.add_option("ARGUMENTS", admin.arguments, "arguments of the action")
      ->expected(0, 2)
      ->type_name("");
  command.add_option("--endpoint", admin.endpoint, "router's admin_listen [127.0.0.1:8093]")
      ->envname("PENSTOCK_ADMIN")
      ->type_name("HOST:PORT");
  command.add_option("--within", admin.within_s, "role: drain for at most this many seconds [30]")
      ->check(Quiet(CLI::Range(1, 86400)))
      ->type_name("S");
  command.add_flag("--force", admin.force, "role: turn even the last worker of its role");
  AddTls(command, admin.tls, kOfCluster);
  command.add_flag("--json", admin.json, "print one JSON object a line");
}

}  // namespace

void AddOperateCommands(CommandLine& line) {
  AddTop(line);
  AddHealth(line);
  AddKv(line);
  AddAdmin(line);
}

}  // namespace penstock
