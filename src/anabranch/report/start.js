"use strict";
// What all drawings share: errors made visible, the data, elements, units, and the selected task.
window.addEventListener("error", (event) => {
  document.documentElement.dataset.error = event.message || "error";
});

const data = JSON.parse(document.getElementById("data").textContent);
const tasks = data.tasks;
const position = new Map(tasks.map((task, i) => [task.name, i]));
// The launches that read what a launch writes.
const readers = tasks.map(() => []);
tasks.forEach((task, i) => task.after.forEach((p) => readers[p].push(i)));
const slowest = Math.max(...tasks.map((task) => task.us || 0), 1e-9);

// An element with attributes and children; text is only ever set as text.
function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") for (const [k, v] of Object.entries(value)) element.style.setProperty(k, v);
    else if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== ""));
  return element;
}

function significant(value, digits = 3) {
  if (!value) return "0";
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", { minimumFractionDigits: Math.min(decimals, 6), maximumFractionDigits: Math.min(decimals, 6) });
}
function duration(us) {
  if (us === null || us === undefined) return "";
  return Math.abs(us) >= 1000 ? `${significant(us / 1000)} ms` : `${significant(us)} µs`;
}
function size(bytes) {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (Math.abs(bytes) < 1024) return unit === "B" ? `${bytes} B` : `${significant(bytes)} ${unit}`;
    bytes /= 1024;
  }
  return `${significant(bytes)} GiB`;
}
function shorten(text, most) {
  if (text.length <= most) return text;
  if (most < 3) return "";
  const tail = Math.floor((most - 1) / 2);
  return `${text.slice(0, most - 1 - tail)}…${text.slice(text.length - tail)}`;
}

// Colours come from the style sheet, so that drawings follow light and dark.
let paint = {};
function readPaint() {
  const style = getComputedStyle(document.documentElement);
  const names = ["paper", "surface", "sunk", "line", "faint", "ink", "soft", "dim", "accent", "accent-soft", "good", "warn", "edge", "on-kind", "on-pale", "contract", "pointwise", "reduce", "move", "opaque", "text", "mono"];
  paint = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}
readPaint();

// The selected task and the module that all else is dimmed for, the same in all views. A view
// listens, and can bring a task into sight.
let selected = -1, focus = null;
const views = [];
// Whether a task is in the module. "*" stands for a number: all layers of a list.
const within = (path, wanted) => {
  const names = path === "" ? [] : path.split("."), asked = wanted.split(".");
  return wanted === "" ? !names.length : asked.every((name, k) => name === names[k] || (name === "*" && /^\d+$/.test(names[k])));
};
const inside = (i) => focus === null || within(tasks[i].module, focus);
function link(kind, text) {
  history.replaceState(null, "", kind ? `#${kind}=${encodeURIComponent(text)}` : location.pathname + location.search);
}
function select(i) {
  selected = i === selected ? -1 : i;
  link(selected < 0 ? "" : "task", selected < 0 ? "" : tasks[selected].name);
  for (const view of views) view.selected(selected);
  inspect();
}
function choose(i) {
  if (i !== selected) select(i);
}
function focusOn(path) {
  focus = path;
  for (const view of views) view.focused?.();
}

function inspect() {
  const bar = document.getElementById("inspector");
  bar.hidden = selected < 0;
  document.body.classList.toggle("inspecting", selected >= 0);
  if (selected < 0) { bar.replaceChildren(); return; }
  const task = tasks[selected];
  const fact = (label, ...shown) => h("div", {}, h("b", {}, ...shown), h("small", {}, label));
  const show = (id, label) => h("button", { onclick: () => {
    document.getElementById(id).scrollIntoView();
    for (const view of views) if (view.id === id) view.reveal(selected);
  } }, label);
  bar.replaceChildren(
    h("div", { class: "facts" },
      h("div", {}, h("b", { class: `dot ${task.kind}` }, ...breakable(task.name)), h("small", {}, task.ops)),
      fact(task.source || "time unknown", duration(task.us) || "—"),
      fact(`stream ${task.stream}, launch ${selected}`, ...(task.kernel ? breakable(task.kernel) : ["no kernel"])),
      task.origin ? fact(task.origin, ...breakable(task.module || task.place)) : ""),
    h("span", { class: "group" }, show("timeline", "timeline"), show("graph", "graph"), show("tasks", "table"), show("memory", "memory")),
    h("button", { class: "close", "aria-label": "clear the selection", title: "Esc", onclick: () => select(selected) }, "✕"),
  );
}
// A name that may go on in the next line behind its dots, colons and commas.
function breakable(text) {
  const parts = text.split(/(?<=[.:,])/).flatMap((part) => (part.length > 20 ? part.split(/(?<=_)/) : [part]));
  return parts.flatMap((part, k) => (k ? [h("wbr"), part] : [part]));
}

// A hint beside the pointer.
const tip = document.getElementById("tip");
function hint(event, ...children) {
  tip.replaceChildren(...children);
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const x = event.clientX + 16 + box.width > innerWidth ? event.clientX - 16 - box.width : event.clientX + 16;
  const y = Math.min(event.clientY + 16, innerHeight - box.height - 8);
  tip.style.left = `${Math.max(4, x)}px`;
  tip.style.top = `${Math.max(4, y)}px`;
}
function unhint() { tip.hidden = true; }
function describe(i, ...more) {
  const task = tasks[i];
  const lines = [`${task.ops} → ${task.writes.map((w) => w.slice(w.indexOf(": ") + 2)).join(", ")}`, ...more];
  lines.push([task.kernel, task.us === null ? "" : `${duration(task.us)} alone (${task.source})`].filter(Boolean).join(", "));
  if (task.origin) lines.push(task.origin);
  return [h("div", { class: `dot ${task.kind}` }, h("b", {}, task.name)), ...lines.filter(Boolean).map((line) => h("p", {}, line))];
}

// Buttons of which one is pressed.
function options(labels, pressed, picked) {
  const buttons = labels.map((label, i) => h("button", { "aria-pressed": String(i === pressed), onclick: () => {
    buttons.forEach((button, k) => button.setAttribute("aria-pressed", String(k === i)));
    picked(i);
  } }, label));
  return h("span", { class: "group" }, ...buttons);
}
function toggle(label, title, on, changed) {
  const button = h("button", { "aria-pressed": String(on), title, onclick: () => {
    on = !on;
    button.setAttribute("aria-pressed", String(on));
    changed(on);
  } }, label);
  return h("span", { class: "group" }, button);
}
