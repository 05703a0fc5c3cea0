// Asks /cluster again and again, and for a key where the router wants one.
import {setModel, startChat} from "./chat.js";
import {drawWires, showReport} from "./cluster.js";
import {at, mark, write} from "./draw.js";
import {short} from "./rates.js";

const kEvery_ms = 500;
const kHidden_ms = 5000;
const kPatience_ms = 3000;
const kKey = "penstock-key";  // in sessionStorage: of this tab, and gone with it

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

// At most one look is under way, and one waits.
function lookIn(delay_ms) {
  clearTimeout(timer);
  timer = setTimeout(look, delay_ms);
}

function askForKey() {
  clearTimeout(timer);
  const refused = sessionStorage.getItem(kKey) !== null;
  sessionStorage.removeItem(kKey);
  at("forget").hidden = true;
  at("cluster").inert = at("chat").inert = at("skip").hidden = true;
  setState("stale", "a key is needed");
  write(at("key-error"), refused ? "The router does not know this key, or it has expired." : "");
  if (!at("key-form").hidden && !refused) return;
  at("key-form").hidden = false;
  at("key").focus();
}

function show(report) {
  const router = report.router;
  at("cluster").inert = at("chat").inert = at("skip").hidden = false;
  at("key-form").hidden = true;
  at("forget").hidden = sessionStorage.getItem(kKey) === null;
  setState(router.ready ? "ready" : "starting", router.ready ? "ready" : "no pair of workers is ready");
  write(at("served"), `${router.model}${router.context_tokens ? `, ${short(router.context_tokens)} tokens of context` : ""}`);
  write(at("about"), `Penstock ${router.version}, up ${upFor(router.uptime_s)}. Totals are of this router and since its start.`);
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
    const response = await fetch("/cluster", {headers: headers(), cache: "no-store", signal: AbortSignal.timeout(kPatience_ms)});
    if (turn !== asked) return;
    if (response.status === 401) return askForKey();
    if (!response.ok) throw new Error(`it answered ${response.status}`);
    show(await response.json());
  } catch (error) {
    setState("down", `the router does not answer`);
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
