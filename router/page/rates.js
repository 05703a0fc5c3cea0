// Rates and quantiles from the totals of two reports. Pure functions.

export function rate(now, before, seconds) {
  // A total that fell comes from a restarted process: the rate is not known yet.
  return seconds > 0 && now >= before ? (now - before) / seconds : 0;
}

// The quantile of the samples between two histograms ({bounds, counts}, cumulative; the last bound is
// null for infinity). Null if there is no sample.
export function quantile(now, before, share) {
  const counts = now.counts.map((count, i) => count - (before ? before.counts[i] : 0));
  const all = counts[counts.length - 1];
  if (!(all > 0)) return null;
  const wanted = share * all;
  const i = counts.findIndex((count) => count >= wanted);
  const low = i === 0 ? 0 : now.bounds[i - 1];
  const high = now.bounds[i];
  if (high === null) return low;
  const below = i === 0 ? 0 : counts[i - 1];
  return low + (high - low) * ((wanted - below) / (counts[i] - below));
}

export function countOf(spread) {
  return spread.counts[spread.counts.length - 1];
}

// The reports of the last `span_ms`, with their times.
export class History {
  constructor(span_ms) {
    this.span_ms = span_ms;
    this.kept = [];
  }
  add(time_ms, value) {
    this.kept.push({time_ms, value});
    while (this.kept.length > 2 && time_ms - this.kept[0].time_ms > this.span_ms) this.kept.shift();
  }
  clear() {
    this.kept = [];
  }
  // The newest report that is at least `age_ms` old, else the oldest.
  before(age_ms) {
    const last = this.kept[this.kept.length - 1];
    for (let i = this.kept.length - 1; i >= 0; --i) {
      if (last.time_ms - this.kept[i].time_ms >= age_ms) return this.kept[i];
    }
    return this.kept[0];
  }
  values() {
    return this.kept.map((entry) => entry.value);
  }
}

const kUnits = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
export function bytes(count) {
  let unit = 0;
  while (count >= 1024 && unit + 1 < kUnits.length) {
    count /= 1024;
    ++unit;
  }
  return `${short(count)} ${kUnits[unit]}`;
}

// Rounds to about three digits.
export function short(value) {
  if (value >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value >= 10 ? value.toFixed(1).replace(/\.0$/, "") : value.toFixed(2).replace(/\.?0+$/, "");
}

export function seconds(value) {
  if (value === null) return "–";
  return value < 1 ? `${short(value * 1000)} ms` : `${short(value)} s`;
}

export function percent(share) {
  return `${Math.round(share * 100)} %`;
}
