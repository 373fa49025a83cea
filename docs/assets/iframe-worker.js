// Pages opened from disk may not start workers, and the search of the site runs in one. There, a worker is a hidden frame.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inside = frame.contentWindow;
      this.loaded = new Promise((done) => {
        addEventListener("message", ({ source, data }) => {
          if (source !== this.inside) return;
          if (data === "worker is loaded") done();
          else this.dispatchEvent(new MessageEvent("message", { data }));
        });
      });
      const address = String(url).replace(/"/g, "%22");
      frame.contentDocument.write(
        "<script>postMessage = (data) => parent.postMessage(data, '*')</script>" +
          `<script src="${address}"></script><script>postMessage("worker is loaded")</script>`,
      );
      frame.contentDocument.close();
    }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {}
  };
