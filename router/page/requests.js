// Lists the requests that ended last. A click on one opens its stages over time.
import {at, make, mark, reconcile, write} from "./draw.js";
import {seconds, short} from "./rates.js";

const kStageNames = {exposed: "KV transfer not hidden", credit: "reserve blocks", first_decode: "first decode step", write: "send"};
const kStateOf = {ok: "ready", rejected: "draining", cancelled: "draining", client_error: "draining"};

function makeRequest() {
  const item = make("li", "panel");
  const details = make("details");
  const summary = make("summary");
  summary.append(make("span", "status"), make("span", "what"), make("span", "more"));
  details.append(summary, make("p", "more"), make("ol", "stages"));
  item.append(details);
  return item;
}

function makeStage() {
  const row = make("li");
  const track = make("div", "track");
  track.append(make("div"));
  mark(track, "aria-hidden", "true");
  row.append(make("span"), track, make("span", "more"));
  return row;
}

function fillStage(row, stage, total_ms) {
  const [name, track, text] = row.children;
  write(name, kStageNames[stage.name] || stage.name);
  const share = (ms) => `${total_ms > 0 ? Math.min(100, Math.max(0, ms / total_ms * 100)) : 0}%`;
  track.firstChild.style.marginLeft = share(Math.min(stage.start_ms, total_ms * 0.995));
  track.firstChild.style.width = share(stage.ms);
  mark(track.firstChild, "class", ["queue", "prefill", "exposed"].includes(stage.name) ? "prefill-bars" : stage.worker ? "decode-bars" : "");
  const where = stage.worker || stage.reason;
  write(text, `${seconds(stage.ms / 1000)} from ${seconds(stage.start_ms / 1000)}${where ? ` · ${where}` : ""}`);
}

function fillRequest(item, request) {
  const [summary, note, stages] = item.firstChild.children;
  const [status, what, when] = summary.children;
  mark(item, "data-state", kStateOf[request.status] || "down");
  write(status, request.reason ? `${request.status}: ${request.reason}` : request.status);
  write(what, `${short(request.prompt_tokens)} + ${short(request.output_tokens)} tokens, TTFT ${request.first_token_ms === null ? "–" : seconds(request.first_token_ms / 1000)}, total ${seconds(request.total_ms / 1000)}`);
  write(when, `${short(Math.round(request.ended_s_ago))} s ago`);
  write(note, `request ${request.id}${request.trace_id ? `, trace ${request.trace_id}` : ""}; ${request.endpoint}; ${short(request.cached_tokens)} of ${short(request.prompt_tokens)} prompt tokens cached`);
  reconcile(stages, request.stages.map((stage, rank) => ({...stage, rank})), (stage) => String(stage.rank), makeStage,
            (row, stage) => fillStage(row, stage, request.total_ms));
}

// Requests that a reader has opened stay where they are until they leave the report.
export function showFinished(requests) {
  at("finished-none").hidden = requests.length > 0;
  reconcile(at("finished"), requests, (request) => String(request.number), makeRequest, fillRequest);
}
