#include "cli/operate/cluster_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/bytes.h"
#include "base/log/log_escape.h"

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kLoadBarColumns = 16;
constexpr size_t kWideColumns = 130;  // enough for the bars of two tiers

std::string Shown(const Json& text) { return Printable(text.get<std::string>()); }

// The end of a name, where names of one deployment differ.
std::string ShortName(const Json& name, size_t columns) {
  const std::string shown = Shown(name);
  return shown.size() <= columns ? shown : shown.substr(shown.size() - columns);
}

// The earlier picture of one part, and the time between both.
struct Since {
  const Json* before = nullptr;  // null: there is none
  double seconds = 0;

  std::optional<double> Rate(const Json& now, const char* key) const {
    if (before == nullptr || seconds <= 0) return std::nullopt;
    const auto then = before->at(key).get<uint64_t>(), later = now.at(key).get<uint64_t>();
    if (later < then) return std::nullopt;
    return static_cast<double>(later - then) / seconds;
  }
  std::string RateText(const Json& now, const char* key) const {
    const std::optional<double> rate = Rate(now, key);
    return rate ? fmt::format("{:.1f}", *rate) : "-";
  }
  std::string BytesText(const Json& now, const char* key) const {
    const std::optional<double> rate = Rate(now, key);
    return rate ? FormatBytes(static_cast<uint64_t>(*rate)) : "-";
  }
};

// The q-quantile of what lies between two cumulative histograms, in ms, by its bucket's upper
// bound.
std::string Quantile(const Json& now, const Json* before, double q) {
  const auto counts = now.at("counts").get<std::vector<uint64_t>>();
  std::vector<uint64_t> then(counts.size(), 0);
  if (before != nullptr) then = before->at("counts").get<std::vector<uint64_t>>();
  if (then.size() != counts.size() || counts.empty() || counts.back() <= then.back()) return "-";
  const double wanted = q * static_cast<double>(counts.back() - then.back());
  for (size_t i = 0; i < counts.size(); ++i) {
    if (static_cast<double>(counts[i] - then[i]) < wanted) continue;
    const Json& bound = now.at("bounds").at(i);
    return bound.is_null() ? "longer" : fmt::format("{:.4g} ms", bound.get<double>() * 1e3);
  }
  return "-";
}

uint64_t CountOf(const Json& spread) {
  const auto counts = spread.at("counts").get<std::vector<uint64_t>>();
  return counts.empty() ? 0 : counts.back();
}

// Breaks lines behind "; " where they are longer than `columns`.
std::string Broken(std::string_view text, size_t columns) {
  std::string broken;
  size_t line = 0;  // where the present line starts
  for (size_t i = 0; i < text.size();) {
    const size_t part_end = std::min(text.find("; ", i), text.find('\n', i));
    const size_t end = part_end == std::string_view::npos ? text.size() : part_end + 1;
    if (i > line && end - line > columns) {
      broken.back() = '\n';  // the space behind the last semicolon
      line = i;
    }
    broken += text.substr(i, end - i);
    i = end;
    if (broken.back() == '\n') line = i;
    if (i < text.size() && broken.back() == ';') broken += text[i++];
  }
  return broken;
}

