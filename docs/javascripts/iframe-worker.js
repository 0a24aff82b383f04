// A page that is opened from a folder gets no workers: the search then runs in a hidden frame.
// The theme's worker looks for the name IFrameWorker, and takes its scripts by a promise then.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside.importScripts = (...urls) => Promise.all(urls.map((one) => this.load(one)));
      this.ready = this.load(url);
    }

    load(url) {
      const script = this.inside.document.createElement("script");
      const done = new Promise((loaded, failed) => Object.assign(script, { onload: loaded, onerror: failed }));
      script.src = new URL(url, location.href).href;
      this.inside.document.head.append(script);
      return done;
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    set onmessage(listener) {
      this.addEventListener("message", listener);
    }
  };
}
