// Draws the cluster. Rates are the difference between two reports of /cluster.
import {at, fillBar, make, mark, reconcile, sparkline, svg, write} from "./draw.js";
import {History, bytes, countOf, percent, quantile, rate, seconds, short} from "./rates.js";
import {showFinished} from "./requests.js";
import {showSlo} from "./slo.js";

const kPoints = 120;
const kBeadsMost = 32;
const kLinksMost = 10;
const kPrefixesMost = 5;
const kMinute_ms = 60_000;
const kTierNames = {device: "device", dram: "host memory", nvme: "NVMe"};
const kKindNames = {handoff: "", prefix: " · cached prefix", move: " · live migration"};

const kTransferNames = {handoff: ["handoff", "handoffs"], prefix: ["prefix", "prefixes"], move: ["sequence", "sequences"]};

const reports = new History(kMinute_ms);
const lines = {tokens: [], first: [], open: [], cached: []};
const statuses = new Map();
let drawn = null;

export function showReport(report, time_ms) {
  const last = reports.kept[reports.kept.length - 1];
  if (last && report.router.uptime_s < last.value.router.uptime_s) reports.clear();
  reports.add(time_ms, report);
  const before = reports.before(900);
  const since_s = (time_ms - before.time_ms) / 1000;
  showSlo(report, reports.before(kMinute_ms).value);
  showFigures(report, before.value, since_s);
  showWorkers(report, before.value, since_s);
  showLinks(report, before.value, since_s);
  showFinished(report.finished);
  showPrefixes(report.prefixes);
  tellNews(report.workers);
  drawn = report;
  drawWires();
}

function tokensOf(report) {
  return countOf(report.requests.first_token_s) + countOf(report.requests.next_token_s);
}

// Adds a point to the line of a figure. Its axis goes from 0 to `top`, or to the largest value shown.
function draw(name, value, textOf, top) {
  lines[name].push(value);
  if (lines[name].length > kPoints) lines[name].shift();
  const most = top || Math.max(...lines[name]);
  sparkline(at(`s-${name}`), lines[name], kPoints, most);
  write(at(`a-${name}`), most > 0 ? `0 to ${textOf(most)}, last minute` : "");
}

function showFigures(report, before, since_s) {
  const requests = report.requests;
  const tokens = rate(tokensOf(report), tokensOf(before), since_s);
  write(at("f-tokens"), short(tokens));
  const gap = quantile(requests.next_token_s, before.requests.next_token_s, 0.5);
  write(at("f-tokens-more"), gap === null ? "all requests" : `ITL p50 ${seconds(gap)}`);
  draw("tokens", tokens, short);

  const minute = reports.before(kMinute_ms).value.requests.first_token_s;
  const spread = quantile(requests.first_token_s, minute, 0.5) === null ? null : minute;
  const first = quantile(requests.first_token_s, spread, 0.5);
  const slow = quantile(requests.first_token_s, spread, 0.99);
  write(at("f-first"), seconds(first));
  write(at("f-first-more"),
        first === null ? "no request yet" : `p50 ${spread ? "of the last minute" : "since start"}; p99 ${seconds(slow)}`);
  draw("first", first || 0, seconds);

  write(at("f-open"), short(requests.open));
  write(at("f-open-more"), `open, ${requests.waiting} queued; ${short(requests.ended)} ended, ${short(requests.refused)} refused`);
  draw("open", requests.open, short);

  const cached = requests.prompt_tokens > 0 ? requests.cached_tokens / requests.prompt_tokens : 0;
  write(at("f-cached"), percent(cached));
  write(at("f-cached-more"), `of ${short(requests.prompt_tokens)} prompt tokens`);
  draw("cached", cached, percent, 1);
}

function makeWorker() {
  const card = make("li", "worker");
  const head = make("div", "head");
  head.append(make("strong"), make("span", "status"));
  const beads = make("div", "beads");
  mark(beads, "aria-hidden", "true");
  card.append(head, make("p", "load"), beads, make("div", "tiers"));
  return card;
}

