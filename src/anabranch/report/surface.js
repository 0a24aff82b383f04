// A large drawing in a small window. The browser scrolls it, ctrl + wheel and + - 0 zoom it, the
// pointer drags it, and `draw` is called for what is in sight only: thousands of tasks cost little.
class Surface {
  // plan: { origin, size(scale), draw(context, view), hit(x, y, view), hint(i), limits(): [least, most], both: zoom both axes }
  constructor(host, plan) {
    this.host = host;
    this.plan = plan;
    this.canvas = h("canvas");
    this.spacer = h("div", {}, this.canvas);
    host.append(this.spacer);
    this.fitted = true;
    this.scale = 1;
    this.pending = false;
    host.addEventListener("scroll", () => this.redraw());
    host.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    host.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("pointerdown", (event) => this.press(event));
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => { unhint(); this.over(-1); });
    new ResizeObserver(() => requestAnimationFrame(() => {
      if (host.clientWidth !== this.width || host.clientHeight !== this.tall) this.resize();
    })).observe(host);
    this.resize();
  }
  get view() {
    return { x: this.host.scrollLeft, y: this.host.scrollTop, w: this.width, h: this.height, scale: this.scale };
  }
  resize() {
    this.width = this.host.clientWidth;
    const [least] = this.plan.limits(this.width);
    if (this.fitted || this.scale < least) this.scale = this.plan.fit ? this.plan.fit(this.width) : least;
    this.layout();
  }
  layout() {
    const size = this.plan.size(this.scale, this.width);
    this.spacer.style.width = `${Math.max(size.width, this.width)}px`;
    this.spacer.style.height = `${size.height}px`;
    this.height = this.tall = this.host.clientHeight;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.paint();
  }
  redraw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => { this.pending = false; this.paint(); });
  }
  paint() {
    const context = this.canvas.getContext("2d"), ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    this.plan.draw(context, this.view);
  }
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const [least, most] = this.plan.limits(this.width);
    const scale = Math.min(most, Math.max(least, this.scale * factor));
    const { x: ox, y: oy } = this.plan.origin;
    const at = (x + this.host.scrollLeft - ox) / this.scale, down = (y + this.host.scrollTop - oy) / this.scale;
    this.scale = scale;
    this.fitted = false;
    this.layout();
    this.host.scrollLeft = ox + at * scale - x;
    if (this.plan.both) this.host.scrollTop = oy + down * scale - y;
    this.paint();
  }
  fit() {
    this.fitted = true;
    this.resize();
    this.host.scrollTo(0, 0);
  }
  reveal(box) {
    const view = this.view, pad = 60;
    if (box.x < view.x + pad || box.x + box.w > view.x + view.w - pad) this.host.scrollLeft = box.x + box.w / 2 - view.w / 2;
    if (box.y < view.y + pad || box.y + box.h > view.y + view.h - pad) this.host.scrollTop = box.y + box.h / 2 - view.h / 2;
    this.redraw();
  }
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = this.canvas.getBoundingClientRect();
    this.zoom(Math.exp(-event.deltaY / 240), event.clientX - box.left, event.clientY - box.top);
  }
  key(event) {
    const act = { "+": () => this.zoom(1.5), "=": () => this.zoom(1.5), "-": () => this.zoom(1 / 1.5), 0: () => this.fit() }[event.key];
    if (act && !event.ctrlKey && !event.metaKey) { event.preventDefault(); act(); }
  }
  press(event) {
    if (event.button !== 0) return;
    const { clientX, clientY } = event, { scrollLeft, scrollTop } = this.host;
    let moved = event.pointerType === "touch";
    const move = (e) => {
      if (event.pointerType === "touch") return;
      if (Math.hypot(e.clientX - clientX, e.clientY - clientY) > 3) moved = true;
      if (!moved) return;
      unhint();
      this.canvas.classList.add("panning");
      this.host.scrollTo({ left: scrollLeft - (e.clientX - clientX), top: scrollTop - (e.clientY - clientY), behavior: "instant" });
    };
    const up = (e) => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", up);
      this.canvas.classList.remove("panning");
      const still = event.pointerType === "touch" && Math.hypot(e.clientX - clientX, e.clientY - clientY) < 6;
      if (moved && !still) return;
      const i = this.plan.hit(event.offsetX, event.offsetY, this.view);
      if (i >= 0) select(i);
      else if (selected >= 0) select(selected);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", up);
  }
  hover(event) {
    if (event.buttons) return;
    const i = this.plan.hit(event.offsetX, event.offsetY, this.view);
    this.over(i);
    if (i < 0) unhint();
    else hint(event, ...this.plan.hint(i, event.offsetX, event.offsetY, this.view));
  }
  over(i) {
    if (this.hovered === i) return;
    this.hovered = i;
    this.canvas.classList.toggle("over", i >= 0);
    this.redraw();
  }
  buttons() {
    return h("span", { class: "group", title: "ctrl + wheel zooms, dragging moves; + - 0 on the keyboard" },
      h("button", { "aria-label": "zoom out", onclick: () => this.zoom(1 / 1.6) }, "−"),
      h("button", { onclick: () => this.fit() }, "fit"),
      h("button", { "aria-label": "zoom in", onclick: () => this.zoom(1.6) }, "+"));
  }
}
