// The arena: offset upwards, launches to the right, a rectangle for each value and workspace.
const MEMORY = { left: 74, top: 12, height: 320, bottom: 26 };

function drawMemory() {
  const place = document.getElementById("memory-drawing"), memory = data.memory;
  if (!memory.items.length) { place.replaceChildren(h("p", { class: "empty" }, "Nothing lives in the arena.")); return; }
  const highest = Math.max(memory.arena, memory.sequential || 0) * 1.02, steps = memory.launches;
  const marks = new Map();
  let stretch = 1;

  function draw() {
    const room = Math.max(320, place.clientWidth - 34), width = room * stretch, inner = width - MEMORY.left - 10;
    const x = (step) => MEMORY.left + (step / steps) * inner, y = (bytes) => MEMORY.top + MEMORY.height * (1 - bytes / highest);
    const svg = shape("svg", { width, height: MEMORY.top + MEMORY.height + MEMORY.bottom, viewBox: `0 0 ${width} ${MEMORY.top + MEMORY.height + MEMORY.bottom}`, role: "img", "aria-label": `Arena of ${size(memory.arena)} over ${steps} launches` });
    svg.append(shape("defs", {}, hatch()));
    for (const bytes of grid(highest)) svg.append(shape("line", { x1: MEMORY.left, x2: width - 10, y1: y(bytes), y2: y(bytes) }), label(size(bytes), MEMORY.left - 8, y(bytes) + 4, "end"));
    const step = Math.max(1, niceStep((steps * 90) / inner));
    for (let k = 0; k < steps; k += step) svg.append(label(String(k), x(k), MEMORY.top + MEMORY.height + 16, "start"));
    svg.append(label("launch", width - 10, MEMORY.top + MEMORY.height + 16, "end"));
    marks.clear();
    for (const item of memory.items) svg.append(held(item, x, y));
    const [at, most] = memory.fullest;
    limit(svg, memory.arena, `arena ${size(memory.arena)}`, y, width, -5);
    if (memory.sequential) limit(svg, memory.sequential, `sequential ${size(memory.sequential)}`, y, width, Math.abs(y(memory.sequential) - y(memory.arena)) < 14 && memory.sequential <= memory.arena ? 13 : -5);
    svg.append(shape("title", {}, `at most ${size(most)} held at launch ${at}`));
    place.replaceChildren(svg);
    mark(selected);
  }
  function held(item, x, y) {
    const [value, task, first, last, offset, bytes, workspace] = item;
    const rect = shape("rect", { class: `held ${tasks[task].kind}`, x: x(first), width: Math.max(x(last + 1) - x(first), 0.8), y: y(offset + bytes), height: Math.max(y(offset) - y(offset + bytes), 0.6) });
    if (workspace) rect.style.fill = "url(#hatch)";
    rect.addEventListener("pointermove", (event) => hint(event, h("b", {}, workspace ? `workspace of ${value}` : `%${value}`),
      h("p", {}, `${size(bytes)} at ${size(offset)}, launches ${first} to ${last}`), h("p", {}, workspace ? "" : `written by ${tasks[task].name} (${tasks[task].ops})`)));
    rect.addEventListener("pointerleave", unhint);
    rect.addEventListener("click", () => select(task));
    if (!marks.has(task)) marks.set(task, []);
    marks.get(task).push(rect);
    return rect;
  }
  function limit(svg, bytes, text, y, width, dy) {
    svg.append(shape("line", { class: "limit", x1: MEMORY.left, x2: width - 10, y1: y(bytes), y2: y(bytes) }), label(text, width - 12, y(bytes) + dy, "end"));
  }
  function mark(i) {
    place.querySelectorAll("rect.selected").forEach((rect) => rect.classList.remove("selected"));
    (marks.get(i) || []).forEach((rect) => { rect.classList.add("selected"); rect.parentNode.append(rect); });
  }
  const zoom = (factor) => { stretch = Math.min(40, Math.max(1, stretch * factor)); draw(); };
  document.getElementById("memory-tools").append(
    h("output", {}, `${memory.items.length} values and workspaces; at most ${size(memory.fullest[1])} held at once, at launch ${memory.fullest[0]} (${shorten(tasks[memory.fullest[0]].name, 40)})`),
    h("span", { class: "push group" }, h("button", { "aria-label": "narrower", onclick: () => zoom(1 / 1.6) }, "−"), h("button", { onclick: () => zoom(1e-9) }, "fit"), h("button", { "aria-label": "wider", onclick: () => zoom(1.6) }, "+")));
  draw();
  addEventListener("resize", draw);
  views.push({ id: "memory", selected: mark, repaint: () => {}, reveal: (i) => {
    const rect = (marks.get(i) || [])[0];
    if (rect) place.scrollLeft = Number(rect.getAttribute("x")) - place.clientWidth / 2;
  } });
}

function shape(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
function label(text, x, y, anchor) {
  return shape("text", { x, y, "text-anchor": anchor }, text);
}
function hatch() {
  const pattern = shape("pattern", { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
  const back = shape("rect", { width: 5, height: 5 }), stripe = shape("rect", { width: 2, height: 5 });
  back.style.fill = "var(--faint)";
  stripe.style.fill = "var(--dim)";
  pattern.append(back, stripe);
  return pattern;
}
function grid(highest) {
  let step = 1024;
  while (highest / step > 5) step *= 2;
  return Array.from({ length: Math.floor(highest / step) + 1 }, (_, k) => k * step);
}
