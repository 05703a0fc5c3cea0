// Says whether requests meet their latency targets, from the totals of two reports of /cluster.
import {at, mark, write} from "./draw.js";
import {percent, quantile, seconds, short} from "./rates.js";

const kObjective = 0.95;  // the share of successful requests that the alerts ask for

// The share of the successful requests between two reports that met both targets; null: there was none.
function inTime(now, before) {
  const all = now.succeeded - before.succeeded;
  return all > 0 ? (now.in_time - before.in_time) / all : null;
}

function showTail(id, target_s, now, before) {
  const tail = quantile(now, before, 0.99);
  write(at(`${id}-name`), `${id === "slo-ttft" ? "TTFT" : "ITL"} p99, target ${seconds(target_s)}`);
  write(at(id), seconds(tail));
  mark(at(id), "data-state", tail === null ? "none" : tail > target_s ? "down" : "ready");
}

// "3: queue_full 2, quota 1" for the reasons of refusals that were added since `before`.
function refusals(now, before) {
  const added = Object.entries(now).map(([reason, count]) => [reason, count - (before[reason] || 0)])
                    .filter(([, count]) => count > 0).sort((a, b) => b[1] - a[1]);
  const all = added.reduce((sum, [, count]) => sum + count, 0);
  return all === 0 ? "0" : `${short(all)}: ${added.map(([reason, count]) => `${reason} ${short(count)}`).join(", ")}`;
}

// `minute` is the report of a minute ago, or the oldest.
export function showSlo(report, minute) {
  const [now, before] = [report.slo, minute.slo];
  const share = inTime(now, before);
  const state = at("slo-state");
  mark(state, "data-state", share === null ? "none" : share < kObjective ? "down" : "ready");
  write(state, share === null ? "no requests" : `${share < kObjective ? "missed" : "met"}: ${percent(share)} in time, objective ${percent(kObjective)}`);
  showTail("slo-ttft", now.ttft_target_s, report.requests.first_token_s, minute.requests.first_token_s);
  showTail("slo-itl", now.tpot_target_s, report.requests.next_token_s, minute.requests.next_token_s);
  const failed = now.failed - before.failed;
  write(at("slo-failed"), short(failed));
  mark(at("slo-failed"), "data-state", failed > 0 ? "down" : "none");
  write(at("slo-refused"), refusals(now.refused_by, before.refused_by));
}
