// The tasks and what flows between them: a column a stream, a row a step. Rows and columns come
// with the data; edges between neighbouring columns run in the gap between them.
const GRAPH = { w: 186, h: 38, dx: 262, dy: 60, top: 46, side: 34 };

function drawGraph() {
  const host = document.getElementById("graph-surface"), chart = document.getElementById("graph-map");
  const columns = data.streams.length, depth = 1 + Math.max(-1, ...tasks.map((task) => task.row));
  const full = { w: columns * GRAPH.dx - (GRAPH.dx - GRAPH.w) + 2 * GRAPH.side, h: depth * GRAPH.dy + 20 };
  const byRow = Array.from({ length: depth }, () => []);
  tasks.forEach((task, i) => byRow[task.row].push(i));
  const edges = [];
  tasks.forEach((task, i) => {
    const waits = new Set(task.waits);
    for (const p of task.after) edges.push({ from: p, to: i, wait: waits.delete(p) });
    for (const p of waits) edges.push({ from: p, to: i, wait: true, order: true });
  });
  let edgesByRow = null;
  const centre = (view) => Math.max(0, (view.w - full.w * view.scale) / 2);
  const place = (i, view) => ({
    x: centre(view) + (GRAPH.side + tasks[i].column * GRAPH.dx) * view.scale - view.x,
    y: GRAPH.top + tasks[i].row * GRAPH.dy * view.scale - view.y,
  });
  function inSight(view) {
    const from = Math.max(0, Math.floor((view.y - GRAPH.top) / GRAPH.dy / view.scale) - 1);
    const to = Math.min(depth - 1, Math.ceil((view.y + view.h) / GRAPH.dy / view.scale));
    return [from, to];
  }
  function route(context, edge, view) {
    const s = view.scale, a = place(edge.from, view), b = place(edge.to, view), w = GRAPH.w * s, hgt = GRAPH.h * s;
    const u = tasks[edge.from], v = tasks[edge.to];
    context.beginPath();
    if (u.column === v.column && v.row === u.row + 1) {
      context.moveTo(a.x + w / 2, a.y + hgt);
      context.lineTo(b.x + w / 2, b.y);
    } else if (u.column === v.column) {
      const bulge = Math.min(GRAPH.dx - GRAPH.w - 14, 12 + 4 * (v.row - u.row)) * s;
      context.moveTo(a.x + w, a.y + hgt / 2);
      context.bezierCurveTo(a.x + w + bulge, a.y + hgt * 0.9, b.x + w + bulge, b.y + hgt * 0.1, b.x + w, b.y + hgt / 2);
    } else {
      const right = v.column > u.column, x1 = right ? a.x + w : a.x, x2 = right ? b.x : b.x + w, bend = (right ? 1 : -1) * (GRAPH.dx - GRAPH.w) * 0.75 * s;
      context.moveTo(x1, a.y + hgt / 2);
      context.bezierCurveTo(x1 + bend, a.y + hgt / 2, x2 - bend, b.y + hgt / 2, x2, b.y + hgt / 2);
    }
    context.stroke();
  }
  function draw(context, view) {
    const s = view.scale, [from, to] = inSight(view);
    edgesByRow ??= bucket();
    context.lineWidth = Math.max(0.5, Math.min(1.2, 1.4 * s));
    context.globalAlpha = selected >= 0 ? 0.4 : 0.85;
    const drawn = new Set();
    for (let block = Math.floor(from / 16); block <= Math.floor(to / 16); block++) for (const edge of edgesByRow[block] || []) {
      if (drawn.has(edge) || tasks[edge.from].row > to || tasks[edge.to].row < from) continue;
      drawn.add(edge);
      context.strokeStyle = edge.wait ? paint.accent : paint.edge;
      context.setLineDash(edge.wait && s > 0.3 ? [5, 4] : []);
      route(context, edge, view);
    }
    context.globalAlpha = 1;
    context.setLineDash([]);
    if (selected >= 0) for (const edge of edges) if (edge.from === selected || edge.to === selected) {
      context.lineWidth = 2;
      context.strokeStyle = edge.to === selected ? paint.accent : paint.warn;
      route(context, edge, view);
    }
    for (let row = from; row <= to; row++) for (const i of byRow[row]) node(context, i, view);
    head(context, view);
    map(view);
  }
  function node(context, i, view) {
    const s = view.scale, { x, y } = place(i, view), w = GRAPH.w * s, hgt = GRAPH.h * s, task = tasks[i];
    if (x > view.w || x + w < 0) return;
    context.globalAlpha = 1;
    context.beginPath();
    context.roundRect(x, y, w, hgt, 6 * s);
    const near = inside(i) && (selected < 0 || i === selected || task.after.includes(selected) || tasks[selected].after.includes(i));
    if (s < 0.42) {
      context.globalAlpha = near ? 1 : 0.45;
      context.fillStyle = paint[task.kind];
      context.fill();
      context.globalAlpha = 1;
    } else {
      context.fillStyle = i === selected ? paint["accent-soft"] : paint.surface;
      context.fill();
      context.strokeStyle = i === selected ? paint.accent : i === surface?.hovered ? paint.soft : paint.line;
      context.lineWidth = i === selected ? 2 : 1;
      context.stroke();
      context.save();
      context.clip();
      context.fillStyle = paint[task.kind];
      context.fillRect(x, y, 4 * s, hgt);
      context.globalAlpha = 0.55;
      context.fillRect(x + 4 * s, y + hgt - 3 * s, (w - 4 * s) * (task.us || 0) / slowest, 3 * s);
      context.restore();
      context.globalAlpha = near ? 1 : 0.5;
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.font = `600 ${11 * s}px ${paint.mono}`;
      context.fillStyle = paint.ink;
      context.fillText(shorten(task.name, 25), x + 11 * s, y + 12.5 * s);
      context.font = `${10 * s}px ${paint.text}`;
      context.fillStyle = paint.dim;
      context.textAlign = "right";
      const time = duration(task.us);
      context.fillText(time, x + w - 8 * s, y + 26 * s);
      context.textAlign = "left";
      context.fillStyle = paint.soft;
      context.fillText(shorten(task.ops, time ? 20 : 30), x + 11 * s, y + 26 * s);
      context.globalAlpha = 1;
    }
    if (i === selected && s < 0.42) { context.strokeStyle = paint.ink; context.lineWidth = 2; context.stroke(); }
  }
  function head(context, view) {
    context.fillStyle = paint.surface;
    context.globalAlpha = 0.92;
    context.fillRect(0, 0, view.w, 28);
    context.globalAlpha = 1;
    context.fillStyle = paint.line;
    context.fillRect(0, 28, view.w, 1);
    context.font = `12px ${paint.text}`;
    context.fillStyle = paint.soft;
    context.textAlign = "center";
    context.textBaseline = "middle";
    data.streams.forEach((stream, c) => {
      const x = centre(view) + (GRAPH.side + c * GRAPH.dx + GRAPH.w / 2) * view.scale - view.x;
      context.fillText(view.scale < 0.3 ? stream : `stream ${stream}`, x, 14);
    });
  }
  // The whole graph beside it, and the part of it that is in sight.
  const map = (view) => {
    const box = chart.getBoundingClientRect(), ratio = window.devicePixelRatio || 1;
    chart.width = Math.round(box.width * ratio);
    chart.height = Math.round(box.height * ratio);
    if (!chart.width) return;
    const context = chart.getContext("2d"), unit = (box.width - 24) / Math.max(columns, 3), tall = (box.height - 12) / depth;
    context.scale(ratio, ratio);
    tasks.forEach((task, i) => {
      context.fillStyle = paint[task.kind];
      context.globalAlpha = inside(i) && (selected < 0 || i === selected) ? 0.9 : 0.35;
      context.fillRect(12 + task.column * unit, 6 + task.row * tall, Math.max(2, unit - 2), Math.max(0.6, Math.min(tall * 0.8, 5)));
    });
    context.globalAlpha = 1;
    if (selected >= 0) {
      context.fillStyle = paint.ink;
      context.fillRect(4, 5 + tasks[selected].row * tall, box.width - 8, 2);
    }
    const row = GRAPH.dy * view.scale, column = GRAPH.dx * view.scale;
    const left = 8 + Math.max(0, (view.x - GRAPH.side * view.scale) / column) * unit, across = (view.w / column) * unit + 6;
    context.strokeStyle = paint.accent;
    context.lineWidth = 1.5;
    context.strokeRect(left, 6 + (view.y / row) * tall, Math.min(across, box.width - 4 - left), Math.max(6, Math.min(depth - view.y / row, view.h / row) * tall));
  };
  const jump = (event) => {
    const box = chart.getBoundingClientRect(), unit = (box.width - 24) / Math.max(columns, 3);
    const row = ((event.clientY - box.top - 6) / (box.height - 12)) * depth, column = (event.clientX - box.left - 12) / unit;
    host.scrollTo({ top: row * GRAPH.dy * surface.scale - surface.height / 2, left: column * GRAPH.dx * surface.scale - surface.width / 2, behavior: "instant" });
  };
  chart.addEventListener("pointerdown", jump);
  chart.addEventListener("pointermove", (event) => { if (event.buttons) jump(event); });
  function bucket() {
    const table = [];
    for (const edge of edges) for (let b = Math.floor(tasks[edge.from].row / 16); b <= Math.floor(tasks[edge.to].row / 16); b++) (table[b] ??= []).push(edge);
    return table;
  }
  const least = (width) => Math.min(0.5, Math.max(0.06, width / full.w));
  let surface = null;
  surface = new Surface(host, {
    origin: { x: 0, y: GRAPH.top },
    both: true,
    limits: (width) => [Math.min(least(width), 0.2), 2],
    fit: (width) => Math.min(1, Math.max(0.7, width / full.w)),
    size: (scale) => ({ width: full.w * scale, height: GRAPH.top + full.h * scale }),
    draw,
    hit: (x, y, view) => {
      if (y < 29) return -1;
      const row = Math.floor((y + view.y - GRAPH.top) / GRAPH.dy / view.scale);
      return (byRow[row] || []).find((i) => {
        const p = place(i, view);
        return x >= p.x && x <= p.x + GRAPH.w * view.scale && y >= p.y && y <= p.y + GRAPH.h * view.scale;
      }) ?? -1;
    },
    hint: (i) => describe(i, tasks[i].waits.length ? `waits for ${shorten(tasks[i].waits.map((p) => tasks[p].name).join(", "), 80)}` : ""),
  });
  const whole = h("button", { onclick: () => { surface.fit(); surface.zoom(1e-9, 0, 0); } }, "whole");
  document.getElementById("graph-tools").append(
    h("output", {}, `${tasks.length.toLocaleString("en")} tasks, ${edges.filter((e) => !e.order).length.toLocaleString("en")} edges, ${edges.filter((e) => e.wait).length} event waits; ${depth} steps deep, at most ${Math.max(0, ...byRow.map((r) => r.length))} side by side`),
    h("span", { class: "push group" }, whole), surface.buttons());
  views.push({
    id: "graph",
    selected: () => surface.redraw(),
    focused: () => surface.redraw(),
    repaint: () => surface.paint(),
    reveal: (i) => {
      if (surface.scale < 0.42) surface.zoom(0.8 / surface.scale);
      const p = place(i, surface.view);
      surface.reveal({ x: p.x + surface.view.x, y: p.y + surface.view.y, w: GRAPH.w * surface.scale, h: GRAPH.h * surface.scale });
    },
  });
}
