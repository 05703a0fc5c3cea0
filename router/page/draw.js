// Helpers for elements, bars and lines. Text is only set as textContent, never as markup.

export const at = (id) => document.getElementById(id);

export function make(tag, classes = "", text = "") {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  if (text) element.textContent = text;
  return element;
}

// Writes only a changed text, so that a screen reader does not announce it again.
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function mark(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

// Keeps one child of `list` for each item, in their order: `create(item)` makes a child,
// `update(child, item)` fills it.
export function reconcile(list, items, keyOf, create, update) {
  const old = new Map([...list.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, i) => {
    const key = keyOf(item);
    let child = old.get(key);
    old.delete(key);
    if (!child) {
      child = create(item);
      child.dataset.key = key;
    }
    if (list.children[i] !== child) list.insertBefore(child, list.children[i] || null);
    update(child, item);
  });
  for (const child of old.values()) child.remove();
}

// Fills a bar with `parts` ([class, amount]) of `total`. Screen readers say `label`: `text`.
export function fillBar(bar, label, parts, total, text) {
  while (bar.children.length < parts.length) bar.append(make("div"));
  parts.forEach(([kind, amount], i) => {
    bar.children[i].className = kind;
    const share = total > 0 ? Math.min(1, amount / total) : 0;
    bar.children[i].style.width = `${amount > 0 ? Math.max(share * 100, 0.8) : 0}%`;
  });
  mark(bar, "role", "meter");
  mark(bar, "aria-label", label);
  mark(bar, "aria-valuemin", 0);
  mark(bar, "aria-valuemax", Math.max(total, 1));
  mark(bar, "aria-valuenow", Math.min(parts.length ? parts[0][1] : 0, Math.max(total, 1)));
  mark(bar, "aria-valuetext", text);
}

const kSvg = "http://www.w3.org/2000/svg";
export function svg(tag, classes) {
  const element = document.createElementNS(kSvg, tag);
  element.setAttribute("class", classes);
  return element;
}

// Draws `values` from left to right, the last at the right edge. `most` is the number that fits.
export function sparkline(picture, values, most, top = Math.max(...values, 0)) {
  if (picture.children.length === 0) picture.append(svg("path", "area"), svg("path", "line"));
  picture.setAttribute("viewBox", "0 0 100 30");
  picture.setAttribute("preserveAspectRatio", "none");
  const x = (i) => 100 - ((values.length - 1 - i) * 100) / (most - 1);
  const y = (value) => 29 - (top > 0 ? (28 * Math.min(value, top)) / top : 0);
  const points = values.map((value, i) => `${x(i).toFixed(2)} ${y(value).toFixed(2)}`);
  const line = points.length ? `M${points.join("L")}` : "";
  picture.children[0].setAttribute("d", line && `${line}L100 30L${x(0).toFixed(2)} 30Z`);
  picture.children[1].setAttribute("d", line);
}
