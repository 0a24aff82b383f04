// What runs when: lanes are streams, boxes are tasks, of one timeline or of all above each other.
const TIMELINE = { gutter: 118, axis: 26, lane: 30, box: 22, title: 26 };

function drawTimeline() {
  const host = document.getElementById("timeline-surface");
  if (!host) return;
  const all = data.timelines;
  let shown = [all[all.length - 1]], critical = false, lanes = [], boxes = [], height = 0, latency = 1;

  function arrange() {
    lanes = []; boxes = [];
    let y = TIMELINE.axis + 4;
    latency = Math.max(...shown.map((t) => t.latency), 1e-6);
    for (const timeline of shown) {
      if (shown.length > 1) { lanes.push({ title: `${timeline.name} · ${duration(timeline.latency)} · ${timeline.source}`, y }); y += TIMELINE.title; }
      const top = new Map();
      for (const stream of Object.keys(timeline.busy).map(Number)) {
        top.set(stream, y);
        lanes.push({ stream, busy: timeline.busy[stream], y });
        y += TIMELINE.lane;
      }
      const chain = new Set(timeline.critical), place = new Map();
      for (const [task, stream, start, end] of timeline.spans) {
        const box = { task, start, end, y: top.get(stream) + (TIMELINE.lane - TIMELINE.box) / 2, critical: chain.has(task), place };
        place.set(task, box);
        boxes.push(box);
      }
    }
    height = y + 10;
  }
  const left = (us, view) => TIMELINE.gutter + us * view.scale - view.x;

  function axis(context, view) {
    const step = niceStep(80 / view.scale);
    context.font = `11px ${paint.text}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const from = Math.max(0, Math.floor((view.x - TIMELINE.gutter) / view.scale / step));
    for (let k = from; ; k++) {
      const x = left(k * step, view);
      if (x > view.w || k * step > latency * 1.02) break;
      context.fillStyle = paint.faint;
      context.fillRect(x, TIMELINE.axis, 1, view.h);
      context.fillStyle = paint.dim;
      context.fillText(latency >= 2000 ? `${significant(k * step / 1000, 4).replace(/\.?0+$/, "") || 0} ms` : `${+(k * step).toFixed(3)} µs`, x, TIMELINE.axis / 2 + 1);
    }
  }
  function gutter(context, view) {
    context.fillStyle = paint.surface;
    context.fillRect(0, TIMELINE.axis, TIMELINE.gutter - 8, view.h);
    context.textAlign = "left";
    for (const lane of lanes) {
      const y = lane.y - view.y;
      context.fillStyle = paint.soft;
      if (lane.title) {
        context.fillStyle = paint.surface;
        context.fillRect(0, y + 2, view.w, TIMELINE.title - 4);
        context.font = `600 12px ${paint.text}`;
        context.fillStyle = paint.ink;
        context.fillText(lane.title, 14, y + TIMELINE.title / 2);
        continue;
      }
      context.font = `12px ${paint.text}`;
      context.fillText(`stream ${lane.stream}`, 14, y + TIMELINE.lane / 2);
      context.fillStyle = paint.dim;
      context.font = `11px ${paint.text}`;
      context.textAlign = "right";
      context.fillText(`${Math.round(100 * lane.busy)}%`, TIMELINE.gutter - 12, y + TIMELINE.lane / 2);
      context.textAlign = "left";
    }
  }
  function draw(context, view) {
    axis(context, view);
    const letter = 6.4;
    context.textBaseline = "middle";
    for (const lane of lanes) if (!lane.title) {
      context.fillStyle = paint.faint;
      context.fillRect(TIMELINE.gutter - view.x, lane.y - view.y + TIMELINE.lane - 1, latency * view.scale, 1);
    }
    context.font = `11px ${paint.mono}`;
    context.textAlign = "left";
    for (const box of boxes) {
      const x = left(box.start, view), w = Math.max((box.end - box.start) * view.scale, 0.75), y = box.y - view.y;
      if (x + w < TIMELINE.gutter - 8 || x > view.w || y > view.h || y < -TIMELINE.box) continue;
      const task = tasks[box.task], gap = w > 4 ? 0.6 : 0;
      context.globalAlpha = (critical && !box.critical) || !inside(box.task) ? 0.22 : 1;
      context.fillStyle = paint[task.kind];
      if (w > 6) { context.beginPath(); context.roundRect(x + gap, y, w - 2 * gap, TIMELINE.box, 3); context.fill(); } else context.fillRect(x, y, w - gap, TIMELINE.box);
      if (w > 40) {
        const from = Math.max(x + 6, TIMELINE.gutter), room = Math.floor((x + w - from - 6) / letter);
        context.fillStyle = paint[["pointwise", "reduce"].includes(task.kind) ? "on-pale" : "on-kind"];
        if (room > 3) context.fillText(short(task.name, room), from, y + TIMELINE.box / 2 + 0.5);
      }
    }
    context.globalAlpha = 1;
    for (const i of new Set([surface?.hovered ?? -1, selected])) if (i >= 0) mark(context, view, i, i === selected);
    gutter(context, view);
  }
  // A task's outline, and curves from what it reads and to what reads it.
  function mark(context, view, i, strong) {
    for (const box of boxes.filter((b) => b.task === i)) {
      const x = left(box.start, view), w = Math.max((box.end - box.start) * view.scale, 2), y = box.y - view.y;
      context.strokeStyle = paint.ink;
      context.lineWidth = strong ? 2 : 1;
      context.strokeRect(x, y - 1, w, TIMELINE.box + 2);
      if (!strong) continue;
      context.lineWidth = 1.4;
      const curve = (from, to, colour) => {
        if (!from || !to) return;
        const x1 = left(from.end, view), y1 = from.y - view.y + TIMELINE.box / 2, x2 = left(to.start, view), y2 = to.y - view.y + TIMELINE.box / 2;
        const bend = Math.max(8, Math.abs(x2 - x1) / 2), lift = y1 === y2 ? TIMELINE.box : 0;
        context.strokeStyle = colour;
        context.beginPath();
        context.moveTo(x1, y1);
        context.bezierCurveTo(x1 + bend, y1 + lift, x2 - bend, y2 + lift, x2, y2);
        context.stroke();
      };
      for (const p of tasks[i].after) curve(box.place.get(p), box, paint.accent);
      for (const s of readers[i]) curve(box, box.place.get(s), paint.warn);
    }
  }
  function find(x, y, view) {
    if (x < TIMELINE.gutter - 8 || y < TIMELINE.axis) return null;
    let best = null, distance = 3;
    for (const box of boxes) {
      if (y < box.y - view.y || y > box.y - view.y + TIMELINE.box) continue;
      const a = left(box.start, view), b = left(box.end, view), away = x < a ? a - x : x > b ? x - b : 0;
      if (away < distance) { best = box; distance = away; }
    }
    return best;
  }
  arrange();
  let surface = null;
  surface = new Surface(host, {
    origin: { x: TIMELINE.gutter, y: 0 },
    both: false,
    limits: (width) => [(width - TIMELINE.gutter - 32) / latency, Math.max(400, width / latency)],
    size: (scale) => ({ width: TIMELINE.gutter + latency * scale + 32, height }),
    draw,
    hit: (x, y, view) => find(x, y, view)?.task ?? -1,
    hint: (i, x, y, view) => {
      const box = find(x, y, view), reason = box.critical ? "on the critical chain" : "";
      return describe(i, `${duration(box.start)} to ${duration(box.end)}, ${duration(box.end - box.start)} on stream ${tasks[i].stream}`, reason);
    },
  });
  const again = () => { arrange(); surface.fit(); tell(); };
  const summary = h("output");
  function tell() {
    const timeline = shown[shown.length - 1], chain = timeline.critical;
    const us = new Map(timeline.spans.map(([task, , a, b]) => [task, b - a]));
    const sum = chain.reduce((total, i) => total + us.get(i), 0);
    summary.textContent = `${duration(timeline.latency)} ${timeline.source}; critical chain: ${chain.length} of ${tasks.length} tasks, ${duration(sum)} running, ${duration(Math.max(0, timeline.latency - sum))} waiting`;
  }
  const labels = all.map((t) => t.name).concat(all.length > 1 ? ["both"] : []);
  document.getElementById("timeline-tools").append(
    options(labels, all.length - 1, (i) => { shown = i < all.length ? [all[i]] : all; again(); }),
    toggle("critical chain", "the tasks that set the latency", false, (on) => { critical = on; surface.redraw(); }),
    summary, h("span", { class: "push" }, traceButton()), surface.buttons());
  tell();
  views.push({
    id: "timeline",
    selected: () => surface.redraw(),
    focused: () => surface.redraw(),
    repaint: () => surface.paint(),
    reveal: (i) => {
      const box = boxes.find((b) => b.task === i);
      if (!box) return;
      const wanted = 60 / Math.max(box.end - box.start, 1e-3);
      if (surface.scale < wanted && (box.end - box.start) * surface.scale < 12) surface.zoom(wanted / surface.scale, 0, 0);
      surface.reveal({ x: TIMELINE.gutter + box.start * surface.scale, w: (box.end - box.start) * surface.scale, y: box.y, h: TIMELINE.box });
    },
  });
}

// What fits of a name: all of it, or its last part.
function short(name, most) {
  return shorten(name.length > most ? name.slice(name.lastIndexOf(".") + 1) : name, most);
}
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= least);
}
