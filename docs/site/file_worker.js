// The search runs in a Worker, which browsers refuse to pages that are opened from disk. There this stands in for it: a
// hidden frame that runs the same script, and passes messages both ways.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.toParent = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      inner.document.open();
      inner.document.write(
        "<!DOCTYPE html><script>" +
          "window.postMessage = (data) => toParent(data);" +
          "window.importScripts = (...urls) => Promise.all(urls.map((url) => new Promise((done) => {" +
          "const one = document.createElement('script'); one.src = url; one.onload = done; document.head.append(one);" +
          "})));" +
          `</${"script"}><script src="${url}"></${"script"}>`,
      );
      inner.document.close();
      this.loaded = new Promise((done) => inner.addEventListener("load", done));
    }
    postMessage(data) {
      const inner = this.frame.contentWindow;
      this.loaded.then(() => inner.dispatchEvent(new inner.MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