std::string FiguresText(const Json& now, const Since& since) {
  const Json& router = now.at("router");
  const Json& requests = now.at("requests");
  const Json* then = since.before == nullptr ? nullptr : &since.before->at("requests");
  const auto tokens = [](const Json& of) {
    return CountOf(of.at("first_token_s")) + CountOf(of.at("next_token_s"));
  };
  std::string rate = "-";
  if (then != nullptr && since.seconds > 0 && tokens(requests) >= tokens(*then)) {
    rate = fmt::format("{:.1f}",
                       static_cast<double>(tokens(requests) - tokens(*then)) / since.seconds);
  }
  const Json* first = then == nullptr ? nullptr : &then->at("first_token_s");
  // Without a new first token since the last picture: over the whole uptime.
  if (first != nullptr && CountOf(*first) == CountOf(requests.at("first_token_s"))) first = nullptr;
  const auto prompt = requests.at("prompt_tokens").get<double>();
  return fmt::format(
      "{} {}, {} workers, up {:.0f} s; {} tokens/s; TTFT p50 {}, p99 {}\n"
      "requests: {} open, {} queued, {} done, {} refused; {:.0f} % of {} prompt tokens cached\n\n",
      Shown(router.at("model")), router.at("ready").get<bool>() ? "ready" : "NOT READY",
      router.at("workers").get<int>(), router.at("uptime_s").get<double>(), rate,
      Quantile(requests.at("first_token_s"), first, 0.5),
      Quantile(requests.at("first_token_s"), first, 0.99), requests.at("open").get<uint64_t>(),
      requests.at("waiting").get<uint64_t>(), requests.at("ended").get<uint64_t>(),
      requests.at("refused").get<uint64_t>(),
      prompt > 0 ? 100 * requests.at("cached_tokens").get<double>() / prompt : 0.0,
      requests.at("prompt_tokens").get<uint64_t>());
}

// "device [####++..        ] 43% of 64 MiB"
std::string TierText(const Json& tier) {
  const auto total = tier.at("total_bytes").get<double>();
  if (total <= 0) return "";
  std::string bar;
  double taken = 0;
  for (const auto& [key, mark] :
       {std::pair{"used_bytes", '#'}, {"reserved_bytes", '+'}, {"cached_bytes", '.'}}) {
    taken += std::max(0.0, tier.at(key).get<double>());
    const double columns = std::min(1.0, taken / total) * kLoadBarColumns + 0.999;
    bar.resize(
        std::max(bar.size(), std::min<size_t>(static_cast<size_t>(columns), kLoadBarColumns)),
        mark);
  }
  bar.resize(kLoadBarColumns, ' ');
  return fmt::format("  {} [{}] {:.0f}% of {}", Shown(tier.at("tier")), bar, 100 * taken / total,
                     FormatBytes(tier.at("total_bytes").get<uint64_t>()));
}

// "device 43%, dram 12%"
std::string ShortTierText(const Json& tiers) {
  std::string text;
  for (const Json& tier : tiers) {
    const auto total = tier.at("total_bytes").get<double>();
    double taken = 0;
    for (const char* key : {"used_bytes", "reserved_bytes", "cached_bytes"}) {
      taken += std::max(0.0, tier.at(key).get<double>());
    }
    if (total <= 0) continue;
    text += fmt::format("{}{} {:.0f}%", text.empty() ? "  " : ", ", Shown(tier.at("tier")),
                        100 * taken / total);
  }
  return text;
}

std::string WorkersText(const Json& now, const Since& since, bool wide) {
  std::map<std::string, const Json*> before;  // by name and life
  const auto key = [](const Json& worker) {
    return worker.at("name").get<std::string>() + worker.at("life").get<std::string>();
  };
  if (since.before != nullptr) {
    for (const Json& worker : since.before->at("workers")) before[key(worker)] = &worker;
  }
  const size_t name = wide ? 24 : 18;
  std::string text =
      fmt::format("{:<{}} {:<8} {:<8} {:>4} {:>4}{} {:>3} {:>8}  {}\n", "worker", name, "role",
                  "state", "run", "wait", wide ? "   tokens" : "", "kv", "tokens/s",
                  wide ? "tiers: # used, + reserved, . cached (evictable)" : "tiers in use");
  for (const Json& worker : now.at("workers")) {
    const auto then = before.find(key(worker));
    const Since own{then == before.end() ? nullptr : then->second, since.seconds};
    text += fmt::format(
        "{:<{}} {:<8} {:<8.9} {:>4} {:>4}{} {:>3} {:>8}", ShortName(worker.at("name"), name), name,
        Shown(worker.at("role")), Shown(worker.at("state")), worker.at("running").get<uint64_t>(),
        worker.at("waiting").get<uint64_t>(),
        wide ? fmt::format(" {:>8}", worker.at("waiting_tokens").get<uint64_t>()) : "",
        worker.at("transfers").get<uint64_t>(), own.RateText(worker, "tokens"));
    if (!wide) text += ShortTierText(worker.at("tiers"));
    for (const Json& tier : worker.at("tiers")) text += wide ? TierText(tier) : "";
    text += "\n";
  }
  return text;
}