function fillTier(row, worker, tier) {
  const name = kTierNames[tier.tier] || tier.tier;
  if (row.children.length === 0) row.append(make("span"), make("div", "bar"), make("span"));
  const taken = tier.used_bytes + tier.reserved_bytes + tier.cached_bytes;
  write(row.children[0], name);
  fillBar(row.children[1], `${worker.name}, ${name}`,
          [["used", tier.used_bytes], ["reserved", tier.reserved_bytes], ["cached", tier.cached_bytes]],
          tier.total_bytes,
          `${bytes(tier.used_bytes)} used, ${bytes(tier.reserved_bytes)} reserved, ${bytes(tier.cached_bytes)} cached of ${bytes(tier.total_bytes)}`);
  write(row.children[2], `${percent(tier.total_bytes > 0 ? taken / tier.total_bytes : 0)} of ${bytes(tier.total_bytes)}`);
}

function fillWorker(card, worker, tokens_per_s) {
  const [head, load, beads, tiers] = card.children;
  mark(card, "data-state", worker.state);
  write(head.children[0], worker.name);
  write(head.children[1], worker.state);
  const waits = worker.role === "prefill" ? `${short(worker.waiting_tokens)} tokens queued` : `${worker.waiting} waiting`;
  if (load.children.length === 0) load.append(make("span"), make("span"), make("span"));
  write(load.children[0], `${worker.running} running`);
  write(load.children[1], waits);
  write(load.children[2], `${short(tokens_per_s)} tokens/s`);
  const running = Math.min(worker.running, kBeadsMost);
  const waiting = Math.min(worker.waiting, kBeadsMost - running);
  while (beads.children.length > running + waiting) beads.lastChild.remove();
  while (beads.children.length < running + waiting) beads.append(make("i"));
  [...beads.children].forEach((bead, i) => { bead.className = i < running ? "" : "waits"; });
  reconcile(tiers, worker.tiers.filter((tier) => tier.total_bytes > 0), (tier) => tier.tier,
            () => make("div", "tier"), (row, tier) => fillTier(row, worker, tier));
}

function showWorkers(report, before, since_s) {
  const then = new Map(before.workers.map((worker) => [worker.name + worker.life, worker]));
  const fill = (card, worker) => {
    const was = then.get(worker.name + worker.life);
    fillWorker(card, worker, was ? rate(worker.tokens, was.tokens, since_s) : 0);
  };
  for (const role of ["prefill", "decode", "unknown"]) {
    const workers = report.workers.filter((worker) => worker.role === role)
                        .sort((a, b) => a.name.localeCompare(b.name, "en", {numeric: true}));
    reconcile(at(role), workers, (worker) => worker.name, makeWorker, fill);
    if (role === "unknown") at("unheard").hidden = workers.length === 0;
  }
  const more = report.router.workers - report.workers.filter((worker) => worker.role !== "unknown").length;
  write(at("workers-more"), more > 0 ? `and ${more} more workers` : "");
}

const keyOf = (link) => `${link.kind} ${link.from} ${link.to}`;

function showLinks(report, before, since_s) {
  const then = new Map(before.links.map((link) => [keyOf(link), link]));
  for (const link of report.links) {
    const was = then.get(keyOf(link));
    link.rate = rate(link.bytes, was ? was.bytes : 0, since_s);
    link.busy = link.open > 0 || link.rate > 0;
  }
  const links = report.links.filter((link) => link.bytes > 0 || link.open > 0).sort((a, b) => b.bytes - a.bytes);
  const shown = links.slice(0, kLinksMost);
  const most = Math.max(1, ...shown.map((link) => link.rate));
  at("links-none").hidden = shown.length > 0;
  write(at("links-more"), links.length > shown.length ? `and ${links.length - shown.length} more links` : "");
  reconcile(at("links"), shown, keyOf, () => {
    const item = make("li");
    const head = make("div", "head");
    head.append(make("span"), make("strong"));
    item.append(head, make("div", "bar"), make("p", "more"));
    return item;
  }, (item, link) => {
    write(item.children[0].children[0], `${link.from} → ${link.to}${kKindNames[link.kind] || ""}`);
    write(item.children[0].children[1], `${bytes(link.rate)}/s`);
    fillBar(item.children[1], `KV per second from ${link.from} to ${link.to}`, [["used", link.rate]], most, `${bytes(link.rate)}/s`);
    const names = kTransferNames[link.kind] || kTransferNames.handoff;
    const facts = [`total ${bytes(link.bytes)}, ${short(link.done)} ${names[link.done === 1 ? 0 : 1]}`];
    if (link.open > 0) facts.push(`${link.open} in flight`);
    if (link.done > 0 && link.kind === "handoff") facts.push(`last exposed ${short(link.exposed_ms)} ms`);
    if (link.transport) facts.push(link.transport);
    write(item.children[2], facts.join(" · "));
  });
}

