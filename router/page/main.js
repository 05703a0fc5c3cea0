// Polls /cluster, and asks the user for an API key if the router requires one.
import {setModel, startChat} from "./chat.js";
import {drawWires, showReport} from "./cluster.js";
import {at, mark, write} from "./draw.js";
import {short} from "./rates.js";

const kEvery_ms = 500;
const kHidden_ms = 5000;
const kTimeout_ms = 3000;
const kKey = "penstock-key";  // in sessionStorage, which the browser deletes with the tab

let timer = 0;
let asked = 0;

function headers() {
  const key = sessionStorage.getItem(kKey);
  return key ? {Authorization: `Bearer ${key}`} : {};
}

function setState(state, text) {
  mark(at("state"), "data-state", state);
  write(at("state"), text);
}

// At most one request is in flight, and at most one is scheduled.
function lookIn(delay_ms) {
  clearTimeout(timer);
  timer = setTimeout(look, delay_ms);
}

function askForKey() {
  clearTimeout(timer);
  const refused = sessionStorage.getItem(kKey) !== null;
  sessionStorage.removeItem(kKey);
  at("forget").hidden = true;
  at("overview").inert = at("cluster").inert = at("chat").inert = at("skip").hidden = true;
  setState("stale", "API key required");
  write(at("key-error"), refused ? "The API key is unknown or expired." : "");
  if (!at("key-form").hidden && !refused) return;
  at("key-form").hidden = false;
  at("key").focus();
}

function show(report) {
  const router = report.router;
  at("overview").inert = at("cluster").inert = at("chat").inert = at("skip").hidden = false;
  at("key-form").hidden = true;
  at("forget").hidden = sessionStorage.getItem(kKey) === null;
  // Without a ready pair every request fails: an outage, and shown as one.
  if (router.ready) setState("ready", "ready");
  else setState("down", "not serving: no ready prefill/decode pair");
  write(at("served"), `${router.model}${router.context_tokens ? `, context ${short(router.context_tokens)} tokens` : ""}`);
  write(at("about"), `Penstock ${router.version}, up ${upFor(router.uptime_s)}. Totals count this router’s requests since its start.`);
  setModel(router.model);
  showReport(report, performance.now());
}

function upFor(seconds) {
  const minutes = Math.floor(seconds / 60);
  if (minutes < 1) return "less than a minute";
  if (minutes < 120) return `${minutes} min`;
  return minutes < 2880 ? `${Math.floor(minutes / 60)} h` : `${Math.floor(minutes / 1440)} days`;
}

async function look() {
  const turn = ++asked;
  try {
    const response = await fetch("/cluster", {headers: headers(), cache: "no-store", signal: AbortSignal.timeout(kTimeout_ms)});
    if (turn !== asked) return;
    if (response.status === 401) return askForKey();
    if (!response.ok) throw new Error(`HTTP ${response.status}`);
    show(await response.json());
  } catch (error) {
    setState("down", "no answer from the router");
  }
  if (turn === asked) lookIn(document.hidden ? kHidden_ms : kEvery_ms);
}

at("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(kKey, at("key").value.trim());
  at("key").value = "";
  lookIn(0);
});
at("forget").addEventListener("click", () => {
  sessionStorage.removeItem(kKey);
  location.reload();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) lookIn(0);
});
addEventListener("resize", drawWires);
startChat(headers, askForKey);
lookIn(0);