std::string LinksText(const Json& now, const Since& since, bool wide) {
  if (now.at("links").empty()) return "";
  const auto key = [](const Json& link) {
    return fmt::format("{}\n{}\n{}", link.at("from").get<std::string>(),
                       link.at("to").get<std::string>(), link.at("kind").get<std::string>());
  };
  std::map<std::string, const Json*> before;
  if (since.before != nullptr) {
    for (const Json& link : since.before->at("links")) before[key(link)] = &link;
  }
  const size_t end = wide ? 23 : 10;
  const size_t ends = 2 * end + 4;
  const int over = wide ? 13 : 6;
  std::string text =
      fmt::format("\n{:<{}} {:<8} {:<{}} {:>4} {:>8} {:>10} {:>10}\n", "KV between workers", ends,
                  "kind", "over", over, "open", "done", "bytes", "bytes/s");
  for (const Json& link : now.at("links")) {
    const auto then = before.find(key(link));
    const Since own{then == before.end() ? nullptr : then->second, since.seconds};
    text +=
        fmt::format("{:<{}} {:<8} {:<{}.{}} {:>4} {:>8} {:>10} {:>10}\n",
                    ShortName(link.at("from"), end) + " -> " + ShortName(link.at("to"), end), ends,
                    Shown(link.at("kind")), Shown(link.at("transport")), over, over,
                    link.at("open").get<uint64_t>(), link.at("done").get<uint64_t>(),
                    FormatBytes(link.at("bytes").get<uint64_t>()), own.BytesText(link, "bytes"));
  }
  return text;
}

std::string PrefixesText(const Json& now) {
  if (now.at("prefixes").empty()) return "";
  std::string text = fmt::format("\n{:>14} {:>8} {:>8}  {:<16} {}\n", "hottest prefixes", "hits",
                                 "recent", "tenant", "cached in");
  for (const Json& prefix : now.at("prefixes")) {
    std::vector<std::string> where;
    for (const Json& place : prefix.at("where")) {
      where.push_back(Shown(place.at("worker")) + ":" + Shown(place.at("tier")));
    }
    text += fmt::format(
        "{:>9} tokens {:>8} {:>8.1f}  {:<16.16} {}\n", prefix.at("tokens").get<uint64_t>(),
        prefix.at("hits").get<uint64_t>(), prefix.at("recent_hits").get<double>(),
        prefix.contains("tenant") ? Shown(prefix.at("tenant")) : "", fmt::join(where, " "));
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> ClusterText(const ClusterSeen& now,
                                        const std::optional<ClusterSeen>& before, size_t columns) {
  try {
    const Json picture = Json::parse(now.json);
    const Json earlier = before ? Json::parse(before->json) : Json();
    Since since;
    // Another router, or the same one started anew, has counted from 0.
    if (before && earlier.at("router").at("uptime_s").get<double>() <=
                      picture.at("router").at("uptime_s").get<double>()) {
      since = {&earlier, std::chrono::duration<double>(now.at - before->at).count()};
    }
    const bool wide = columns >= kWideColumns;
    return Broken(FiguresText(picture, since), columns) + WorkersText(picture, since, wide) +
           LinksText(picture, since, wide) + PrefixesText(picture);
  } catch (const nlohmann::json::exception& error) {
    return InvalidArgument(
        "the router's picture cannot be read; its version may differ from this program's ({})",
        error.what());
  }
}

}  // namespace penstock
