// The timelines as a trace in Chrome's JSON, which Perfetto and chrome://tracing open: a process a
// timeline, a thread a stream, a slice a task, and an arrow for each event wait. Times are in µs.
function traceEvents() {
  return data.timelines.flatMap((timeline, k) => {
    const process = k + 1, end = new Map(), start = new Map();
    const named = (name, thread, shown) => ({ ph: "M", pid: process, tid: thread, name, args: { name: shown } });
    const streams = Object.keys(timeline.busy).map(Number);
    const slices = timeline.spans.map(([i, stream, from, to]) => {
      const task = tasks[i];
      start.set(i, { ts: from, tid: stream });
      end.set(i, { ts: to, tid: stream });
      const args = { kernel: task.kernel, ops: task.ops, module: task.module, origin: task.origin, reads: task.reads, writes: task.writes, launch: i };
      return { ph: "X", pid: process, tid: stream, name: task.name, cat: task.kind, ts: from, dur: to - from, args };
    });
    const waits = timeline.spans.flatMap(([i]) => tasks[i].waits.filter((p) => end.has(p)).flatMap((p) => {
      const arrow = { pid: process, cat: "event wait", name: "event wait", id: `${k}.${p}.${i}` };
      // An arrow begins and ends inside slices: at the very end of one it would belong to the next.
      const { ts, tid } = end.get(p);
      return [{ ...arrow, ph: "s", tid, ts: Math.max(start.get(p).ts, ts - 0.001) }, { ...arrow, ...start.get(i), ph: "f", bp: "e" }];
    }));
    return [named("process_name", 0, `${timeline.name} (${timeline.source})`), ...streams.map((stream) => named("thread_name", stream, `stream ${stream}`)), ...slices, ...waits];
  });
}

function traceButton() {
  return h("button", { class: "download", title: "the timelines in Chrome's trace format, for Perfetto (ui.perfetto.dev) and chrome://tracing", onclick: () => {
    const text = JSON.stringify({ traceEvents: traceEvents(), displayTimeUnit: "ns", otherData: { model: data.name, machine: data.machine } });
    const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    h("a", { href: address, download: `${data.name.replace(/[^\w.-]+/g, "_")}.trace.json` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  } }, "download trace");
}
