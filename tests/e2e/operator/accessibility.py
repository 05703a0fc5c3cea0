"""Accessibility of a page, checked in a browser: names, structure, contrast, focus, size,
room. `problems(browser)` is a list of sentences, empty for a page without faults. After WCAG 2.2, level AA."""

STRUCTURE = r"""
const problems = [];
const say = (text, element) => problems.push(text + (element ? ': ' + element.outerHTML.slice(0, 120) : ''));
const shown = (e) => e.checkVisibility({checkOpacity: false, checkVisibilityCSS: true});
if (!document.documentElement.lang) say('html has no lang');
if (!document.title.trim()) say('the page has no title');
for (const [selector, what] of [['main', 'main'], ['body > header', 'banner'], ['body > footer', 'contentinfo'], ['h1', 'h1']]) {
  const count = document.querySelectorAll(selector).length;
  if (count !== 1) say(`there are ${count} of ${what}`);
}
let level = 0;
for (const heading of document.querySelectorAll('h1,h2,h3,h4,h5,h6')) {
  if (!shown(heading)) continue;
  const next = Number(heading.tagName[1]);
  if (next > level + 1) say(`a heading of level ${next} behind one of level ${level}`, heading);
  if (!heading.textContent.trim()) say('an empty heading', heading);
  level = next;
}
const ids = new Set();
for (const element of document.querySelectorAll('[id]')) {
  if (ids.has(element.id)) say('an id that is there twice', element);
  ids.add(element.id);
}
for (const name of ['aria-labelledby', 'aria-describedby', 'aria-controls', 'for']) {
  for (const element of document.querySelectorAll(`[${name}]`)) {
    for (const id of element.getAttribute(name).split(/\s+/)) if (!ids.has(id)) say(`${name} names nothing`, element);
  }
}
for (const section of document.querySelectorAll('section, form')) {
  if (section.tagName === 'SECTION' && !section.hasAttribute('aria-labelledby') && !section.hasAttribute('aria-label')) say('a section without a name', section);
}
for (const image of document.querySelectorAll('img')) if (!image.hasAttribute('alt')) say('an image without alt', image);
for (const list of document.querySelectorAll('ul, ol')) {
  for (const child of list.children) if (child.tagName !== 'LI') say('a list holds something else', list);
}
for (const element of document.querySelectorAll('[tabindex]')) if (element.tabIndex > 0) say('a tabindex above 0', element);
for (const hidden of document.querySelectorAll('[aria-hidden="true"]')) {
  if (hidden.querySelector('a[href], button, input, textarea, select, [tabindex]')) say('something to focus inside aria-hidden', hidden);
}
for (const target of document.querySelectorAll('a[href], button, input, textarea, select, summary')) {
  const box = target.getBoundingClientRect();
  if (shown(target) && box.right > 0 && (box.width < 24 || box.height < 20)) say(`a target of ${box.width} x ${box.height}`, target);
}
if (document.documentElement.scrollWidth > innerWidth) say(`${document.documentElement.scrollWidth} pixels do not fit ${innerWidth}`);
return problems;
"""

CONTRAST = r"""
const canvas = document.createElement('canvas');
canvas.width = canvas.height = 1;
const context = canvas.getContext('2d', {willReadFrequently: true});
const parse = (colour) => {  // to [r, g, b, alpha], whatever notation
  context.clearRect(0, 0, 1, 1);
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
  return [r, g, b, a / 255];
};
const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
const ground = (element) => {
  const layers = [];
  for (let e = element; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  return layers.reverse().reduce((under, top) => over(top, under), dark ? [18, 18, 18, 1] : [255, 255, 255, 1]);
};
const luminance = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const contrast = (a, b) => {
  const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (high + 0.05) / (low + 0.05);
};
const problems = [];
let texts = 0;
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
for (let node = walker.nextNode(); node; node = walker.nextNode()) {
  const element = node.parentElement;
  if (!node.textContent.trim() || !element.checkVisibility({checkVisibilityCSS: true}) || element.closest('[inert]')) continue;
  if (element.closest('button:disabled')) continue;
  ++texts;
  const style = getComputedStyle(element);
  const under = ground(element);
  const ratio = contrast(over(parse(style.color), under), under);
  const size = parseFloat(style.fontSize);
  const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  if (ratio < (large ? 3 : 4.5)) problems.push(`contrast ${ratio.toFixed(2)}: ${element.outerHTML.slice(0, 120)}`);
}
// Contrast of meaningful parts that are not text: borders of fields, bars, marks of states.
const edge = (element, colour, under, what) => {
  const ratio = contrast(over(parse(colour), under), under);
  if (ratio < 3) problems.push(`contrast ${ratio.toFixed(2)} of ${what}: ${element.outerHTML.slice(0, 120)}`);
};
for (const field of document.querySelectorAll('input, textarea')) {
  if (field.checkVisibility() && !field.closest('[inert]')) edge(field, getComputedStyle(field).borderTopColor, ground(field.parentElement), 'a border');
}
for (const part of document.querySelectorAll('.bar .used')) edge(part, getComputedStyle(part).backgroundColor, ground(part.parentElement), 'a bar');
return [texts, problems];
"""

FOCUSED = r"""
const e = document.activeElement;
if (!e || e === document.body) return null;
const style = getComputedStyle(e);
return {what: e.outerHTML.slice(0, 100), id: e.id, outline: parseFloat(style.outlineWidth), style: style.outlineStyle,
        top: e.getBoundingClientRect().top, left: e.getBoundingClientRect().left};
"""

# Every control that Tab should reach, now.
CONTROLS = r"""
return [...document.querySelectorAll('a[href], button, input, textarea, select, summary, [tabindex="0"]')]
  .filter((e) => e.checkVisibility({checkVisibilityCSS: true}) && !e.disabled && !e.closest('[inert]')).map((e) => e.outerHTML.slice(0, 100));
"""

NAMED_ROLES = {"button", "link", "textbox", "spinbutton", "checkbox", "combobox", "meter", "image", "DisclosureTriangle", "region", "log", "form"}


def names(browser):
    """By Chromium's own accessibility tree: what it would read out."""
    found, seen = [], set()
    for node in browser.command("Accessibility.getFullAXTree")["nodes"]:
        role = node.get("role", {}).get("value")
        if node.get("ignored") or role not in NAMED_ROLES:
            continue
        seen.add(role)
        if not node.get("name", {}).get("value", "").strip():
            found.append(f"a {role} without a name: {node}"[:300])
    if not {"button", "textbox"} <= seen:
        found.append(f"only {sorted(seen)} in the accessibility tree")
    return found


def focus(browser):
    """Tab goes to every control and shows where it is."""
    found, reached = [], []
    wanted = browser.run(CONTROLS)
    browser.run("document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex')")  # Tab starts here
    for _ in range(len(wanted) + 5):
        browser.type("Tab")
        at = browser.run(FOCUSED)
        if at is None or (reached and at["what"] == reached[0]):
            break
        reached.append(at["what"])
        if at["style"] == "none" or at["outline"] < 2:
            found.append(f"focus does not show: {at}")
        if at["left"] < 0:
            found.append(f"what has the focus is not in sight: {at}")
    return found + [f"Tab does not reach {control}" for control in set(wanted) - set(reached)]


def problems(browser):
    texts, found = browser.run(CONTRAST)
    if texts < 6:
        found.append(f"only {texts} texts are shown")
    return browser.run(STRUCTURE) + found + names(browser) + focus(browser)