function showPrefixes(all) {
  const prefixes = all.slice(0, kPrefixesMost);
  write(at("prefixes-more"), all.length > prefixes.length ? `and ${all.length - prefixes.length} more prefixes` : "");
  const most = Math.max(1, ...prefixes.map((prefix) => prefix.recent_hits));
  at("prefixes-none").hidden = prefixes.length > 0;
  reconcile(at("prefixes"), prefixes.map((prefix, rank) => ({...prefix, rank})), (prefix) => String(prefix.rank), () => {
    const item = make("li");
    const head = make("div", "head");
    head.append(make("span"), make("strong"));
    item.append(head, make("div", "bar"), make("div", "where"));
    return item;
  }, (item, prefix) => {
    const [head, bar, where] = item.children;
    write(head.children[0], `Prefix of ${short(prefix.tokens)} tokens`);
    write(head.children[1], `${short(prefix.hits)} ${prefix.hits === 1 ? "hit" : "hits"}`);
    fillBar(bar, `Recent hits, prefix of ${short(prefix.tokens)} tokens`, [["used", prefix.recent_hits]], most, short(prefix.recent_hits));
    reconcile(where, prefix.where, (place) => place.worker + place.tier, () => make("span", "chip"),
              (chip, place) => write(chip, `${place.worker} · ${kTierNames[place.tier] || place.tier}`));
  });
}

// Announced by screen readers, so only changes of a worker's state.
function tellNews(workers) {
  const news = [];
  for (const worker of workers) {
    const was = statuses.get(worker.name);
    if (was && was !== worker.state) news.push(`${worker.name} was ${was} and is ${worker.state}`);
    statuses.set(worker.name, worker.state);
  }
  if (news.length) write(at("news"), news.join(". "));
}

// Draws the lines between the cards; the width grows with the rate.
export function drawWires() {
  if (!drawn) return;
  const wires = at("wires");
  const frame = wires.getBoundingClientRect();
  const cards = new Map([...document.querySelectorAll("#flow .worker")].map((card) => [card.dataset.key, card]));
  const anchor = (name) => {
    const card = cards.get(name);
    if (!card) return null;
    const box = card.getBoundingClientRect();
    const left = Boolean(card.closest(".prefill"));
    return {x: (left ? box.right : box.left) - frame.left, y: box.top + box.height / 2 - frame.top};
  };
  const links = drawn.links.filter((link) => cards.has(link.from) && cards.has(link.to) && link.from !== link.to);
  const existing = [...wires.children];
  links.forEach((link, i) => {
    const path = existing[i] || wires.appendChild(svg("path", ""));
    const [from, to] = [anchor(link.from), anchor(link.to)];
    const middle = frame.width / 2;
    path.setAttribute("d", `M${from.x} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`);
    mark(path, "class", `${link.kind} ${link.busy ? "busy" : link.bytes > 0 ? "used" : ""}`);
    path.style.strokeWidth = link.busy ? 2 + Math.min(6, Math.log2(1 + link.rate / 1e6)) : 1.5;
  });
  existing.slice(links.length).forEach((path) => path.remove());
}
